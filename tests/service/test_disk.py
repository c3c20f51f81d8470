"""Test disks that are full or read-only, file modes, links and leftovers."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from fewmore import IncrementalClassifier
from fewmore.errors import ModelFileError, StateError
from fewmore.service import store as stores
from fewmore.service.batching import Embedded
from fewmore.service.store import Store
from fewmore.service.thumbnails import Thumbnails

Inside = Callable[..., AbstractContextManager[Any]]
MakeImage = Callable[..., bytes]
POSIX = pytest.mark.skipif(os.name != "posix", reason="modes and links of POSIX")


def images(first: int = 1, count: int = 3) -> Embedded:
    rows = torch.rand(count, 64, generator=torch.Generator().manual_seed(first))
    squares = tuple(torch.zeros(3, 8, 8, dtype=torch.uint8) for _ in range(count))
    return Embedded(rows, squares, tuple(range(first, first + count)))


def no_room(*_: Any) -> None:
    raise ModelFileError("birds.fewmore cannot be written (No space left on device)")


# Full and read-only disks


def test_it_starts_if_the_model_file_cannot_be_written(
    model: Path, monkeypatch: pytest.MonkeyPatch
):
    store = Store(model)
    store.teach("okapi", images())
    store._release()
    with monkeypatch.context() as patch:
        patch.setattr(IncrementalClassifier, "save", no_room)
        store = Store(model)  # and merges later
        assert "okapi" in store.current.names
        assert store.merge_failures == 1
        store.teach("zebra", images(10))
        store.close()
    store = Store(model)
    assert store.current.names[-2:] == ["okapi", "zebra"]
    store.close()


DISK = """
import json, os, sys
from pathlib import Path
from fewmore.service import store as stores
from fewmore.service.store import Store
sys.path.insert(0, sys.argv[1])
from test_disk import images
folder = Path(sys.argv[2])
model = folder / "birds.fewmore"
found = {}
def fill():
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
def refused(store):
    try:
        store.teach("never", images(5000, 60))
    except OSError as error:
        return str(error)
"""
FULL = """
store = Store(model)
store.teach("okapi", images())
fill()
found["refused"] = refused(store)
found["trouble"] = store.trouble
store.close()
store = Store(model)  # after a stop on a full disk
found["names"] = store.current.names
found["refused again"] = refused(store)
(folder / "filler").unlink()
stores.MERGE_SECONDS = -1
store._retry_at = 0
store.maintain()
found["trouble after"] = store.trouble
store.teach("zebra", images(10))
store.close()
for file in ("birds.fewmore.changes", "birds.fewmore.changes-wal"):
    (folder / file).unlink(missing_ok=True)
fill()
store = Store(model)  # not even a new database can be made
found["names without a database"] = store.current.names
found["trouble without a database"] = store.trouble
(folder / "filler").unlink()
store._retry_at = 0
store.maintain()
store.teach("yak", images(20))
found["at the end"] = store.current.names
store.close()
print(json.dumps(found))
"""
READ_ONLY = """
store = Store(model)
store.teach("okapi", images())
store._database._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
os.system(f"cp -r {folder} {folder}.copy && mount --bind {folder}.copy {folder}"
          f" && mount -o remount,ro,bind {folder}")
store = Store(model)
found["names"] = store.current.names
found["refused"] = refused(store)
found["trouble"] = store.trouble
os.system(f"umount {folder}")
print(json.dumps(found))
"""


def on_a_small_disk(script: str, model: Path) -> Any:
    """Run a script with the model on a disk of its own, where the system allows to mount one."""
    import json

    folder = model.parent / "disk"
    folder.mkdir()
    mount = f"mount -t tmpfs -o size=2500k tmpfs {folder} && cp {model} {folder}"
    run = f'exec "{sys.executable}" -c "$SCRIPT" {Path(__file__).parent} {folder}'
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{mount} || exit 77; {run}"],
        env={**os.environ, "SCRIPT": DISK + script, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if ran.returncode == 77 or "unshare" in ran.stderr:
        pytest.skip("no disk can be mounted here")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


needs_unshare = pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare here")


@needs_unshare
def test_it_starts_and_predicts_on_a_full_disk(model: Path):
    found = on_a_small_disk(FULL, model)
    birds = ["jay", "robin", "wren"]
    assert "full" in found["refused"]
    assert found["trouble"] == found["refused"]
    assert found["names"] == [*birds, "okapi"]
    assert found["refused again"]
    assert found["trouble after"] is None
    assert found["names without a database"] == [*birds, "okapi", "zebra"]
    assert found["trouble without a database"]
    assert found["at the end"] == [*birds, "okapi", "zebra", "yak"]


@needs_unshare
def test_it_starts_and_predicts_on_a_read_only_disk(model: Path):
    found = on_a_small_disk(READ_ONLY, model)
    assert found["names"] == ["jay", "robin", "wren", "okapi"]
    assert found["refused"] == found["trouble"]
    assert "Read-only" in found["trouble"]


def test_read_only_leaves_the_disk_as_it_is(model: Path):
    store = Store(model)
    store.teach("okapi", images())
    copy = shutil.copytree(model.parent, model.parent.parent / "copy")
    store._release()
    (copy / "birds.fewmore.lock").unlink()
    before = {path.name: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    store = Store(copy / model.name, read_only=True)
    assert "okapi" in store.current.names
    with pytest.raises(StateError, match="only reads"):
        store.teach("zebra", images(10))
    store.maintain()
    store.close()
    after = {path.name: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert before == after


def test_ready_says_whether_changes_can_be_stored(
    model: Path, inside: Inside, image: MakeImage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fewmore.service.state.MAINTENANCE_SECONDS", 3600)  # but for the one below
    with inside(model) as client:
        database = client.http.app.state.service.store._database
        database._connection.execute("PRAGMA max_page_count=1")  # a full disk, for SQLite
        refused = client.teach("okapi", *[image("okapi", number) for number in range(60)])
        assert refused.status_code == 503
        assert "database or disk is full" in refused.json()["detail"]
        assert str(model.parent) not in refused.text
        ready = client.http.get("/ready")
        assert ready.status_code == 503
        assert "no change can be stored: database or disk is full" in ready.json()["detail"]
        assert client.predict(image("robin")).status_code == 200
        assert "fewmore_store_writable 0" in client.http.get("/metrics").text
        database._connection.execute("PRAGMA max_page_count=100000")
        client.http.app.state.service.store.maintain()
        assert client.http.get("/ready").status_code == 200
        assert "fewmore_store_writable 1" in client.http.get("/metrics").text
        assert client.teach("okapi").status_code == 200


def test_a_disk_without_room_for_a_lesson_is_still_full(model: Path):
    store = Store(model)
    database = store._database
    assert database is not None
    (pages,) = database._connection.execute("PRAGMA page_count").fetchone()
    database._connection.execute(f"PRAGMA max_page_count={pages + 4}")
    with pytest.raises(OSError, match="full"):
        database.probe()
    database._connection.execute("PRAGMA max_page_count=100000")
    database.probe()
    assert database.meta("probe") is None
    store.close()


def test_a_merge_that_fails_is_tried_less_and_less_often(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    clock = [1000.0]
    monkeypatch.setattr(stores.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(IncrementalClassifier, "save", no_room)
    store = Store(model)
    store.teach("okapi", images())
    database = store._database
    assert database is not None
    for _ in range(3600):
        clock[0] += 1
        store.maintain()
    assert 5 < store.merge_failures < 25
    assert caplog.text.count("could not be brought up to date") == store.merge_failures
    assert database._connection.execute("SELECT count(*) FROM states").fetchone()[0] == 2
    store._release()


@pytest.mark.parametrize("reason", [OSError("the disk is gone"), RuntimeError("an odd one")])
def test_a_store_that_cannot_be_opened_again_is_tried_less_and_less_often(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reason: Exception,
):
    clock = [1000.0]
    monkeypatch.setattr(stores.time, "monotonic", lambda: clock[0])
    tries = []

    def fail(*_: Any) -> None:
        tries.append(clock[0])
        raise reason if len(tries) > 1 else OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "Database", fail)
        store = Store(model)
        assert store.trouble == "the disk is full"
        for _ in range(600):
            clock[0] += 1
            store.maintain()
    assert 5 < len(tries) < 15
    assert str(reason) in caplog.text
    assert store.trouble
    clock[0] += stores.LONGEST_DELAY
    store.maintain()
    assert store.trouble is None
    assert store._delay == stores.MERGE_SECONDS
    store.close()


# Modes and links


@POSIX
def test_modes_are_kept(model: Path):
    model.chmod(0o600)
    store = Store(model)
    store.teach("okapi", images())
    store.thumbnails.write()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in model.parent.iterdir()}
    assert modes.pop("birds.fewmore.thumbnails") == 0o700
    del modes["birds.fewmore.lock"]  # it is empty
    assert modes == dict.fromkeys(
        ("birds.fewmore", "birds.fewmore.changes", "birds.fewmore.changes-wal"), 0o600
    )
    store.close()
    assert stat.S_IMODE(model.stat().st_mode) == 0o600
    model.chmod(0o640)
    classifier = IncrementalClassifier.load(model)
    classifier.save(model)
    assert stat.S_IMODE(model.stat().st_mode) == 0o640


@POSIX
def test_a_link_stays_and_has_the_lock_of_its_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    link = tmp_path / "current.fewmore"
    link.symlink_to(model)
    store = Store(link)
    assert model.with_name("birds.fewmore.lock").exists()
    monkeypatch.setattr(stores, "LOCK_TIMEOUT", 0.1)
    with pytest.raises(ModelFileError, match="another process"):
        Store(model)
    store.teach("okapi", images())
    store.close()
    assert link.is_symlink()
    assert "okapi" in IncrementalClassifier.load(model).names
    classifier = IncrementalClassifier.load(link)
    classifier.forget("okapi")
    classifier.save(link)
    assert link.is_symlink()
    assert "okapi" not in IncrementalClassifier.load(model).names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current.fewmore", "served"]


# Thumbnails and leftovers


def test_what_killed_processes_left_is_removed(model: Path):
    folder = model.with_name("birds.fewmore.thumbnails")
    folder.mkdir()
    gone = 2**22 + 1  # no process has this number
    left = [
        folder / f".0123456789abcdef.jpg.{gone}-1",
        model.with_name(f".birds.fewmore.{gone}-2"),
        model.with_name(f".birds.fewmore.{os.getpid()}-3"),
    ]
    stays = [
        folder / "holiday.jpg",
        model.with_name(f".other.fewmore.{gone}-2"),
        model.with_name(f".birds.fewmore.{os.getppid()}-2"),
    ]
    for path in (*left, *stays):
        path.write_bytes(b"x")
    Store(model).close()
    assert [path for path in left if path.exists()] == []
    assert [path for path in stays if not path.exists()] == []


def test_without_thumbnails_earlier_ones_are_removed(model: Path):
    store = Store(model)
    store.teach("okapi", images())
    store.thumbnails.write()
    store.close()
    folder = model.with_name("birds.fewmore.thumbnails")
    assert len(list(folder.iterdir())) == 3
    Store(model, thumbnails=False).close()
    assert not folder.exists()


def test_thumbnails_are_shown_before_they_are_written(tmp_path: Path):
    thumbnails = Thumbnails(tmp_path / "folder")
    thumbnails.add([(7, torch.zeros(3, 8, 8, dtype=torch.uint8))])
    assert list((tmp_path / "folder").iterdir()) == []
    assert thumbnails.names([7]) == ["0000000000000007"]
    shown = thumbnails.read("0000000000000007")
    thumbnails.write()
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["0000000000000007.jpg"]
    assert thumbnails.read("0000000000000007") == shown
    thumbnails.add([(8, torch.zeros(3, 8, 8, dtype=torch.uint8))])
    thumbnails.remove_except([7])
    thumbnails.write()
    assert thumbnails.names([7, 8]) == ["0000000000000007"]
    assert len(list((tmp_path / "folder").iterdir())) == 1


def test_a_lesson_does_not_wait_for_its_thumbnails(
    model: Path, inside: Inside, monkeypatch: pytest.MonkeyPatch
):
    """Check that nothing but the change itself is synced before the response."""
    written: list[str] = []
    real = Thumbnails.write
    monkeypatch.setattr(Thumbnails, "write", lambda self: (written.append("late"), real(self)))
    monkeypatch.setattr(Store, "teach", lambda *given: (written.append("taught"), teach(*given))[1])
    with inside(model) as client:
        assert client.teach("okapi").status_code == 200
    assert written == ["taught", "late"]


teach = Store.teach
