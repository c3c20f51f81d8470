"""What `fewmore predict` writes: rows as they come, files in four formats, and sorted copies."""

import csv
import errno
import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fewmore import IncrementalClassifier, Prediction

Photos = Callable[..., Path]
Fewmore = Callable[..., tuple[int, str, str]]
Predict = Callable[..., list[Prediction]]


@pytest.fixture
def on_predict(monkeypatch: pytest.MonkeyPatch) -> Callable[[Predict], None]:
    """Return a function that puts another one in place of `predict_features`."""

    def replace_predict(other: Predict) -> None:
        monkeypatch.setattr(IncrementalClassifier, "predict_features", other)

    return replace_predict


@pytest.fixture
def two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewmore.classifier.embedding.BATCH_SIZE", {"cpu": 2})
    monkeypatch.setattr("fewmore.cli.stream_job.FEW", 2)


def interrupt_after(calls: int) -> Predict:
    """Return a `predict_features` that is interrupted after so many calls."""
    predict = IncrementalClassifier.predict_features
    left = calls

    def interrupted(self: IncrementalClassifier, images: Any, top: int = 1) -> list[Prediction]:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        return predict(self, images, top)

    return interrupted


def names_in(form: str, text: str) -> list[str]:
    if form == "csv":
        return [row["name"] for row in csv.DictReader(io.StringIO(text))]
    rows = json.loads(text) if form == "json" else [json.loads(x) for x in text.splitlines()]
    return [row["name"] for row in rows]


@pytest.mark.usefixtures("two_at_a_time")
@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_what_was_predicted_stays_after_an_interruption(
    model: Path, fewmore: Fewmore, on_predict: Callable[[Predict], None], form: str
) -> None:
    on_predict(interrupt_after(2))
    code, out, err = fewmore("predict", model, "photos/wren", f"--{form}")
    assert code == 130
    assert err.endswith("stopped after 4 of 5 images\n")
    assert names_in(form, out) == ["wren"] * 4


@pytest.mark.usefixtures("two_at_a_time")
def test_the_table_of_an_interrupted_prediction_is_printed(
    model: Path, fewmore: Fewmore, on_predict: Callable[[Predict], None]
) -> None:
    on_predict(interrupt_after(1))
    code, out, _ = fewmore("predict", model, "photos/wren")
    assert code == 130
    assert out.count("photos/wren/") == 2


@pytest.mark.usefixtures("two_at_a_time")
def test_rows_are_written_as_they_come(
    model: Path, fewmore: Fewmore, on_predict: Callable[[Predict], None]
) -> None:
    predict = IncrementalClassifier.predict_features
    rows_before = []

    def count_rows(self: IncrementalClassifier, images: Any, top: int = 1) -> list[Prediction]:
        rows_before.append(len(Path("out.jsonl").read_text().splitlines()))
        return predict(self, images, top)

    on_predict(count_rows)
    assert fewmore("predict", model, "photos/wren", "-o", "out.jsonl")[0] == 0
    assert rows_before == [0, 2, 4]


@pytest.mark.usefixtures("two_at_a_time")
def test_progress_goes_to_stderr(model: Path, fewmore: Fewmore) -> None:
    code, out, err = fewmore("predict", model, "photos/wren", "--csv")
    assert (code, err) == (0, "predicting …\n")
    assert len(out.splitlines()) == 6


@pytest.fixture
def all_unknown(on_predict: Callable[[Predict], None]) -> None:
    """Let every image be unknown."""
    predict = IncrementalClassifier.predict_features

    def predict_unknown(self: IncrementalClassifier, images: Any, top: int = 1) -> list[Prediction]:
        return [replace(one, known=False) for one in predict(self, images, top)]

    on_predict(predict_unknown)


@pytest.mark.usefixtures("all_unknown")
def test_unknown_images_are_named_none_of_these(model: Path, fewmore: Fewmore) -> None:
    _, out, _ = fewmore("predict", model, "photos/wren/00.png", "--csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["name"], row["known"], row["nearest"]) == ("none of these", "false", "wren")
    assert float(row["confidence"]) > 0.3, "that of the nearest class"
    for form in ("json", "jsonl"):
        _, out, _ = fewmore("predict", model, "photos/wren/00.png", f"--{form}")
        assert names_in(form, out) == ["none of these"]
    assert '"classes": [{"name": "wren"' in out


def test_files_in_all_formats_hold_the_same(model: Path, fewmore: Fewmore) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    Path("bad.jpg").write_bytes(b"no image")
    for form in ("csv", "json", "jsonl", "parquet"):
        code, out, _ = fewmore(
            "predict", model, "photos", "bad.jpg", "-o", f"out.{form}", "--top", 2
        )
        assert (code, out) == (1, f"out.{form}: 15 images\n")
    table = parquet.read_table("out.parquet").to_pylist()
    with open("out.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    nested = json.loads(Path("out.json").read_text())
    assert nested == [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert len(table) == len(rows) == len(nested) == 15
    assert list(table[0]) == list(rows[0])
    for one, row, record in zip(table[:-1], rows, nested, strict=False):
        assert one["image"] == row["image"] == record["image"]
        assert one["name"] == row["name"] == record["name"]
        assert one["confidence_2"] == float(row["confidence_2"])
        assert one["confidence_2"] == record["classes"][1]["confidence"]
    assert "cannot be read" in table[-1]["error"]
    assert table[-1]["name"] is None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-o", "there.csv"], "-o there.csv is there already"),
        (["-o", "out.txt"], "-o out.txt does not end in .csv, .json, .jsonl or .parquet"),
        (["-o", "out.csv", "--jsonl"], "--jsonl and -o were given together"),
        (["-o", "no/out.csv"], "-o no/out.csv cannot be written (No such file or directory)"),
    ],
)
def test_an_output_that_cannot_be_is_a_sentence(
    model: Path, fewmore: Fewmore, words: list[str], complaint: str
) -> None:
    Path("there.csv").write_text("mine")
    code, out, err = fewmore("predict", model, "photos", *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"fewmore: {complaint}")
    assert Path("there.csv").read_text() == "mine"


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_file_that_cannot_be_read_is_not_blamed_on_the_output(
    model: Path, fewmore: Fewmore, on_predict: Callable[[Predict], None], form: str
) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")

    def refuse(*_: object, **__: object) -> list[Prediction]:
        raise PermissionError(errno.EACCES, "Permission denied", "secret")

    on_predict(refuse)
    code, _, err = fewmore("predict", model, "photos", "-o", f"out.{form}")
    assert code == 2
    assert "fewmore: secret cannot be used (Permission denied): check" in err
    assert not list(Path().glob("out.*"))


def test_a_row_for_an_image_whose_path_cannot_be_looked_at(model: Path, fewmore: Fewmore) -> None:
    name = "a" * 300 + ".png"
    code, out, _ = fewmore("predict", model, name, "photos/wren/00.png", "--csv")
    assert code == 1
    first, second = csv.DictReader(io.StringIO(out))
    assert first["error"].startswith(f"{name} cannot be read as an image (File name too long)")
    assert second["name"] == "wren"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_a_full_disk_is_blamed_on_the_output(
    model: Path, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    opened = Path.open

    def full(self: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if mode != "x":
            return opened(self, mode, *args, **options)
        return opened(Path("/dev/full"), "w", *args, **options)

    monkeypatch.setattr(Path, "open", full)
    code, _, err = fewmore("predict", model, "photos", "-o", f"out.{form}")
    assert code == 2
    assert f"-o out.{form} cannot be written (No space left on device): give another" in err


@pytest.mark.parametrize("form", ["csv", "json", "jsonl", "parquet"])
def test_once_there_is_room_the_same_command_works(
    model: Path, fewmore: Fewmore, form: str
) -> None:
    resource = pytest.importorskip("resource", reason="this system limits no file's size")
    if form == "parquet":
        pytest.importorskip("pyarrow")
    words = ("predict", model, "photos/wren/00.png", "-o", f"out.{form}")
    assert fewmore(*words[:3])[0] == 0, "what is cached is there"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))  # bytes: a part of a row
    try:
        code, _, err = fewmore(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2
    assert f"-o out.{form} cannot be written (File too large): give another file" in err
    assert fewmore(*words)[:2] == (0, f"out.{form}: 1 image\n")


def test_parquet_without_its_package_is_a_sentence(
    model: Path, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = fewmore("predict", model, "photos", "-o", "out.parquet")
    assert code == 2
    assert err.endswith("pip install 'fewmore[parquet]'\n")
    assert not Path("out.parquet").exists()


def test_sorting_into_folders_overwrites_nothing(
    model: Path, photos: Photos, fewmore: Fewmore
) -> None:
    fewmore("rename", model, "jay", "jay/blue")
    photos("holiday", {"wren": 2})
    Path("sorted/wren").mkdir(parents=True)
    Path("sorted/wren/00.png").write_bytes(b"mine")
    words = ("predict", model, "photos", "holiday", "--sort-into", "sorted")
    assert fewmore(*words)[0] == 0
    assert Path("sorted/wren/00.png").read_bytes() == b"mine"
    copies = sorted(str(path) for path in Path("sorted").rglob("*.png"))
    assert len(copies) == 14 + 2 + 1, "each of the files with the same name has its copy"
    assert {Path(path).parent.name for path in copies} == {"robin", "wren", "jay_blue"}
    assert Path("photos/wren/00.png").exists()
    assert fewmore(*words)[0] == 0
    assert sorted(str(path) for path in Path("sorted").rglob("*.png")) == copies, "no copy twice"


@pytest.mark.usefixtures("two_at_a_time")
def test_what_was_not_copied_is_copied_when_the_command_goes_on(
    model: Path, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    words = ("predict", model, "photos", "-o", "out.parquet", "--sort-into", "sorted")
    copy = shutil.copy2
    left = 5

    def full(source: Path, target: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            target.write_bytes(source.read_bytes()[:50])
            raise OSError(errno.ENOSPC, "No space left on device")
        copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copy2", full)
        code, _, err = fewmore(*words)
    assert code == 2
    assert "cannot be copied (No space left on device)" in err
    originals = {path.read_bytes() for path in Path("photos").rglob("*.png")}
    copies = [path.read_bytes() for path in Path("sorted").rglob("*") if path.is_file()]
    assert len(copies) == 5
    assert originals.issuperset(copies), "no part of an image"
    assert fewmore(*words)[0] == 0
    assert len(list(Path("sorted").glob("*/*.png"))) == len(list(Path("photos").glob("*/*.png")))


@pytest.mark.usefixtures("all_unknown")
def test_unknown_images_are_sorted_too(model: Path, fewmore: Fewmore) -> None:
    assert fewmore("predict", model, "photos/wren", "--sort-into", "sorted")[0] == 0
    assert len(list(Path("sorted/none of these").iterdir())) == 5
