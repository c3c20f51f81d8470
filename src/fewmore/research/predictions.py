"""Read what a run predicted: accuracy class by class, confusions, and which images were wrong.

`read_predictions(Path("runs/RUN/seed0")).class_accuracy()` is that after the last session.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.io import write_bytes
from fewmore.research import metrics, results
from fewmore.research.experiment import run_name
from fewmore.research.metrics import Floats, Ints
from fewmore.research.protocol import Outcome
from fewmore.training.checkpoint import read_state, write_state

FILE = "predictions.safetensors"
SCORES = "scores.npz"


@dataclass(frozen=True)
class Predictions:
    """Hold the predictions of one run. Classes are numbered in the order of arrival."""

    labels: Ints  # (test images,)
    session_of_class: Ints  # (classes,)
    by_session: Ints  # (sessions, test images); −1 where the class has not arrived
    confidence: Floats  # (test images,) in the last session; empty where a run did not write it
    class_names: tuple[str, ...]
    positions: Ints  # (test images,) in the benchmark's test set
    files: tuple[str, ...] = ()  # CLASS/FILE of each test image, if they are files

    def confusion(self, session: int = -1) -> Ints:
        """Count the images of class r (row) that were predicted as class c (column)."""
        classes = len(self.session_of_class)
        return metrics.confusion_matrix(self.labels, self.by_session[session], classes)

    def class_accuracy(self, session: int = -1) -> Floats:
        """Return the accuracy of each class in percent; NaN where it has not arrived."""
        return metrics.class_accuracy(self.confusion(session))

    def to_csv(self) -> str:
        """Return a line an image: where it is, its class, and the prediction after all sessions."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["image", "file", "class", "predicted", "correct", "confidence"])
        for i, (label, predicted) in enumerate(zip(self.labels, self.by_session[-1], strict=True)):
            lines.writerow(
                [
                    self.positions[i],
                    self.files[i] if self.files else "",
                    self.class_names[label],
                    self.class_names[predicted],
                    int(label == predicted),
                    f"{self.confidence[i]:.4f}" if len(self.confidence) else "",
                ]
            )
        return text.getvalue()


def read_predictions(run: Path, scores: str = "", names: Sequence[str] = ()) -> Predictions:
    """Read the predictions of a finished run, whose folder is such as runs/RUN/seed0.

    `scores` names other scores of the same method, where it has some; "" are its own. `names` are
    those of its classes, if the run wrote none.
    """
    state = read_state(run / FILE)
    labels: Ints = state["labels"].numpy()
    session_of_class: Ints = state["session_of_class"].numpy()
    if len(names) != len(session_of_class):
        names = [f"class {number}" for number in range(len(session_of_class))]
    confidence = state.get("confidence")
    # Runs of older versions have neither names nor positions.
    return Predictions(
        labels,
        session_of_class,
        state["predictions"][scores].numpy(),
        np.empty(0) if confidence is None else confidence.double().numpy(),
        tuple(state.get("class_names", names)),
        state["positions"].numpy() if "positions" in state else np.arange(len(labels)),
        tuple(state.get("files", ())),
    )


def read_run_folder(folder: Path, task: Task | None = None) -> list[Predictions]:
    """Read the predictions of all runs of a run folder, such as runs/RUN.

    Runs of older versions take the names of their classes from the task.
    """
    result = results.read(folder)
    pairs = zip(result.seeds, result.draws, strict=True)
    names = () if task is None else _class_names(task)
    return [read_predictions(folder / run_name(*pair), names=names) for pair in pairs]


def images_tested(run: Predictions, task: Task) -> ImageSet | None:
    """Return the test images of a run from its task, classes in the order of arrival.

    None where the task has others: a folder or a benchmark may be edited after a run.
    """
    seen = task.split.seen(len(task.split.sessions))
    test = task.test.select_classes(seen)
    labels = task.test.labels.tolist() if task.test_files else []
    files = [file for file, label in zip(task.test_files, labels, strict=True) if label in seen]
    same = (
        test.class_names == run.class_names
        and np.array_equal(test.labels.cpu().numpy(), run.labels)
        and (not run.files or run.files == tuple(files))
    )
    return test if same else None


def write_predictions(run: Path, outcome: Outcome, task: Task) -> None:
    """Write the predictions of a run, with the names of classes and test images."""
    state = {
        "labels": outcome.labels,
        "session_of_class": outcome.session_of_class,
        "predictions": dict(outcome.predictions),
        "confidence": outcome.confidence,
        "class_names": _class_names(task),
        "positions": outcome.positions,
        "files": _files(outcome, task),
    }
    write_state(run / FILE, state)


def write_scores(folder: Path, scores: Tensor, outcome: Outcome, task: Task) -> None:
    """Write the scores after a session as NumPy arrays, with the names of classes and images."""
    content = io.BytesIO()
    np.savez_compressed(
        content,
        scores=scores.numpy(),
        labels=outcome.labels.numpy(),
        positions=outcome.positions.numpy(),
        class_names=np.array(_class_names(task)[: scores.shape[1]]),
        files=np.array(_files(outcome, task), dtype=str),
    )
    write_bytes(folder / SCORES, content.getvalue())


def _class_names(task: Task) -> list[str]:
    """Return the names of the classes in the order of arrival."""
    return [task.test.class_names[label] for label in task.split.seen(len(task.split.sessions))]


def _files(outcome: Outcome, task: Task) -> list[str]:
    """Return CLASS/FILE of each test image; nothing where they are not files."""
    return [task.test_files[i] for i in outcome.positions.tolist()] if task.test_files else []
