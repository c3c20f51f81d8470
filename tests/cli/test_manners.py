"""How the commands for photos behave: progress, Ctrl-C, locks, and results that are not lost."""

import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from fewmore import IncrementalClassifier
from fewmore.classifier.embedding import Embedder
from fewmore.classifier.model_file import locked
from fewmore.cli.terminal import stages
from fewmore.data import sources

Photos = Callable[..., Path]
Fewmore = Callable[..., tuple[int, str, str]]


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C when the first image is embedded."""

    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Embedder, "features_of", press)


# Ctrl-C and locks


@pytest.mark.usefixtures("small_pretrained", "interrupted")
def test_an_interrupted_training_says_what_happened(photos: Photos, fewmore: Fewmore) -> None:
    photos("stopped", {"robin": 4, "wren": 4})
    code, out, err = fewmore("train", "stopped")
    assert (code, out) == (130, "")
    kept = "; what was embedded is kept for the next time"
    assert err.splitlines()[-1] == f"stopped: stopped.fewmore was not written{kept}"
    assert not Path("stopped.fewmore").exists()


@pytest.mark.usefixtures("small_pretrained")
@pytest.mark.parametrize("option", [("--weights", "none"), ("--fine-tune", "1s")])
def test_an_interrupted_training_that_keeps_nothing_says_so(
    photos: Photos, fewmore: Fewmore, option: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(IncrementalClassifier, "fit", press)
    photos("stopped", {"robin": 4, "wren": 4})
    code, _, err = fewmore("train", "stopped", *option)
    assert (code, err) == (130, "stopped: stopped.fewmore was not written\n")


@pytest.mark.usefixtures("interrupted")
def test_an_interrupted_change_says_what_happened(
    model: Path, photos: Photos, fewmore: Fewmore
) -> None:
    before = model.read_bytes()
    code, out, err = fewmore("learn", model, photos("new", {"owl": 2}))
    assert (code, out) == (130, "")
    assert err == "stopped: nothing was learnt, and birds.fewmore is as it was\n"
    assert model.read_bytes() == before
    code, out, err = fewmore("evaluate", model, "photos")
    assert (code, out) == (130, "")
    assert err.endswith("stopped: nothing was measured\n")


def test_a_change_that_was_made_is_not_denied(
    model: Path, photos: Photos, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = IncrementalClassifier.save

    def interrupted(self: IncrementalClassifier, path: Path) -> None:
        save(self, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(IncrementalClassifier, "save", interrupted)
    code, out, err = fewmore("learn", model, photos("new", {"owl": 2}))
    assert (code, out) == (130, "")
    assert err == (
        "stopped after birds.fewmore was written; take it back with: fewmore undo birds.fewmore\n"
    )
    assert "owl" in IncrementalClassifier.load(model)


def test_a_change_says_that_it_waits(
    model: Path, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["fewmore.cli.learn"], "LOCK_TIMEOUT", 0.0)
    with locked(model):
        code, out, err = fewmore("forget", model, "wren")
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first == "waiting for another process that changes birds.fewmore …"
    assert second == (
        "fewmore: another process is writing birds.fewmore: try again; where it is "
        "`fewmore serve`, teach there, or end that first"
    )
    assert fewmore("forget", model, "wren")[2] == ""


# Progress


def test_without_a_terminal_progress_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    text = io.StringIO()
    with stages(Console(file=text, width=80)) as report:
        for seconds, done in ((0, 0), (10, 100), (31, 310), (32, 320), (62, 600)):
            now = 100.0 + seconds
            report("embedding images", done, 1000)
        now = 163.0
        report("training", 1, 2)
    assert text.getvalue().splitlines() == [
        "embedding images …",
        "embedding images: 310 of 1,000, about 1 min left",
        "embedding images: 600 of 1,000, about 1 min left",
        "training …",
    ]


def test_progress_says_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    text = io.StringIO()
    with stages(Console(file=text, width=80), rate=True) as report:
        for seconds, done in ((0, 2000), (40, 62_000)):
            now = 100.0 + seconds
            report("predicting", done, 1_000_000)
    assert text.getvalue().splitlines() == [
        "predicting …",
        "predicting: 62,000 of 1,000,000, 1,500 a second, about 10 min left",
    ]


def test_a_patient_command_prints_nothing_until_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    text = io.StringIO()
    with stages(Console(file=text, width=80), patient=True) as report:
        report("embedding images", 1, 100)
        now = 29.0
        report("embedding images", 2, 100)
        assert text.getvalue() == ""
        now = 120.0
        report("embedding images", 3, 100)
    assert text.getvalue() == "embedding images: 3 of 100, about 97 min left\n"


# Offline


@pytest.mark.usefixtures("small_pretrained")
def test_training_without_weights_stops_with_a_sentence(
    photos: Photos, fewmore: Fewmore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos("photos", {"robin": 4, "wren": 4})
    monkeypatch.setenv("FEWMORE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    code, out, err = fewmore("train", "photos")
    assert (code, out) == (2, "")
    assert err.startswith(
        "downloading weights …\nfewmore: the ImageNet weights of resnet8 are not at"
    )
    assert f"save it as {tmp_path}/data/weights/small.pth" in err
    assert "--weights none" in err
    assert not Path("photos.fewmore").exists()


def test_weights_can_be_checked(
    fewmore: Fewmore, tmp_path: Path, small_pretrained: None, small_weights: Path
) -> None:
    code, out, _ = fewmore("data", "check", "resnet8")
    assert (code, out) == (0, f"{small_weights}: the published file\n")
    code, out, _ = fewmore("data", "check", "mobilenet_v2", "--data-root", tmp_path)
    place = tmp_path / sources.WEIGHTS["mobilenet_v2"].path
    assert (code, out) == (
        1,
        f"{place} is not there: fetch it with `fewmore data get mobilenet_v2`\n",
    )
    place.parent.mkdir()
    place.write_bytes(b"other")
    code, out, _ = fewmore("data", "check", "mobilenet_v2", "--data-root", tmp_path)
    assert code == 1
    assert "not the published file" in out


# evaluate and info


def test_evaluate_says_which_images_were_learnt_from(model: Path, fewmore: Fewmore) -> None:
    _, out, _ = fewmore("evaluate", model, "photos")
    assert "note: 14 of the 14 images were learnt from: the accuracy on new images is" in out
    assert json.loads(fewmore("evaluate", model, "photos", "--json")[1])["learnt"] == 14


def test_evaluate_measures_none_of_these(model: Path, photos: Photos, fewmore: Fewmore) -> None:
    photos("test", {"robin": 3, "wren": 3})
    photos("strange", {"owl": 2, "tern": 3})
    code, out, _ = fewmore("evaluate", model, "test", "--unknown", "strange")
    assert code == 0
    assert "5 images of no known class: " in out
    about = json.loads(fewmore("evaluate", model, "test", "--unknown", "strange", "--json")[1])
    assert about["unknown"]["images"] == 5
    assert 0 <= about["unknown"]["rejected"] <= 1
    assert about["unknown"]["auroc"] > 0.5
    assert about["learnt"] == 0
    Path("strange/owl/00.png").write_bytes(b"no image")
    code, out, err = fewmore("evaluate", model, "test", "--unknown", "strange")
    assert (code, out) == (2, "")
    assert "fewmore: strange/owl/00.png cannot be read as an image" in err
    words = ("evaluate", model, "test", "--unknown", "strange", "--skip-broken", "--json")
    assert json.loads(fewmore(*words)[1])["unknown"]["images"] == 4


def test_evaluate_gives_its_numbers_if_the_figure_cannot_be_written(
    model: Path, photos: Photos, fewmore: Fewmore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fewmore.research.reporting.figures import files

    def full(figure: object, path: Path) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save", full)
    code, out, err = fewmore("evaluate", model, photos("test", {"robin": 2}))
    assert code == 2
    assert out.startswith("accuracy: ")
    assert "fewmore: birds-confusion.png cannot be written (No space left on device)" in err
    assert not Path("birds-confusion.png").exists(), "no empty file stays"
    code, out, _ = fewmore("evaluate", model, "test", "--json", "--plot", "a.png")
    assert (code, json.loads(out)["images"]) == (2, 2)


def test_info_says_when_and_of_what_accuracy_was_measured(
    model: Path, photos: Photos, fewmore: Fewmore
) -> None:
    when = IncrementalClassifier.load(model).history_[0].when

    def accuracy() -> str:
        lines = fewmore("info", model)[1].splitlines()
        return next(line for line in lines if line.startswith("  accuracy "))

    assert accuracy().endswith(f" held-out images, at the training of {when}, 3 classes")
    fewmore("learn", model, photos("new", {"owl": 2}))
    assert accuracy().endswith("3 classes, 1 change ago; measure it with fewmore evaluate")


# Names


@pytest.mark.usefixtures("small_pretrained")
def test_no_new_class_is_named_as_unknown_images_are(
    model: Path, photos: Photos, fewmore: Fewmore
) -> None:
    before = model.read_bytes()
    photos("new", {"None of these": 4, "owl": 4})
    for words in (
        ("learn", model, "new"),
        ("learn", model, "--name", "none of these", "new/owl/00.png"),
        ("rename", model, "jay", "None of These"),
        ("train", "new", "-o", "new.fewmore"),
    ):
        code, out, err = fewmore(*words)
        assert (code, out) == (2, "")
        assert "no class can be named 'none of these', as unknown images are" in err.casefold()
        assert err.endswith("choose another name, such as 'other'\n")
    assert model.read_bytes() == before
    code, _, err = fewmore("rename", model, "jay", "jay")
    assert (code, err) == (
        2,
        "fewmore: 'jay' is the name of the class already, so nothing was renamed: "
        "give another new name\n",
    )


def test_a_model_of_before_may_have_a_class_that_is_named_as_unknown_images_are(
    model: Path, fewmore: Fewmore
) -> None:
    classifier = IncrementalClassifier.load(model)
    class_set = classifier.model.class_set.rename("jay", "none of these")
    classifier.with_class_set(class_set).save(model)
    assert "none of these" in json.loads(fewmore("info", model, "--json")[1])["classes"]
    photo = next(Path("photos/jay").iterdir())
    assert fewmore("learn", model, "--name", "none of these", photo)[0] == 0
    assert fewmore("rename", model, "none of these", "jay")[0] == 0


def test_names_that_are_easily_mistaken_get_a_note(
    model: Path, photos: Photos, fewmore: Fewmore
) -> None:
    _, out, _ = fewmore("learn", model, photos("new", {"Robin": 2}))
    assert "note: Robin and robin differ in capitals alone, and are two classes" in out
    _, out, _ = fewmore("rename", model, "jay", "WREN")
    assert "note: WREN and wren differ in capitals alone" in out
    _, out, _ = fewmore("rename", model, "WREN", "Jay")
    assert "note" not in out
