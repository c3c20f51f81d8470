"""What commands take as photos: nested folders, split folders, manifests and broken files."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fewmore import IncrementalClassifier

Photos = Callable[..., Path]
Fewmore = Callable[..., tuple[int, str, str]]


def class_counts(model: str | Path) -> dict[str, int]:
    classes: dict[str, int] = IncrementalClassifier.load(model).info()["classes"]
    return classes


# Folders


@pytest.mark.usefixtures("small_pretrained")
def test_photos_in_sub_folders_of_a_class_count(photos: Photos, fewmore: Fewmore) -> None:
    folder = photos("photos", {"robin": 5, "wren": 5})
    (folder / "wren" / "2023" / "May").mkdir(parents=True)
    for name in ("03.png", "04.png"):
        shutil.move(folder / "wren" / name, folder / "wren" / "2023" / "May" / name)
    code, out, _ = fewmore("train", "photos")
    assert code == 0
    assert class_counts("photos.fewmore") == {"robin": 5, "wren": 5}
    assert "images in sub-folders count for their class too: in wren" in out


@pytest.mark.parametrize("output", ["out.csv", "out.parquet"])
def test_files_that_predict_leaves_out_are_counted(
    model: Path, photos: Photos, fewmore: Fewmore, output: str
) -> None:
    if output.endswith("parquet"):
        pytest.importorskip("pyarrow")
    folder = photos("holiday", {"wren": 2})
    for name in ("a.CR2", "b.cr2", "wren/c.nef", "notes.txt", "README", ".hidden.nef"):
        (folder / name).write_bytes(b"raw")
    code, out, err = fewmore("predict", model, "holiday", "-o", output)
    assert (code, out) == (0, f"{output}: 2 images\n")
    assert err == (
        "note: 3 files of other kinds left out (.cr2, .nef): save images of these as JPEG\n"
    )


@pytest.mark.parametrize("words", [["predict"], ["evaluate", "photos", "--unknown"]])
def test_the_folder_that_may_not_be_read_is_named(
    model: Path, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    secret = Path("holiday/secret")
    secret.mkdir(parents=True)
    scandir = os.scandir

    def refuse(folder: str) -> Any:
        if str(folder) == str(secret):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    command, *others = words
    code, _, err = fewmore(command, model, *others, "holiday")
    assert code == 2
    assert f"fewmore: {secret} cannot be read (Permission denied): check who may read it" in err


@pytest.mark.usefixtures("small_pretrained")
@pytest.mark.parametrize("test", ["test", "val"])
def test_a_split_folder_is_a_sentence(photos: Photos, fewmore: Fewmore, test: str) -> None:
    for part in ("train", test):
        photos(f"birds/{part}", {"robin": 4, "wren": 4})
    code, out, err = fewmore("train", "birds")
    assert (code, out) == (2, "")
    assert err == (
        f"fewmore: birds is split into train and {test}, and these are no classes: "
        f"give birds/train to train with, and birds/{test} to evaluate with\n"
    )


@pytest.mark.usefixtures("small_pretrained")
def test_classes_may_be_named_train_and_test(photos: Photos, fewmore: Fewmore) -> None:
    photos("photos", {"train": 4, "test": 4})
    assert fewmore("train", "photos")[0] == 0


# Broken files


@pytest.mark.usefixtures("small_pretrained")
def test_train_names_all_broken_photos_or_skips_them(photos: Photos, fewmore: Fewmore) -> None:
    folder = photos("photos", {"robin": 8, "wren": 8})
    broken = [f"photos/robin/{i:02}.png" for i in range(4)]
    broken += [f"photos/wren/{i:02}.png" for i in range(4)]
    for path in broken:
        (folder.parent / path).write_bytes(b"")
    code, out, err = fewmore("train", "photos")
    assert (code, out) == (2, "")
    stage, sentence, *lines = err.splitlines()
    assert stage == "checking images …"
    assert sentence.startswith("fewmore: 8 images cannot be read: replace them, or leave out")
    assert [line.split()[0] for line in lines] == broken
    code, out, _ = fewmore("train", "photos", "--skip-broken")
    assert code == 0
    assert all(path in out for path in broken)
    assert class_counts("photos.fewmore") == {"robin": 4, "wren": 4}


def test_learn_and_evaluate_skip_broken_photos(
    model: Path, photos: Photos, fewmore: Fewmore
) -> None:
    folder = photos("new", {"owl": 3})
    (folder / "owl" / "01.png").write_bytes(b"no image")
    code, out, _ = fewmore("learn", model, "new", "--skip-broken")
    assert code == 0
    assert (
        "learnt owl: 2 images\nnote: 1 broken image left out: new/owl/01.png (it is empty, or"
        in out
    )
    code, out, err = fewmore("evaluate", model, "new")
    assert (code, out) == (2, "")
    assert "fewmore: new/owl/01.png cannot be read as an image" in err
    code, out, _ = fewmore("evaluate", model, "new", "--skip-broken")
    assert code == 0
    assert "note: 1 broken image left out: new/owl/01.png" in out


# Manifests


@pytest.mark.usefixtures("small_pretrained")
@pytest.mark.parametrize("form", ["csv", ";", "\t", "jsonl"])
def test_manifests_instead_of_folders(photos: Photos, fewmore: Fewmore, form: str) -> None:
    kind = "jsonl" if form == "jsonl" else "csv"

    def write(name: str, folder: Path) -> str:
        rows = [
            (path.relative_to(folder.parent), path.parent.name)
            for path in sorted(folder.rglob("*.png"), reverse=True)
        ]
        if form != "jsonl":
            end = "," if form == "csv" else form
            lines = [f"label{end}path", *(f'"{label}"{end}"{path}"' for path, label in rows)]
        else:
            lines = [json.dumps({"path": str(path), "label": label}) for path, label in rows]
        (folder.parent / f"{name}.{kind}").write_text("\n".join(lines) + "\n")
        return f"{name}.{kind}"

    train = write("birds", photos("photos", {"robin": 5, "wren": 5}))
    assert fewmore("train", train)[0] == 0
    assert class_counts("birds.fewmore") == {"robin": 5, "wren": 5}
    assert fewmore("learn", "birds.fewmore", write("new", photos("new", {"owl, eagle": 3})))[0] == 0
    assert class_counts("birds.fewmore")["owl, eagle"] == 3
    test = write("test", photos("test", {"robin": 2, "owl, eagle": 2}))
    code, out, _ = fewmore("evaluate", "birds.fewmore", test, "--json")
    assert (code, json.loads(out)["images"]) == (0, 4)
    code, out, _ = fewmore("predict", "birds.fewmore", test, "--jsonl")
    assert len(out.splitlines()) == 4


def test_predict_takes_a_list_of_paths(model: Path, fewmore: Fewmore) -> None:
    Path("list.txt").write_text("photos/wren/01.png\n\nphotos/wren/00.png\n")
    code, out, _ = fewmore("predict", model, "list.txt", "photos/jay/00.png", "--jsonl")
    assert code == 0
    assert [json.loads(line)["image"] for line in out.splitlines()] == [
        "photos/wren/01.png",
        "photos/wren/00.png",
        "photos/jay/00.png",
    ]


def test_a_file_that_is_no_list_does_not_stop_the_others(model: Path, fewmore: Fewmore) -> None:
    Path("photo.txt").write_bytes(Path("photos/wren/00.png").read_bytes())
    Path("bad.txt").write_bytes(b"\xff\xfe\xff")
    words = ("photo.txt", "bad.txt", "gone.txt", "photos/jay/00.png", "--jsonl")
    code, out, err = fewmore("predict", model, *words)
    assert code == 1
    assert ["error" in json.loads(line) for line in out.splitlines()] == [False, True, True, False]
    assert "fewmore: bad.txt cannot be read as an image" in err
    assert "fewmore: gone.txt is not there" in err


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", "file,kind\na.jpg,robin\n", "line 2 of a.csv has no image (file, kind)"),
        ("a.csv", "path,label\na.jpg,\n", "line 2 of a.csv has no label"),
        ("a.csv", "path,label\na.jpg, \n", "line 2 of a.csv has no label"),
        ("a.csv", "path,label\n", "a.csv names no images"),
        ("a.jsonl", '{"path": "a.jpg"\n', "line 1 of a.jsonl is not JSON"),
        ("a.jsonl", "[1]\n", "line 1 of a.jsonl has no image (no columns)"),
        ("gone.csv", None, "gone.csv cannot be read (No such file or directory)"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_a_sentence(
    model: Path, fewmore: Fewmore, name: str, content: str | None, complaint: str
) -> None:
    if content is not None:
        Path(name).write_text(content)
    before = model.read_bytes()
    code, out, err = fewmore("learn", model, name)
    assert (code, out) == (2, "")
    assert err.startswith(f"fewmore: {complaint}")
    assert model.read_bytes() == before


@pytest.mark.usefixtures("small_pretrained")
def test_folders_one_level_too_deep_are_said(photos: Photos, fewmore: Fewmore) -> None:
    photos("deep/birds", {"robin": 4, "wren": 4})
    code, out, err = fewmore("train", "deep", "-o", "d.fewmore")
    assert (code, out) == (2, "")
    assert err == (
        "fewmore: the only sub-folder, birds, has 2 folders with images: "
        "did you mean `fewmore train deep/birds`?\n"
    )
    photos("deep/fish", {"pike": 4, "eel": 4})
    code, out, _ = fewmore("train", "deep", "-o", "d.fewmore")
    assert code == 0
    assert "in birds, fish; the 4 sub-folders are no classes" in out
    found = json.loads(fewmore("check", "deep", "--json")[1])["findings"]
    assert [(one["message"], one["classes"]) for one in found if one["kind"] == "sub-folders"] == [
        ("all photos are in 2 sub-folders: robin, wren", ["birds"]),
        ("all photos are in 2 sub-folders: eel, pike", ["fish"]),
    ]


@pytest.mark.usefixtures("small_pretrained")
def test_files_of_other_kinds_are_said_and_side_files_are_not(
    photos: Photos, fewmore: Fewmore
) -> None:
    folder = photos("photos", {"robin": 4, "wren": 4})
    for name in ("robin/a.CR2", "robin/b.nef", "wren/c.cr2", "wren/Thumbs.db", "wren/a.xmp"):
        (folder / name).touch()
    (folder / "wren" / ".DS_Store").touch()
    note = "note: 3 files of other kinds left out (.cr2, .nef) in robin, wren: save them as JPEG"
    assert note in fewmore("check", "photos")[1].splitlines()
    code, out, _ = fewmore("train", "photos")
    assert code == 0
    assert note.removeprefix("note: ") in out
    for path in [*folder.rglob("*.CR2"), *folder.rglob("*.cr2"), *folder.rglob("*.nef")]:
        path.unlink()
    assert "left out" not in fewmore("check", "photos")[1]


@pytest.mark.usefixtures("small_pretrained")
def test_images_beside_the_class_folders_are_said(photos: Photos, fewmore: Fewmore) -> None:
    folder = photos("photos", {"robin": 4, "wren": 4})
    for name in ("a.png", "b.png"):
        shutil.copy(folder / "wren" / "00.png", folder / name)
    note = "2 images of no class left out (a.png, b.png): put each into a class's folder"
    assert f"note: {note}" in fewmore("check", "photos")[1].splitlines()
    code, out, _ = fewmore("train", "photos")
    assert code == 0
    assert note in out


@pytest.mark.usefixtures("small_pretrained")
def test_an_empty_class_folder_is_a_finding(photos: Photos, fewmore: Fewmore) -> None:
    (photos("photos", {"robin": 4, "wren": 4}) / "owl").mkdir()
    (Path("photos") / "owl" / "a.CR2").touch()
    code, out, _ = fewmore("check", "photos", "--json")
    result = json.loads(out)
    assert (code, result["classes"]["owl"]) == (0, 0)
    (empty,) = [one for one in result["findings"] if one["kind"] == "empty"]
    assert empty["message"] == "no photos (only files of other kinds: .cr2)"
    assert empty["classes"] == ["owl"]
    assert "class folder photos/owl has no images" in fewmore("train", "photos")[2]


# Names that are no UTF-8


@pytest.mark.usefixtures("small_pretrained")
def test_a_name_that_is_no_utf_8_is_printed(photos: Photos, fewmore: Fewmore) -> None:
    folder = photos("photos", {"robin": 5, "wren": 5})
    odd = folder / "wren" / os.fsdecode(b"jay\xe9.png")
    try:
        shutil.copy(folder / "wren" / "00.png", odd)
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    name = "photos/wren/jay\\udce9.png"
    code, out, _ = fewmore("train", "photos", "-o", "birds.fewmore")
    assert code == 0
    assert f"1 duplicate of images in the same class, not counted again: {name}" in out
    assert fewmore("info", "birds.fewmore")[0] == 0
    for form in ("csv", "json", "jsonl"):
        assert fewmore("predict", "birds.fewmore", "photos", "-o", f"out.{form}")[0] == 0
        text = Path(f"out.{form}").read_text(encoding="utf-8")
        assert "jay\\udce9.png".replace("\\", "\\" if form == "csv" else "\\\\") in text
    assert fewmore("predict", "birds.fewmore", odd, "--sort-into", "sorted")[0] == 0
    assert len(list(Path("sorted").glob("*/jay*.png"))) == 1
    assert fewmore("predict", "birds.fewmore", name)[0] == 0, "as it was printed"
    code, out, _ = fewmore("check", "photos", "--html", "check.html")
    assert code == 0
    assert "wren/jay\\udce9.png" in out
    shutil.move(odd, folder / "robin")  # a mistake
    assert fewmore("evaluate", "birds.fewmore", "photos", "--html", "mistakes.html")[0] == 0
    page = Path("mistakes.html").read_text(encoding="utf-8")
    assert "robin/jay\\udce9.png" in page
    assert "no image" not in page


@pytest.mark.usefixtures("small_pretrained")
def test_rows_of_parquet_with_a_name_that_is_no_utf_8(model: Path, fewmore: Fewmore) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    odd = Path("photos/wren") / os.fsdecode(b"jay\xe9.png")
    try:
        odd.write_bytes(b"no image")
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    for command in ("predict", "embed"):
        assert fewmore(command, model, odd, "photos", "-o", f"{command}.parquet")[0] == 1
        row = parquet.read_table(f"{command}.parquet").to_pylist()[0]
        assert row["image"] == "photos/wren/jay\\udce9.png"
        assert row["error"].startswith("photos/wren/jay\\udce9.png cannot be read")
