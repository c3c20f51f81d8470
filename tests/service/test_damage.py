"""Test that damage is reported, kept and repaired."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fewmore import IncrementalClassifier
from fewmore.cli import app
from fewmore.errors import ModelFileError
from fewmore.service import wal
from fewmore.service.batching import Embedded
from fewmore.service.idempotency import IdempotencyKey, Request
from fewmore.service.repair import repair
from fewmore.service.store import Store


def seed(name: str) -> int:
    return 1000 * int.from_bytes(name.encode(), "little")


def images(first: int, count: int = 30) -> Embedded:
    """Return enough features for pages of their own."""
    rows = torch.rand(count, 64, generator=torch.Generator().manual_seed(first))
    return Embedded(rows, (), tuple(range(first, first + count)))


def teach(model: Path, *names: str) -> None:
    """Teach classes, and end as a kill does: nothing is merged."""
    store = Store(model)
    for name in names:
        store.teach(name, images(seed(name)), request=Request(IdempotencyKey(name, "d")))
    shutil.copytree(model.parent, model.parent.parent / "killed")
    store._release()
    shutil.rmtree(model.parent)
    (model.parent.parent / "killed").rename(model.parent)
    model.with_name(model.name + ".lock").unlink()


def log_of(model: Path) -> Path:
    return model.with_name(model.name + ".changes-wal")


def known(model: Path) -> list[str]:
    store = Store(model)
    names = store.current.names
    store._release()
    return names


# The write-ahead log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database of ten rows in its log, each of a transaction of its own."""
    path = tmp_path_factory.mktemp("log") / "a"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, value BLOB)")
    for number in range(10):
        connection.execute("INSERT INTO rows VALUES (?, ?)", (number, bytes([number]) * 9000))
    for file in ("a", "a-wal"):
        shutil.copy(path.with_name(file), path.with_name(file.replace("a", "b", 1)))
    connection.close()
    return path.with_name("b")


def rows(folder: Path, database: bytes, of_log: bytes) -> list[int]:
    (folder / "c").write_bytes(database)
    (folder / "c-wal").write_bytes(of_log)
    connection = sqlite3.connect(folder / "c")
    try:
        return [number for (number,) in connection.execute("SELECT id FROM rows ORDER BY id")]
    except sqlite3.OperationalError:  # not even the table
        return []
    finally:
        connection.close()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_part_that_sqlite_uses_is_known(
    tmp_path_factory: pytest.TempPathFactory, log: Path, data: Any
):
    folder = tmp_path_factory.mktemp("damaged")
    whole = log.with_name("b-wal").read_bytes()
    assert wal.committed(whole) == len(whole)
    damaged = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(damaged[: data.draw(st.integers(at, len(whole)))])
    used = wal.committed(cut)
    assert used < len(whole)
    assert rows(folder, log.read_bytes(), cut) == rows(folder, log.read_bytes(), cut[:used])
    assert rows(folder, log.read_bytes(), wal.rechain(whole)) == list(range(10))


# Damage


def flip(data: bytearray, at: int) -> None:
    data[at] ^= 1


def last_frame(data: bytearray) -> None:
    """Damage the checksum of the last frame: the change in it is whole."""
    flip(data, len(data) - 4096 - 24 + 16)


def last_change(data: bytearray) -> None:
    flip(data, data.rindex(images(seed("c")).features.numpy().tobytes()[-64:]) + 5)


def middle(data: bytearray) -> None:
    """Damage a page of features of the second change: what is behind it is whole."""
    flip(data, data.index(images(seed("b")).features.numpy().tobytes()[-64:]) + 5)


@pytest.mark.parametrize(
    ("damage", "saved", "lost"),
    [(last_frame, {"a", "b", "c"}, 0), (last_change, {"a", "b"}, 1), (middle, {"a", "c"}, 1)],
)
def test_a_damaged_log_is_reported_kept_and_repaired(
    model: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytearray], None],
    saved: set[str],
    lost: int,
):
    teach(model, "a", "b", "c")
    file = log_of(model)
    data = bytearray(file.read_bytes())
    damage(data)
    file.write_bytes(data)
    store = Store(model)
    assert "c" not in store.current.names
    assert "no whole change" in caplog.text
    assert "fewmore repair" in caplog.text
    assert store.damaged is not None
    assert store.damaged.with_name(store.damaged.name + "-wal").read_bytes() == data
    store.teach("later", images(77))
    store.close()
    ran = CliRunner().invoke(app, ["repair", str(model)])
    assert ran.exit_code == 0, ran.output
    names = known(model)
    assert set(names) == {"jay", "robin", "wren", "later", *saved}
    assert f"{lost} could not be read" in ran.output
    kept = model.with_name("birds.fewmore.before-repair-1")
    assert (kept / "birds.fewmore.changes.damaged-1-wal").read_bytes() == data
    assert repair(model).saved == []
    assert known(model) == names


@pytest.mark.parametrize("cut", [1, 3000, 40_000])
def test_a_log_that_was_cut_short_is_reported_and_kept(
    model: Path, caplog: pytest.LogCaptureFixture, cut: int
):
    teach(model, "a", "b", "c")
    file = log_of(model)
    file.write_bytes(file.read_bytes()[:-cut])
    names = known(model)
    assert "c" not in names
    if cut < 40_000:
        assert "a" in names
    assert "no whole change" in caplog.text
    assert model.with_name("birds.fewmore.changes.damaged-1-wal").exists()
    caplog.clear()
    assert known(model) == names
    assert "no whole change" not in caplog.text


def test_a_damaged_database_is_refused_and_repaired(model: Path):
    teach(model, "a", "b", "c")
    path = model.with_name(model.name + ".changes")
    sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    data = bytearray(path.read_bytes())
    middle(data)
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"change 2 is not as it was.* fewmore repair birds"):
        Store(model)
    report = repair(model)
    assert (report.saved, report.lost) == (["learn a", "learn c"], 1)
    assert known(model)[-2:] == ["a", "c"]
    store = Store(model)
    assert store.teach("a", images(1), request=Request(IdempotencyKey("a", "d"))).replayed
    store.close()


def test_a_file_that_is_no_database_is_refused_and_repaired(model: Path):
    path = model.with_name(model.name + ".changes")
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(ModelFileError, match=r"is damaged .* fewmore repair"):
        Store(model)
    assert repair(model).saved == []
    assert known(model) == ["jay", "robin", "wren"]


def test_repairing_a_whole_store_loses_nothing(model: Path):
    assert repair(model).kept is None
    teach(model, "a", "b")
    assert repair(model).saved == ["learn a", "learn b"]
    assert IncrementalClassifier.load(model).names[-2:] == ["a", "b"]
    assert repair(model).saved == []


def test_an_image_can_be_removed_alone_after_a_repair(model: Path):
    store = Store(model)
    store.teach("merged", images(1))
    store.close()
    teach(model, "saved")
    assert repair(model).saved == ["learn saved"]
    store = Store(model)
    for name, first in (("merged", 1), ("saved", seed("saved"))):
        assert store.remove_image(name, first).response["images"] == 29
    store.close()


def test_a_later_format_is_refused(model: Path):
    teach(model, "a")
    connection = sqlite3.connect(model.with_name(model.name + ".changes"))
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(ModelFileError, match="later version"):
        Store(model)
