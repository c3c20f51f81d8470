"""Test that `predict` and `embed` give the same rows on a Ray cluster, whatever is lost there."""

import dataclasses
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fewmore.cli.parts import Parts

ray = pytest.importorskip("ray", reason="needs Ray, which make soak installs")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings

Fewmore = Callable[..., tuple[int, str, str]]
COPIES = 1000  # of each image in an archive
# Writes a part for each chunk, and gets a signal soon after the fourth.
STOPPED = """
import os, signal, sys, threading
import fewmore.cli.parts
from fewmore.cli import main

number = int(sys.argv.pop(1))
signal.signal(signal.SIGINT, signal.default_int_handler)
written = []

class Stopped(fewmore.cli.parts.Parts):
    def flush(self):
        super().flush()
        written.append(self.rows)
        if len(written) == 4:
            threading.Timer(0.1, os.kill, (os.getpid(), number)).start()

fewmore.cli.parts.PART_SECONDS = 0
fewmore.cli.parts.Parts = Stopped
main()
"""


@pytest.fixture
def given(model: Path, photos: Callable[..., Path]) -> list[str]:
    """Make images of all kinds, some of which cannot be read; return what a command is given."""
    photos("many", {"wren": 7, "jay": 300})
    files = sorted(Path("many/wren").iterdir())
    files[4].write_bytes(b"no image")
    pack(Path("0.tar"), files, 9)
    pack(Path("1.tar"), files, 3)
    whole = Path("0.tar").read_bytes()
    Path("2.tar").write_bytes(whole[: len(whole) // 2])
    Path("list.txt").write_text(f"{files[0]}\nmany/gone.png\n")
    return ["many", "{0..2}.tar", "list.txt", f"file://{Path('many/wren').resolve()}"]


def pack(archive: Path, files: list[Path], copies: int) -> None:
    with tarfile.open(archive, "w") as tar:
        for copy in range(copies):
            for file in files:
                tar.add(file, f"{copy:04d}-{file.name}")


@pytest.fixture
def large(given: list[str]) -> list[str]:
    """Make archives that take a while."""
    pack(Path("large.tar"), sorted(Path("many/wren").iterdir()), COPIES)
    return ["large.tar"] * 4


@pytest.fixture
def cluster() -> Iterator[None]:
    """Start Ray with two cores on this machine."""
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init("local", num_cpus=2, **quiet)
    yield
    ray.shutdown()


def table(path: str) -> Any:
    return parquet.read_table(path)


def test_rows_are_those_of_this_machine(
    given: list[str], model: Path, fewmore: Fewmore, cluster: None
) -> None:
    for command in (["predict", "--top", "2"], ["embed"]):
        name = command[0]
        here = fewmore(*command, model, *given, "-o", f"{name}-here.parquet")
        there = fewmore(*command, model, *given, "-o", f"{name}-there.parquet", "--launcher", "ray")
        assert here[0] == there[0] == 1, "some images cannot be read"
        assert there[1] == here[1].replace("here", "there")
        rows = table(f"{name}-there.parquet")
        assert rows.equals(table(f"{name}-here.parquet"))
        errors = {row["image"]: row["error"] for row in rows.to_pylist() if row["error"]}
        assert "cannot be read as an image" in errors["many/wren/04.png"]
        assert "cannot be read beyond its 32 images" in errors["2.tar"]
        assert "many/gone.png" in errors
        assert len(rows) - len(errors) > 350
    assert not list(Path().glob("*.unfinished"))


def test_a_node_is_lost(
    large: list[str],
    model: Path,
    fewmore: Fewmore,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    from ray.cluster_utils import Cluster

    node_args = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(True, head_node_args={**node_args, "include_dashboard": False})
    second = cluster.add_node(**node_args)
    killed: list[int] = []
    write = Parts.write

    def write_and_kill(self: Parts, rows: Any, end: tuple[int, int]) -> None:
        write(self, rows, end)
        if not killed and not ray.available_resources().get("CPU"):  # both nodes work
            cluster.remove_node(second, allow_graceful=False)
            killed.append(end[0])

    fewmore("predict", model, *large, "-o", "here.parquet")
    monkeypatch.setattr(Parts, "write", write_and_kill)
    words = ("--launcher", "ray", "--address", cluster.address)
    try:
        code, out, _ = fewmore("predict", model, *large, "-o", "there.parquet", *words)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert killed
    assert killed[0] < len(large) - 1, "it was lost on the way"
    assert code == 1
    assert out.endswith(f"there.parquet: {7 * COPIES * len(large):,} images\n")
    check_rows(record_property)
    record_property("nodes lost, of 2", len(killed))


def test_a_command_that_was_killed_and_stopped_goes_on(
    large: list[str],
    model: Path,
    fewmore: Fewmore,
    record_property: Callable[[str, object], None],
) -> None:
    """Kill the command, press Ctrl-C in the next, and end it without Ray."""
    fewmore("predict", model, *large, "-o", "here.parquet")
    words = ["predict", str(model), *large, "-o", "there.parquet"]
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        written = count_parts()
        with Path("err.txt").open("wb") as err:
            command = [sys.executable, "-c", STOPPED, str(int(number)), *words]
            ended = subprocess.run(
                [*command, "--launcher", "ray", "--address", "local"], stderr=err
            )
        text = Path("err.txt").read_text()
        assert ended.returncode == code, text
        assert count_parts() > written
        assert ("going on after" in text) == (written > 0)
        assert not Path("there.parquet").exists()
    assert "the same command goes on from there" in text
    code, _, text = fewmore(*words)
    assert code == 1
    assert "going on after" in text
    check_rows(record_property)
    record_property("times killed or stopped", 2)


def check_rows(count: Callable[[str, object], None]) -> None:
    """Compare the rows of Ray with those of this machine, and count them."""
    here = table("here.parquet")
    there = table("there.parquet")
    pairs = zip(here.to_pylist(), there.to_pylist(), strict=False)
    count("images", len(here))
    count("rows by Ray", len(there))
    count("rows that are the local ones, in order", sum(a == b for a, b in pairs))
    assert there.equals(here)


def count_parts() -> int:
    return len(list(Path().glob("there.parquet.unfinished/part-*")))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"source": "another"}, "install the same code on all machines"),
        ({"file": "/no/such/image.png"}, "has no /no/such/image.png: put the images on a file"),
    ],
)
def test_a_worker_that_cannot_work_is_one_sentence(
    model: Path,
    fewmore: Fewmore,
    cluster: None,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    sentence: str,
) -> None:
    from fewmore.cli import ray_stream

    describe = ray_stream._describe_sender
    monkeypatch.setattr(
        ray_stream,
        "_describe_sender",
        lambda places: dataclasses.replace(describe(places), **change),
    )
    code, _, err = fewmore("predict", model, "photos", "-o", "out.parquet", "--launcher", "ray")
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err
    assert not list(Path().glob("out.parquet*"))
