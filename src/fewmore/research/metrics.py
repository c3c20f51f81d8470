"""How a run is judged: pure functions of the predictions on every test image.

A run is three arrays, which most functions here take in this order:

    labels            (n,)           the class of each test image; classes are numbered in the order in which they arrive
    session_of_class  (classes,)     the session in which each class arrives; 0 for the base classes
    predictions       (sessions, n)  the class predicted after each session; -1 where the image's class had not yet arrived

Accuracies are over images, among all classes seen so far, and in percent. What is undefined is NaN: novel accuracy in
the base session, or the accuracy on classes without a test image. `predictions` may stop before the last session.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fewmore.errors import DataError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def check(labels: Ints, session_of_class: Ints, predictions: Ints) -> None:
    """Refuse arrays that are not a run, with everything that is wrong in one sentence."""
    if (
        labels.ndim != 1
        or session_of_class.ndim != 1
        or predictions.ndim != 2
        or predictions.shape[1] != len(labels)
    ):
        raise DataError(
            f"a run is labels (n,), session_of_class (classes,) and predictions (sessions, n), "
            f"not {labels.shape}, {session_of_class.shape} and {predictions.shape}"
        )
    classes, sessions = len(session_of_class), len(predictions)
    if (
        not classes
        or session_of_class[0] != 0
        or not np.isin(np.diff(session_of_class), (0, 1)).all()
    ):
        raise DataError(
            "session_of_class must begin with 0 and go up in steps of 1: number the classes in the order in which they arrive"
        )
    if not 1 <= sessions <= session_of_class[-1] + 1:
        raise DataError(
            f"there are predictions of {sessions} sessions, but the classes arrive in {session_of_class[-1] + 1}"
        )
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise DataError(
            f"labels must lie in 0 … {classes - 1}, not {labels.min()} … {labels.max()}"
        )
    wrong = []
    for session, row in enumerate(predictions):
        seen = int((session_of_class <= session).sum())
        asked = session_of_class[labels] <= session
        if (row[~asked] != -1).any():
            wrong.append(
                f"session {session} predicts images whose class has not arrived: -1 belongs there"
            )
        if ((row[asked] < 0) | (row[asked] >= seen)).any():
            wrong.append(
                f"session {session} has predictions outside its {seen} seen classes 0 … {seen - 1}"
            )
    if wrong:
        raise DataError("; ".join(wrong))


def _tally(labels: Ints, session_of_class: Ints, predictions: Ints) -> tuple[Floats, Floats]:
    """Right answers after session t among the images of session i's classes, (t, i), and how many images these are, (i,)."""
    check(labels, session_of_class, predictions)
    sessions = len(predictions)
    group = session_of_class[labels]
    hits = np.stack(
        [np.bincount(group[row == labels], minlength=sessions)[:sessions] for row in predictions]
    )
    return hits.astype(np.float64), np.bincount(group, minlength=sessions)[:sessions].astype(
        np.float64
    )


def _percent(hits: Floats, images: Floats) -> Floats:
    share: Floats = np.full(np.broadcast(hits, images).shape, np.nan)
    return np.divide(100 * hits, images, out=share, where=images > 0)


def accuracy(labels: Ints, session_of_class: Ints, predictions: Ints) -> Floats:
    """Accuracy after each session on the test images of all classes seen so far, (sessions,)."""
    hits, images = _tally(labels, session_of_class, predictions)
    return _percent(hits.sum(1), images.cumsum())


def accuracy_by_arrival(labels: Ints, session_of_class: Ints, predictions: Ints) -> Floats:
    """Accuracy after session t on the classes that arrived in session i, (t, i); NaN where i has not arrived."""
    hits, images = _tally(labels, session_of_class, predictions)
    table = _percent(hits, images)
    table[np.triu_indices(len(table), 1)] = np.nan
    return table


def base_accuracy(labels: Ints, session_of_class: Ints, predictions: Ints) -> Floats:
    """Accuracy after each session on the base classes' images, (sessions,)."""
    return accuracy_by_arrival(labels, session_of_class, predictions)[:, 0]


def novel_accuracy(labels: Ints, session_of_class: Ints, predictions: Ints) -> Floats:
    """Accuracy after each session on the images of all classes that came after the base, (sessions,); NaN in session 0."""
    hits, images = _tally(labels, session_of_class, predictions)
    return _percent(hits[:, 1:].sum(1), images.cumsum() - images[0])


def harmonic_mean(base: Floats, novel: Floats) -> Floats:
    """Harmonic mean of base and novel accuracy; 0 where both are 0, NaN where either is undefined."""
    total = np.asarray(base + novel)
    return np.divide(2 * base * novel, total, out=total * 0.0, where=total > 0)


def forgetting(labels: Ints, session_of_class: Ints, predictions: Ints) -> Floats:
    """For the classes of each session but the last: best earlier accuracy on them minus the accuracy at the end, in points.

    Accuracy is among all classes seen at the time, so confusion with later classes counts as forgetting. It is negative
    where the end is the best.
    """
    table = accuracy_by_arrival(labels, session_of_class, predictions)
    return np.array([table[i:-1, i].max() - table[-1, i] for i in range(len(table) - 1)])


def average(accuracies: Floats) -> float:
    """Mean over sessions."""
    return float(np.mean(accuracies))


def last(accuracies: Floats) -> float:
    """Accuracy after the last session."""
    return float(accuracies[-1])


def performance_drop(accuracies: Floats) -> float:
    """PD: accuracy after the base session minus accuracy after the last."""
    return float(accuracies[0] - accuracies[-1])


def generalised_accuracy(labels: Ints, session_of_class: Ints, predictions: Ints) -> float:
    """gAcc: base and new sessions weighed against each other in every proportion, so that base classes cannot hide new ones.

    After session k ≥ 1, let A_i be the accuracy on session i's classes. At a weight α, g(α) is the mean over k of
    (α·A_0 + Σ_{1≤i≤k} A_i) / (α + k): only new classes count at α = 0, all sessions alike at 1, all classes alike at base/way.
    gAcc is the area under g from 0 to R = base/way, divided by R. The integral is exact: with S_k = Σ A_i,

        ∫ (α·A_0 + S_k)/(α + k) dα = R·A_0 + (S_k − k·A_0)·ln(1 + R/k)

    `way` is the mean number of classes a new session, should they differ. NaN when there is no new session.
    """
    table = accuracy_by_arrival(labels, session_of_class, predictions)
    sessions = len(table)
    if sessions < 2:
        return float("nan")
    base, new = (
        (session_of_class == 0).sum(),
        ((session_of_class > 0) & (session_of_class < sessions)).sum(),
    )
    largest = float(base * (sessions - 1) / new)
    areas = []
    for k in range(1, sessions):
        old, fresh = table[k, 0], table[k, 1 : k + 1].sum()
        areas.append(old + (fresh - k * old) * np.log1p(largest / k) / largest)
    return float(np.mean(areas))


def confusion_matrix(labels: Ints, predicted: Ints, classes: int) -> Ints:
    """How many images of class r (row) were taken for class c (column); images predicted -1 are left out."""
    asked = predicted >= 0
    pairs = labels[asked] * classes + predicted[asked]
    return (
        np.bincount(pairs, minlength=classes * classes).reshape(classes, classes).astype(np.int64)
    )


def mean_std(values: ArrayLike) -> tuple[Floats, Floats]:
    """Mean and sample standard deviation (n − 1) over the first axis, the runs. The deviation of a single run is NaN."""
    table = np.asarray(values, dtype=np.float64)
    mean = table.mean(axis=0)
    return mean, table.std(axis=0, ddof=1) if len(table) > 1 else np.full_like(mean, np.nan)


def std_within(values: Sequence[float], fixed: Sequence[Hashable]) -> float:
    """Pooled sample deviation among runs that share `fixed`; NaN when no two do.

    With the draws as `fixed` this is the spread over seeds; with the seeds, the spread over draws.
    """
    groups: dict[Hashable, list[float]] = {}
    for value, key in zip(values, fixed, strict=True):
        groups.setdefault(key, []).append(value)
    freedom = sum(len(group) - 1 for group in groups.values())
    squares = sum(float(np.var(group)) * len(group) for group in groups.values())
    return float(np.sqrt(squares / freedom)) if freedom else float("nan")


@dataclass(frozen=True)
class Summary:
    """All measures of one run; arrays are over sessions, `forgetting` over all sessions but the last."""

    accuracy: Floats
    base: Floats
    novel: Floats
    harmonic: Floats
    forgetting: Floats
    average: float
    last: float
    pd: float
    gacc: float


def summarise(labels: ArrayLike, session_of_class: ArrayLike, predictions: ArrayLike) -> Summary:
    """All measures of one run at once."""
    run = (
        np.asarray(labels, np.int64),
        np.asarray(session_of_class, np.int64),
        np.asarray(predictions, np.int64),
    )
    accuracies, base, novel = accuracy(*run), base_accuracy(*run), novel_accuracy(*run)
    return Summary(
        accuracy=accuracies,
        base=base,
        novel=novel,
        harmonic=harmonic_mean(base, novel),
        forgetting=forgetting(*run),
        average=average(accuracies),
        last=last(accuracies),
        pd=performance_drop(accuracies),
        gacc=generalised_accuracy(*run),
    )
