"""Test what a run folder says of classes, test images, scores and sessions."""

import csv
import dataclasses
import io
import shutil

import numpy as np
import pytest
import torch

from fewmore.errors import CheckpointError
from fewmore.research import metrics
from fewmore.research.predictions import (
    Predictions,
    images_tested,
    read_predictions,
    read_run_folder,
)
from fewmore.research.reporting import per_class
from fewmore.research.runner import Watcher
from fewmore.research.trained import load_method
from fewmore.training.checkpoint import read_state, write_state

NAMES = ("ant", "bee", "cat")


def predictions(**changes) -> Predictions:
    """Return two base classes and a new one: bees are taken for ants, cats are right."""
    labels = np.array([0, 0, 1, 1, 2, 2])
    by_session = np.array([[0, 0, 1, 1, -1, -1], [0, 1, 0, 0, 2, 2]])
    sound = Predictions(
        labels, np.array([0, 0, 1]), by_session, np.full(6, 0.5), NAMES, np.arange(6) + 10
    )
    return dataclasses.replace(sound, **changes)


# Class by class


def test_the_accuracy_of_each_class_is_the_share_of_its_images():
    run = predictions()
    assert run.class_accuracy().tolist() == [50, 0, 100]
    first = run.class_accuracy(session=0)
    assert first[:2].tolist() == [100, 100]
    assert np.isnan(first[2]), "it has not arrived"
    assert run.confusion().tolist() == [[1, 1, 0], [2, 0, 0], [0, 0, 2]]
    assert np.isnan(metrics.class_accuracy(np.array([[0, 0], [1, 1]])))[0]


def test_rows_are_means_over_runs_with_what_a_class_is_taken_for():
    better = predictions(by_session=np.array([[0, 0, 1, 1, -1, -1], [0, 0, 0, 1, 2, 2]]))
    ant, bee, cat = per_class.class_rows([predictions(), better])
    assert (ant.name, ant.session, ant.images, ant.accuracy.mean) == ("ant", 0, 2, 75)
    assert ant.accuracy.std == pytest.approx(np.std([50, 100], ddof=1))
    assert (bee.taken_for, bee.share) == ("ant", 75)
    assert (cat.session, cat.accuracy.mean, cat.taken_for) == (1, 100, "")
    assert [row.name for row in per_class.weakest([cat, ant, bee], 2)] == ["bee", "ant"]
    lines = list(csv.DictReader(io.StringIO(per_class.to_csv([ant, bee, cat]))))
    assert lines[1] == {
        "class": "bee",
        "session": "0",
        "images": "2",
        "accuracy": "25.0",
        "accuracy_std": "35.3553",
        "taken_for": "ant",
        "taken_for_share": "75.0",
    }
    assert lines[2]["taken_for"] == lines[2]["taken_for_share"] == ""


def test_a_csv_says_which_image_was_wrong():
    text = predictions(files=tuple(f"x/{i}.jpg" for i in range(6))).to_csv()
    lines = list(csv.DictReader(io.StringIO(text)))
    assert len(lines) == 6
    assert lines[2] == {
        "image": "12",
        "file": "x/2.jpg",
        "class": "bee",
        "predicted": "ant",
        "correct": "0",
        "confidence": "0.5000",
    }
    assert lines[4]["correct"] == "1"
    without = predictions(confidence=np.empty(0)).to_csv()
    assert without.splitlines()[1] == "10,,ant,ant,1,"


# Run folders


@pytest.fixture
def named_task(tiny_task):
    """Return a task with files, of which one class never arrives."""
    sessions = tiny_task.split.sessions
    last = dataclasses.replace(sessions[-1], classes=sessions[-1].classes[1:])
    split = dataclasses.replace(tiny_task.split, sessions=(*sessions[:-1], last))
    files = tuple(f"{label}/{i}.png" for i, label in enumerate(tiny_task.test.labels.tolist()))
    return dataclasses.replace(tiny_task, split=split, test_files=files)


def test_a_run_knows_its_classes_and_test_images(make_experiment, run, named_task):
    folder, _ = run(make_experiment("finetune"), task=named_task)
    (found,) = read_run_folder(folder)
    order = named_task.split.seen(2)
    assert found.class_names == tuple(named_task.test.class_names[label] for label in order)
    labels = named_task.test.labels[found.positions]
    assert [order[label] for label in found.labels] == labels.tolist()
    assert found.files == tuple(named_task.test_files[i] for i in found.positions)
    assert len(found.files) == len(named_task.test) - 5, "one class never arrives"


def test_a_run_of_an_older_version_takes_names_from_its_task(make_experiment, run, tiny_task):
    folder, _ = run(make_experiment())
    path = folder / "seed0" / "predictions.safetensors"
    state = read_state(path)
    old = ("labels", "session_of_class", "predictions")
    write_state(path, {name: state[name] for name in old})
    found = read_predictions(folder / "seed0")
    assert found.class_names[:2] == ("class 0", "class 1")
    assert (len(found.confidence), found.files) == (0, ())
    assert found.positions.tolist() == list(range(len(tiny_task.test)))
    names = tuple(f"named {label}" for label in range(8))
    test = dataclasses.replace(tiny_task.test, class_names=names)
    (named,) = read_run_folder(folder, dataclasses.replace(tiny_task, test=test))
    assert named.class_names == names


def test_a_run_keeps_its_names_and_images_when_the_benchmark_is_edited(
    make_experiment, run, named_task
):
    folder, _ = run(make_experiment(), task=named_task)
    (found,) = read_run_folder(folder, named_task)
    shown = images_tested(found, named_task)
    assert shown.class_names == found.class_names
    assert shown.labels.tolist() == found.labels.tolist()
    first, *rest = named_task.split.sessions
    backwards = dataclasses.replace(first, classes=first.classes[::-1])
    split = dataclasses.replace(named_task.split, sessions=(backwards, *rest))
    edited = dataclasses.replace(named_task, split=split)
    (again,) = read_run_folder(folder, edited)
    assert again.class_names == found.class_names
    assert images_tested(again, edited) is None
    renamed = tuple(f"new-{name}" for name in named_task.test_files)
    assert images_tested(found, dataclasses.replace(named_task, test_files=renamed)) is None


# On request


@pytest.mark.parametrize("method", ["finetune", "decoupled-cosine"])
def test_scores_of_every_session_are_written_on_request(method, make_experiment, run, named_task):
    folder, _ = run(make_experiment(method), task=named_task, save_scores=True)
    found = read_predictions(folder / "seed0")
    for session in range(3):
        arrays = np.load(folder / "seed0" / f"session{session}" / "scores.npz")
        seen = int((found.session_of_class <= session).sum())
        scores = arrays["scores"]
        assert scores.shape == (len(found.labels), seen)
        assert scores.dtype == np.float32
        arrived = found.by_session[session] >= 0
        assert np.isnan(scores[~arrived]).all()
        assert (scores[arrived].argmax(1) == found.by_session[session][arrived]).all()
        assert arrays["labels"].tolist() == found.labels.tolist()
        assert arrays["positions"].tolist() == found.positions.tolist()
        assert tuple(arrays["files"]) == found.files
        assert tuple(arrays["class_names"]) == found.class_names[:seen]
    assert not list(folder.glob("seed0/session*/model.safetensors"))


def test_scores_on_request_change_nothing_else(make_experiment, run):
    plain, _ = run(make_experiment("finetune"))
    asked, _ = run(make_experiment("finetune"), save_scores=True, save_sessions=True)
    for name in ("model.safetensors", "predictions.safetensors"):
        assert (plain / "seed0" / name).read_bytes() == (asked / "seed0" / name).read_bytes()
    assert not list(plain.glob("seed0/session*"))


@pytest.mark.parametrize("method", ["finetune", "decoupled-cosine"])
def test_the_model_of_every_session_is_written_on_request(method, make_experiment, run, tiny_task):
    folder, _ = run(make_experiment(method), save_sessions=True)
    found = read_predictions(folder / "seed0")
    for session in range(3):
        loaded = load_method(folder / "seed0", session=session)
        arrived = torch.from_numpy(found.by_session[session] >= 0).nonzero().squeeze(1)
        scores = loaded.scores(tiny_task.test.select(arrived))
        assert scores.shape[1] == 4 + 2 * session
        assert scores.argmax(1).tolist() == found.by_session[session][arrived].tolist()
    with pytest.raises(CheckpointError, match=r"no model of session 3.*--save-sessions"):
        load_method(folder / "seed0", session=3)


def test_sessions_of_a_resumed_run_are_all_there(make_experiment, run):
    class StoppedError(Exception):
        pass

    class Stops(Watcher):
        """Stop after the second session."""

        def on_session(self, name, outcome):
            """Stop once."""
            if outcome.sessions == 2:
                raise StoppedError

    whole, _ = run(make_experiment("finetune"), save_scores=True, save_sessions=True)
    folder = whole.with_name("stopped")
    folder.mkdir()
    shutil.copy(whole / "config.json", folder)
    options = {"save_scores": True, "save_sessions": True, "checkpoint_every": 0.0}
    with pytest.raises(StoppedError):
        run(make_experiment("finetune"), folder, Stops(), **options)
    run(make_experiment("finetune"), folder, **options)
    for path in whole.glob("seed0/session*/*"):
        assert path.read_bytes() == (folder / path.relative_to(whole)).read_bytes()
