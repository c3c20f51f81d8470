"""The commands for model files, as a person types them."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fewmore import IncrementalClassifier, Prediction

Photos = Callable[..., Path]
Fewmore = Callable[..., tuple[int, str, str]]

BASE = {"robin": 5, "wren": 5, "jay": 4}


def class_counts(model: Path) -> dict[str, int]:
    classes: dict[str, int] = IncrementalClassifier.load(model).info()["classes"]
    return classes


# train


@pytest.mark.usefixtures("small_pretrained")
def test_train_says_what_it_chose_and_what_to_type_next(photos: Photos, fewmore: Fewmore) -> None:
    photos("photos", BASE)
    code, out, err = fewmore("train", "photos", "-o", "my birds.fewmore")
    assert code == 0
    assert err.splitlines()[0] == "embedding images …"
    assert class_counts(Path("my birds.fewmore")) == dict(sorted(BASE.items()))
    lines = out.splitlines()
    assert lines[0].startswith("my birds.fewmore: "), "stages go to stderr"
    assert "classes        3, from 14 images in 1 session" in out
    assert "resnet8, weights: imagenet; 64 features an image" in out
    for word in (
        "my birds.fewmore: ",
        "classifier ",
        "accuracy ",
        "calibration error ",
        "none of these ",
        "MB",
        "classes are compared by ",
    ):
        assert word in out
    assert "Now type: fewmore predict 'my birds.fewmore' IMAGE…" in lines
    # An existing file is not replaced.
    before = Path("my birds.fewmore").read_bytes()
    code, out, err = fewmore("train", "photos", "-o", "my birds.fewmore")
    assert (code, out) == (2, "")
    assert err.startswith("fewmore: my birds.fewmore is there already")
    assert "--force" in err
    assert Path("my birds.fewmore").read_bytes() == before
    shutil.copy("my birds.fewmore", "photos.fewmore")
    assert fewmore("train", "photos", "--seed", 1, "--force")[0] == 0
    assert Path("photos.fewmore").read_bytes() != before, "the folder's name is the default"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "nowhere is not there"),
        (["photos", "-o", "no/such/a.fewmore"], "-o no/such/a.fewmore: there is no folder no/such"),
        (["photos", "-o", "photos"], "-o photos is a folder"),
        (["photos", "--backbone", "mobilnet"], "no backbone with ImageNet weights is named"),
        (["photos", "--backbone", "mirrored:mobilnet"], "no backbone with ImageNet weights is"),
        (["photos", "--weights", "none.pth"], "there is no weight file none.pth"),
        (["photos", "--device", "tpu"], "device 'tpu' cannot be used"),
    ],
)
@pytest.mark.usefixtures("small_pretrained")
def test_train_refuses_with_a_sentence(
    photos: Photos, fewmore: Fewmore, tmp_path: Path, words: list[str], complaint: str
) -> None:
    photos("photos", BASE)
    code, _, err = fewmore("train", *words)
    assert code == 2
    assert err.startswith(f"fewmore: {complaint}")
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("*.fewmore"))


@pytest.mark.usefixtures("small_pretrained")
def test_train_with_mirror_images(photos: Photos, fewmore: Fewmore) -> None:
    photos("photos", BASE)
    code, out, _ = fewmore("train", "photos", "--backbone", "mirrored:resnet8", "-o", "a.fewmore")
    assert code == 0
    assert "mirrored:resnet8 with ImageNet weights" in out
    code, out, _ = fewmore("info", "a.fewmore")
    assert code == 0
    assert "mirrored:resnet8, weights: imagenet; 64 features an image" in out
    assert json.loads(fewmore("info", "a.fewmore", "--json")[1])["backbone"] == "mirrored:resnet8"
    code, out, _ = fewmore("card", "a.fewmore")
    assert (code, "are computed by mirrored:resnet8 " in out) == (0, True), out
    photo = next(Path("photos").rglob("*.png"))
    code, out, _ = fewmore("predict", "a.fewmore", photo)
    assert (code, photo.parent.name in out) == (0, True), out


@pytest.mark.usefixtures("small_pretrained")
def test_train_checks_first_whether_it_may_write(
    fewmore: Fewmore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    code, out, err = fewmore("train", "photos", "-o", "a.fewmore")
    assert (code, out) == (2, "")
    assert err.startswith(f"fewmore: -o a.fewmore: you may not write into the folder {tmp_path}")


# learn, forget, rename, undo


def test_learn_a_folder_of_classes(model: Path, photos: Photos, fewmore: Fewmore) -> None:
    photos("new", {"owl": 3, "robin": 2})
    code, out, err = fewmore("learn", model, "new")
    assert (code, err) == (0, "")
    assert "learnt owl: 3 images\nrefined robin: 7 images\n" in out
    assert out.endswith("birds.fewmore: 4 classes; take it back with: fewmore undo birds.fewmore\n")
    assert class_counts(model) == {"jay": 4, "robin": 7, "wren": 5, "owl": 3}


def test_learn_images_of_one_class(model: Path, photos: Photos, fewmore: Fewmore) -> None:
    folder = photos("new", {"okapi [x]": 4})
    first, *rest = sorted(folder.rglob("*.png"))
    assert fewmore("learn", model, "--name", "okapi [x]", first)[0] == 0
    code, out, _ = fewmore("learn", model, "--name", "okapi [x]", *rest, first)
    assert code == 0
    assert out.startswith(f"refined okapi [x]: 4 images\nnote: {first} is a duplicate")
    code, out, _ = fewmore("learn", model, "--name", "okapi [x]", folder / "okapi [x]")
    assert out.endswith("birds.fewmore: nothing new was learnt, and it is as it was\n")
    assert class_counts(model)["okapi [x]"] == 4


def test_learn_is_all_or_nothing(model: Path, photos: Photos, fewmore: Fewmore) -> None:
    folder = photos("new", {"owl": 3, "tern": 3})
    (folder / "tern" / "bad.jpg").write_bytes(b"no image")
    before = model.read_bytes()
    code, out, err = fewmore("learn", model, "new")
    assert (code, out) == (2, "")
    assert err.startswith("fewmore: new/tern/bad.jpg cannot be read as an image")
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["new/owl"], "new/owl has images straight in it"),
        (["new/owl/00.png"], "new/owl/00.png is an image"),
        (["new/owl/00.png", "new/owl/01.png"], "2 places were given without a name"),
        (["nowhere"], "nowhere is not there"),
        (["--name", "owl", "nowhere.jpg"], "nowhere.jpg is not there"),
        (["--name", " ", "new/owl"], "a class's name must not be empty"),
        (["--name", "owl", "new"], "new has no images straight in it"),
    ],
)
def test_learn_refuses_with_a_sentence(
    model: Path, photos: Photos, fewmore: Fewmore, words: list[str], complaint: str
) -> None:
    photos("new", {"owl": 2})
    before = model.read_bytes()
    code, out, err = fewmore("learn", model, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"fewmore: {complaint}")
    assert model.read_bytes() == before


def test_forget_rename_and_undo(model: Path, fewmore: Fewmore) -> None:
    assert fewmore("rename", model, "robin", "European robin")[:2] == (
        0,
        "renamed robin to European robin; take it back with: fewmore undo birds.fewmore\n",
    )
    code, out, _ = fewmore("forget", model, "wren", "jay", "wren")
    assert (code, out) == (
        0,
        "forgot wren, jay; birds.fewmore: 1 class; take it back with: fewmore undo birds.fewmore\n",
    )
    assert class_counts(model) == {"European robin": 5}
    code, out, _ = fewmore("undo", model)
    assert out.startswith("undone: the forgetting of wren, jay (")
    assert out.endswith("); birds.fewmore: 3 classes\n")
    assert fewmore("undo", model)[0] == 0
    assert class_counts(model) == {"jay": 4, "robin": 5, "wren": 5}
    code, out, err = fewmore("undo", model)
    assert (code, out) == (2, "")
    assert err.startswith("fewmore: there is nothing to undo")
    assert "'robbin': did you mean robin?" in fewmore("forget", model, "robbin")[2]
    assert fewmore("rename", model, "robin", "wren")[2].startswith(
        "fewmore: 'wren' is the name of a class already"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["learn", "{}", "x"],
        ["predict", "{}", "x"],
        ["forget", "{}", "x"],
        ["rename", "{}", "x", "y"],
        ["undo", "{}"],
    ],
)
def test_a_model_file_that_is_not_there(fewmore: Fewmore, tmp_path: Path, words: list[str]) -> None:
    code, out, err = fewmore(*(word.format("gone.fewmore") for word in words))
    assert (code, out) == (2, "")
    assert err.startswith("fewmore: there is no model file gone.fewmore")
    assert not list(tmp_path.iterdir())


def test_two_processes_that_learn_at_once_both_land(model: Path, photos: Photos) -> None:
    names = ("owl", "tern")
    photos("new", dict.fromkeys(names, 2))
    commands = [
        [sys.executable, "-m", "fewmore", "learn", str(model), "--name", name, f"new/{name}"]
        for name in names
    ]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, out + err
        assert err in ("", f"waiting for another process that changes {model} …\n")
    assert class_counts(model) == {"jay": 4, "robin": 5, "wren": 5, "owl": 2, "tern": 2}
    assert IncrementalClassifier.load(model).version == 3


# predict


def test_predict_an_image_and_a_folder(model: Path, photos: Photos, fewmore: Fewmore) -> None:
    photos("holiday", {"wren": 2, "robin": 1})
    code, out, err = fewmore("predict", model, "holiday", "holiday/robin/00.png")
    assert (code, err) == (0, "")
    heading, *rows = [line.split() for line in out.splitlines()]
    assert heading == ["image", "is", "confidence"]
    places = [place for place, row in enumerate(rows) if row[0].startswith("holiday")]
    assert [rows[place][0] for place in places] == [
        "holiday/robin/00.png",
        "holiday/wren/00.png",
        "holiday/wren/01.png",
        "holiday/robin/00.png",
    ]
    first, last = rows[: places[1]], rows[places[-1] :]
    assert first == last
    assert "robin" in first[-1], "the class, or the nearest one of an unknown image"


def test_predict_as_json_and_csv(model: Path, photos: Photos, fewmore: Fewmore) -> None:
    photos("holiday", {"wren": 2})
    code, out, _ = fewmore("predict", model, "holiday", "--top", 2, "--json")
    assert code == 0
    predictions = json.loads(out)
    assert [prediction["image"] for prediction in predictions] == [
        "holiday/wren/00.png",
        "holiday/wren/01.png",
    ]
    for prediction in predictions:
        assert prediction["known"] in (True, False)
        first, second = prediction["classes"]
        assert first["name"] == "wren"
        assert 1 >= first["confidence"] > second["confidence"] >= 0
    code, out, _ = fewmore("predict", model, "holiday", "--top", 9, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert list(rows[0])[:5] == ["image", "name", "confidence", "name_2", "confidence_2"]
    assert "name_3" in rows[0]
    assert "name_4" not in rows[0]
    assert [row["name"] for row in rows] == ["wren", "wren"]
    assert sum(
        float(rows[0][f"confidence{number}"]) for number in ("", "_2", "_3")
    ) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("form", ["", "--json", "--csv"])
def test_one_bad_image_among_many_is_named_and_the_others_are_predicted(
    model: Path, photos: Photos, fewmore: Fewmore, form: str
) -> None:
    folder = photos("holiday", {"wren": 3})
    (folder / "wren" / "01.png").write_bytes(b"no image")
    code, out, err = fewmore("predict", model, "holiday", "gone.jpg", *filter(None, [form]))
    assert code == 1
    assert [line.split()[1] for line in err.splitlines()] == ["holiday/wren/01.png", "gone.jpg"]
    if form == "--json":
        assert ["error" in prediction for prediction in json.loads(out)] == [
            False,
            True,
            False,
            True,
        ]
    elif form == "--csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [(row["name"], bool(row["error"])) for row in rows] == [
            ("wren", False),
            ("", True),
            ("wren", False),
            ("", True),
        ]
    else:
        assert out.count("cannot be read") == 2
        assert out.count("wren ") == 2


def test_an_unknown_image_is_none_of_these(
    model: Path, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = IncrementalClassifier.predict_features

    def predict_unknown(self: IncrementalClassifier, images: Any, top: int) -> list[Prediction]:
        return [
            replace(prediction, known=False, familiarity=0.1)
            for prediction in predict(self, images, top)
        ]

    monkeypatch.setattr(IncrementalClassifier, "predict_features", predict_unknown)
    _, out, _ = fewmore("predict", model, "photos/wren/00.png")
    assert out.splitlines()[1].split() == ["photos/wren/00.png", "none", "of", "these"]
    assert "if any, wren" in out.splitlines()[2]


def test_predict_refuses_with_a_sentence(model: Path, fewmore: Fewmore, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert fewmore("predict", model, "empty")[2].startswith("fewmore: empty has no images in it")
    both = fewmore("predict", model, "a.jpg", "--json", "--csv")[2]
    assert both.startswith("fewmore: --json and --csv were given together")
    shutil.copy("photos/wren/00.png", "not.fewmore")
    assert "is damaged, or not a model file" in fewmore("predict", "not.fewmore", "a.jpg")[2]


# info, evaluate, export


def test_info(model: Path, photos: Photos, fewmore: Fewmore) -> None:
    reached = re.search(r"below a familiarity of (\S+), which 95 %", fewmore("info", model)[1])
    assert reached
    _, out, _ = fewmore(
        "learn", model, photos("new", {f"species {number}": 1 for number in range(130)}, size=8)
    )
    assert "learnt species 1: 1 image\n" in out
    assert "learnt 100 more classes\n" in out
    code, out, err = fewmore("info", model)
    assert (code, err) == (0, "")
    assert out.startswith("birds.fewmore: ")
    assert "classes        133, from 144 images in 2 sessions" in out
    assert f"moved with the number of classes from {reached[1]}, which 95 % of held-out" in out
    assert "robin 5" in out
    assert "and 13 more; all of them: fewmore info birds.fewmore --json" in out
    assert "learning of species 0, species 1, species 10" in out
    about = json.loads(fewmore("info", model, "--json")[1])
    assert len(about["classes"]) == 133
    assert about["file bytes"] == model.stat().st_size
    assert [change["kind"] for change in about["history"]] == ["fit", "learn"]


def test_evaluate(model: Path, photos: Photos, fewmore: Fewmore) -> None:
    fewmore("learn", model, photos("new", {"owl": 2}))
    fewmore("rename", model, "robin", "European robin")
    test = photos("test", {"wren": 4, "European robin": 2, "owl": 2})
    shutil.rmtree(test / "wren")
    # All images of this class are wrong.
    shutil.copytree(photos("other", {"jay": 4}) / "jay", test / "wren")
    code, out, err = fewmore("evaluate", model, "test")
    assert (code, err) == (0, "evaluating …\n")
    lines = out.splitlines()
    assert lines[0].startswith("accuracy: ")
    assert lines[0].endswith(" % of 8 images of 3 classes")
    assert lines[1] == "classes of the training: 33.3 %; classes learnt later: 100.0 %"
    assert lines[4].split() == ["class", "accuracy", "images", "mostly", "taken", "for"]
    assert lines[5].split()[:6] == ["wren", "0.0", "%", "4", "jay", "(4)"]
    assert lines[-1] == "confusion matrix: birds-confusion.png"
    assert Path("birds-confusion.png").read_bytes().startswith(b"\x89PNG")
    code, out, err = fewmore("evaluate", model, "test", "--json", "--plot", "plots/a.svg")
    assert (code, out) == (2, "")
    assert "--plot plots/a.svg: there is no folder plots; make it first" in err
    Path("plots").mkdir()
    for _ in range(2):  # a figure of its own is replaced
        code, out, err = fewmore("evaluate", model, "test", "--json", "--plot", "plots/a.svg")
        assert code == 0
    assert err == ""
    assert json.loads(out)["by class"][0] == {
        "class": "wren",
        "accuracy": 0.0,
        "images": 4,
        "taken for": {"jay": 4},
    }
    assert Path("plots/a.svg").exists()


def test_names_that_no_font_has(model: Path, photos: Photos, fewmore: Fewmore) -> None:
    fewmore("rename", model, "robin", "日本の鳥")
    code, out, err = fewmore("evaluate", model, photos("test", {"日本の鳥": 2, "wren": 2}))
    assert (code, err) == (0, "evaluating …\n")
    last = out.splitlines()[-1]
    assert last.startswith("confusion matrix: birds-confusion.png; its font lacks characters")


def test_many_classes_fit_on_a_page(model: Path, photos: Photos, fewmore: Fewmore) -> None:
    many = {f"species {number}": 1 for number in range(60)}
    fewmore("learn", model, photos("new", many, size=8))
    _, out, _ = fewmore("evaluate", model, photos("test", many, size=8))
    assert len(out.splitlines()) < 45
    assert "and 30 more classes, each with 100.0 % or better" in out


def test_evaluate_says_nothing_of_a_home_that_cannot_be_written(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    places = {
        "MPLCONFIGDIR": str(tmp_path / "file" / "below"),
        "FEWMORE_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "fewmore", "evaluate", str(model), "photos"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **places},
    )
    assert (done.returncode, done.stderr) == (0, "evaluating …\n")


def test_evaluate_refuses_with_a_sentence(model: Path, photos: Photos, fewmore: Fewmore) -> None:
    photos("test", {"wrem": 1, "robin": 1})
    err = fewmore("evaluate", model, "test")[2]
    assert "'wrem': did you mean wren?; images of no known class go to --unknown" in err
    photos("outer/inner", {"wren": 1, "robin": 1})
    err = fewmore("evaluate", model, "outer")[2]
    assert err.startswith("fewmore: the sub-folders of outer are no classes: did you mean fewmore")
    assert err.endswith(f"evaluate {model} outer/inner?\n")
    err = fewmore("evaluate", model, "photos", "--plot", "a.txt")[2]
    assert err.startswith("fewmore: --plot a.txt does not end in")
    code, out, err = fewmore("evaluate", model, "photos", "--unknown", "nosuch")
    assert (code, out) == (2, "")
    assert err.startswith("fewmore: --unknown nosuch is not there: give images of no known class")


def test_export_without_its_packages_is_a_sentence(
    model: Path, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, out, err = fewmore("export", model, "--onnx", "out")
    assert (code, out) == (2, "")
    assert err.startswith("fewmore: export takes packages that are not installed")
    assert err.endswith("pip install 'fewmore[export]'\n")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "command",
    ["train", "learn", "predict", "evaluate", "info", "forget", "rename", "undo", "export"],
)
def test_every_command_has_an_example(fewmore: Fewmore, command: str) -> None:
    code, out, _ = fewmore(command, "--help")
    assert code == 0
    assert f"Example: fewmore {command} " in out


@pytest.mark.usefixtures("small_pretrained")
def test_a_training_that_learns_little_points_to_check(photos: Photos, fewmore: Fewmore) -> None:
    folder = photos("photos", {"robin": 10, "wren": 10})
    assert "warning" not in fewmore("train", "photos")[1]
    for number in range(0, 10, 2):  # half of the images of each class are those of the other
        one, other = folder / "robin" / f"{number:02}.png", folder / "wren" / f"{number:02}.png"
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
    code, out, _ = fewmore("train", "photos", "--force")
    assert code == 0
    last = out.splitlines()[-1]
    assert re.fullmatch(r"warning: only \d+ % of held-out images are right; look .* photos", last)
    assert last.endswith("fewmore check photos")
