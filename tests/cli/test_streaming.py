"""Test that `predict` and `embed` go through any number of images, and go on where they stopped."""

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from fewmore import IncrementalClassifier

parquet = pytest.importorskip("pyarrow.parquet")
Fewmore = Callable[..., tuple[int, str, str]]


def rows(path: str) -> list[dict[str, Any]]:
    return parquet.read_table(path).to_pylist()


def pack(archive: str | Path, files: list[Path]) -> None:
    with tarfile.open(archive, "w") as tar:
        for file in files:
            tar.add(file, file.name)


@pytest.fixture
def wrens(photos: Callable[..., Path]) -> list[Path]:
    """Make eleven images, of which the fifth cannot be read."""
    photos("many", {"wren": 11})
    files = sorted(Path("many/wren").iterdir())
    files[4].write_bytes(b"no image")
    return files


@pytest.fixture
def two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewmore.classifier.embedding.BATCH_SIZE", {"cpu": 2})
    monkeypatch.setattr("fewmore.classifier.streaming.CHUNK", 2)


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that lets Ctrl-C be pressed at a chunk."""
    predict = IncrementalClassifier.predict_features

    def stop_at(chunk: int) -> None:
        left = chunk

        def press(self: IncrementalClassifier, features: Any, top: int = 1) -> Any:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            return predict(self, features, top)

        monkeypatch.setattr(IncrementalClassifier, "predict_features", press)

    return stop_at


@pytest.mark.usefixtures("two_at_a_time")
@pytest.mark.parametrize("form", ["files", "archives"])
def test_a_stopped_prediction_goes_on(
    model: Path, fewmore: Fewmore, wrens: list[Path], stop_at: Callable[[int], None], form: str
) -> None:
    given = "many"
    if form == "archives":
        pack("many-0.tar", wrens[:7])
        pack("many-1.tar", wrens[7:])
        given = "many-{0..1}.tar"
    assert fewmore("predict", model, given, "-o", "whole.parquet")[0] == 1
    words = ("predict", model, given, "--out", "out.parquet")
    for chunk in (2, 1):
        stop_at(chunk)
        code, _, err = fewmore(*words)
        assert code == 130
        assert "the same command goes on from there" in err
        assert not Path("out.parquet").exists()
    Path("many/wren/zz.png").write_bytes(wrens[0].read_bytes())  # too late to be listed
    stop_at(99)
    code, out, err = fewmore(*words)
    assert (code, out) == (1, "out.parquet: 11 images\n")
    assert "going on after 6 images" in err
    assert rows("out.parquet") == rows("whole.parquet")
    names = [Path(row["image"]).name for row in rows("out.parquet")]
    assert names == [file.name for file in wrens]
    (broken,) = [row for row in rows("out.parquet") if row["error"]]
    assert Path(broken["image"]).name == wrens[4].name
    assert broken["name"] is None
    assert not list(Path().glob("*.unfinished")) + list(Path().glob("*.lock"))


@pytest.mark.usefixtures("two_at_a_time")
def test_parts_of_another_command_are_refused(
    model: Path, fewmore: Fewmore, wrens: list[Path], stop_at: Callable[[int], None]
) -> None:
    stop_at(2)
    fewmore("predict", model, "many", "-o", "out.parquet")
    stop_at(99)
    code, _, err = fewmore("predict", model, "many", "-o", "out.parquet", "--top", 2)
    assert code == 2
    assert "out.parquet.unfinished was begun with another top (1, now 2)" in err
    code, _, err = fewmore("embed", model, "many", "-o", "out.parquet")
    assert code == 2
    assert "was begun with another command (predict, now embed)" in err
    assert fewmore("predict", model, "many", "-o", "out.parquet")[0] == 1
    assert len(rows("out.parquet")) == 11


@pytest.mark.parametrize("output", [(), ("-o", "a.parquet"), ("-o", "a.csv"), ("-o", "a.json")])
def test_archives_without_images_are_a_sentence(
    model: Path, fewmore: Fewmore, output: tuple[str, ...]
) -> None:
    Path("note.md").write_text("no image")
    for name in ("a.tar", "b.tar"):
        pack(name, [Path("note.md")])
    code, out, err = fewmore("predict", model, "a.tar", *output)
    assert (code, out) == (2, "")
    assert "a.tar has no images in it: give archives that have some (" in err
    assert list(Path().glob("a.*")) == [Path("a.tar")]
    assert "a.tar, b.tar have no images in them" in fewmore("predict", model, "?.tar")[2]


def test_what_cannot_begin_leaves_nothing(model: Path, fewmore: Fewmore) -> None:
    Path("empty").mkdir()
    code, _, err = fewmore("predict", model, "empty", "-o", "out.parquet")
    assert code == 2
    assert "empty has no images in it" in err
    code, _, err = fewmore("predict", model, "photos", "-o", "no/out.parquet")
    assert code == 2
    assert "no/out.parquet" in err
    code, _, err = fewmore("embed", model, "photos", "-o", "out.csv")
    assert (code, "use -o out.parquet" in err) == (2, True)
    assert not list(Path().glob("out*"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("-o a.parquet --launcher rai", "no launcher is named 'rai': did you mean ray?"),
        ("-o a.parquet --launcher slurm", "does not embed images: give local or ray"),
        ("-o a.parquet --address auto", "leave it out, or add --launcher ray"),
        ("-o a.parquet --launcher ray --workers 2", "--workers 2 is not for --launcher ray"),
        ("-o a.csv --launcher ray", "--launcher ray writes Parquet: use -o NAME.parquet"),
        ("--launcher ray", "--launcher ray writes Parquet: use -o NAME.parquet"),
    ],
)
def test_what_does_not_go_with_a_launcher(
    model: Path, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch, words: str, sentence: str
) -> None:
    monkeypatch.setattr("fewmore.research.launchers.find_spec", lambda package: package)
    code, _, err = fewmore("predict", model, "photos", *words.split())
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert not list(Path().glob("a.*"))


@pytest.mark.parametrize("command", ["predict", "embed"])
def test_ray_that_is_not_installed_is_named(
    model: Path, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("fewmore.research.launchers.find_spec", lambda package: None)
    code, _, err = fewmore(command, model, "photos", "-o", "a.parquet", "--launcher", "ray")
    assert code == 2
    assert 'pip install "fewmore[cluster]"' in err
    assert not list(Path().glob("a.*"))


def test_embedding_from_an_address(model: Path, fewmore: Fewmore, wrens: list[Path]) -> None:
    system = fsspec.filesystem("memory")
    for file in wrens[:6]:
        system.pipe(f"/birds/{file.name}", file.read_bytes())
    code, out, err = fewmore("embed", model, "memory://birds", "-o", "out.parquet")
    assert (code, out) == (1, "out.parquet: 6 images\n")
    assert "1 image cannot be read" in err
    table = rows("out.parquet")
    assert table[4]["features"] is None
    assert "cannot be read as an image" in table[4]["error"]
    expected = IncrementalClassifier.load(model).embed([wrens[i] for i in (0, 1, 2, 3, 5)])
    features = [row["features"] for row in table if row["error"] is None]
    assert np.allclose(features, expected.numpy(), atol=1e-5)
    code, _, err = fewmore("predict", model, "memory://birds", "--sort-into", "sorted")
    assert (code, "--sort-into copies image files of this machine" in err) == (2, True)


def test_processes_give_the_same_and_survive_a_kill(
    model: Path, fewmore: Fewmore, wrens: list[Path]
) -> None:
    """Kill a process in the middle, when parts are there; its workers end, and another goes on."""
    pack("many.tar", wrens)
    given = [str(Path("many.tar"))] * 40
    command = [sys.executable, "-c", "import fewmore.cli.parts as p; p.PART_SECONDS = 0;"]
    command[-1] += "from fewmore.cli import main; main()"
    words = ["predict", str(model), *given, "-o", "out.parquet", "--workers", "1"]
    process = subprocess.Popen([*command, *words], start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not list(Path().glob("out.parquet.unfinished/part-*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 60
    while _is_group_alive(process.pid):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)
    code, out, _ = fewmore(*words[:-2])
    assert (code, out) == (1, "out.parquet: 440 images\n")
    images = [row["image"] for row in rows("out.parquet")]
    assert images == [f"many.tar/{file.name}" for file in wrens] * 40


def _is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
