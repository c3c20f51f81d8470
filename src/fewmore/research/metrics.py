"""Measure a run from its predictions on every test image; all functions are pure.

A run is three arrays, which most functions here take in this order:

    labels            (n,)           the class of each test image, in the order of arrival
    session_of_class  (classes,)     the session in which each class arrives; 0 for base classes
    predictions       (sessions, n)  the class predicted after each session; −1 where the image's
                                     class has not yet arrived

Accuracies are over images, among all classes seen so far, and in percent. What is undefined is NaN:
novel accuracy in the base session, or the accuracy on classes without a test image. `predictions`
may stop before the last session.
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
    _check_shapes(labels, session_of_class, predictions)
    classes = len(session_of_class)
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise DataError(
            f"labels must lie in 0 … {classes - 1}, not {labels.min()} … {labels.max()}"
        )
    wrong = []
    for session, row in enumerate(predictions):
        seen = int((session_of_class <= session).sum())
        arrived = session_of_class[labels] <= session
        if (row[~arrived] != -1).any():
            wrong.append(
                f"session {session} predicts images whose class has not arrived: -1 belongs there"
            )
        if ((row[arrived] < 0) | (row[arrived] >= seen)).any():
            wrong.append(
                f"session {session} has predictions outside its {seen} seen classes 0 … {seen - 1}"
            )
    if wrong:
        raise DataError("; ".join(wrong))


def _check_shapes(labels: Ints, session_of_class: Ints, predictions: Ints) -> None:
    dimensions = (labels.ndim, session_of_class.ndim, predictions.ndim)
    if dimensions != (1, 1, 2) or predictions.shape[1] != len(labels):
        raise DataError(
            f"a run is labels (n,), session_of_class (classes,) and predictions (sessions, n), "
            f"not {labels.shape}, {session_of_class.shape} and {predictions.shape}"
        )
    steps = np.diff(session_of_class)
    if not len(session_of_class) or session_of_class[0] != 0 or not np.isin(steps, (0, 1)).all():
        raise DataError(
            "session_of_class must begin with 0 and go up in steps of 1: "
            "number the classes in the order in which they arrive"
        )
    if not 1 <= len(predictions) <= session_of_class[-1] + 1:
        raise DataError(
            f"there are predictions of {len(predictions)} sessions, "
            f"but the classes arrive in {session_of_class[-1] + 1}"
        )


def _count_correct(
    labels: Ints, session_of_class: Ints, predictions: Ints
) -> tuple[Floats, Floats]:
    """Count correct predictions and images by session of arrival.

    Returns the correct predictions after session t among the images of session i's classes, (t, i),
    and how many images these are, (i,).
    """
    check(labels, session_of_class, predictions)
    sessions = len(predictions)
    arrival = session_of_class[labels]

    def count(values: Ints) -> Ints:
        return np.bincount(values, minlength=sessions)[:sessions]

    correct = np.stack([count(arrival[row == labels]) for row in predictions])
    return correct.astype(np.float64), count(arrival).astype(np.float64)


def _percent(correct: Floats, images: Floats) -> Floats:
    share: Floats = np.full(np.broadcast(correct, images).shape, np.nan)
    return np.divide(100 * correct, images, out=share, where=images > 0)


def accuracy(labels: Ints, session_of_class: Ints, predictions: Ints) -> Floats:
    """Return the accuracy after each session on all classes seen so far, (sessions,)."""
    correct, images = _count_correct(labels, session_of_class, predictions)
    return _percent(correct.sum(1), images.cumsum())


def accuracy_by_arrival(labels: Ints, session_of_class: Ints, predictions: Ints) -> Floats:
    """Return the accuracy after session t on the classes that arrived in session i, (t, i).

    It is NaN where session i has not arrived.
    """
    correct, images = _count_correct(labels, session_of_class, predictions)
    table = _percent(correct, images)
    table[np.triu_indices(len(table), 1)] = np.nan
    return table


def base_accuracy(labels: Ints, session_of_class: Ints, predictions: Ints) -> Floats:
    """Return the accuracy after each session on the base classes' images, (sessions,)."""
    return accuracy_by_arrival(labels, session_of_class, predictions)[:, 0]


def novel_accuracy(labels: Ints, session_of_class: Ints, predictions: Ints) -> Floats:
    """Return the accuracy after each session on all classes after the base, (sessions,).

    It is NaN in session 0.
    """
    correct, images = _count_correct(labels, session_of_class, predictions)
    return _percent(correct[:, 1:].sum(1), images.cumsum() - images[0])


def harmonic_mean(base: Floats, novel: Floats) -> Floats:
    """Return the harmonic mean of base and novel accuracy.

    It is 0 where both are 0, and NaN where either is undefined.
    """
    total = np.asarray(base + novel)
    return np.divide(2 * base * novel, total, out=total * 0.0, where=total > 0)


def forgetting(labels: Ints, session_of_class: Ints, predictions: Ints) -> Floats:
    """Return how much of its best accuracy each session but the last has lost, in points.

    Accuracy is among all classes seen at the time, so confusion with later classes counts as
    forgetting. It is negative where the end is the best.
    """
    table = accuracy_by_arrival(labels, session_of_class, predictions)
    return np.array([table[i:-1, i].max() - table[-1, i] for i in range(len(table) - 1)])


def average(accuracies: Floats) -> float:
    """Return the mean over sessions."""
    return float(np.mean(accuracies))


def last(accuracies: Floats) -> float:
    """Return the accuracy after the last session."""
    return float(accuracies[-1])


def performance_drop(accuracies: Floats) -> float:
    """Return PD: accuracy after the base session minus accuracy after the last."""
    return float(accuracies[0] - accuracies[-1])


def generalized_accuracy(labels: Ints, session_of_class: Ints, predictions: Ints) -> float:
    """Return gAcc: base and new sessions weighted in every proportion.

    Base classes, which are the majority, cannot hide new ones in it. After session k ≥ 1, let A_i
    be the accuracy on session i's classes. At a weight α, g(α) is the mean over k of

        (α·A_0 + Σ_{1≤i≤k} A_i) / (α + k)

    Only new classes count at α = 0, all sessions alike at 1, all classes alike at base/way. gAcc is
    the area under g from 0 to R = base/way, divided by R. The integral is exact: with S_k = Σ A_i,

        ∫ (α·A_0 + S_k)/(α + k) dα = R·A_0 + (S_k − k·A_0)·ln(1 + R/k)

    `way` is the mean number of classes of a new session, should they differ. The result is NaN when
    there is no new session.
    """
    table = accuracy_by_arrival(labels, session_of_class, predictions)
    sessions = len(table)
    if sessions < 2:
        return float("nan")
    base_classes = (session_of_class == 0).sum()
    new_classes = ((session_of_class > 0) & (session_of_class < sessions)).sum()
    largest = float(base_classes * (sessions - 1) / new_classes)
    areas = []
    for k in range(1, sessions):
        base = table[k, 0]
        new = table[k, 1 : k + 1].sum()
        areas.append(base + (new - k * base) * np.log1p(largest / k) / largest)
    return float(np.mean(areas))


def confusion_matrix(labels: Ints, predicted: Ints, classes: int) -> Ints:
    """Count the images of class r (row) that were predicted as class c (column); −1 is left out."""
    arrived = predicted >= 0
    pairs = labels[arrived] * classes + predicted[arrived]
    counts = np.bincount(pairs, minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.int64)


def class_accuracy(confusion: Ints) -> Floats:
    """Return the accuracy of each class of a confusion matrix; NaN where it has no images."""
    return _percent(np.diag(confusion).astype(np.float64), confusion.sum(1).astype(np.float64))


def mean_std(values: ArrayLike) -> tuple[Floats, Floats]:
    """Return mean and sample standard deviation (n − 1) over the first axis, the runs.

    The standard deviation of a single run is NaN.
    """
    table = np.asarray(values, dtype=np.float64)
    mean = table.mean(axis=0)
    return mean, table.std(axis=0, ddof=1) if len(table) > 1 else np.full_like(mean, np.nan)


def std_within(values: Sequence[float], fixed: Sequence[Hashable]) -> float:
    """Return the pooled sample standard deviation among runs that share `fixed`; NaN if none do.

    With the draws as `fixed` this is the standard deviation over seeds; with the seeds, over draws.
    """
    groups: dict[Hashable, list[float]] = {}
    for value, key in zip(values, fixed, strict=True):
        groups.setdefault(key, []).append(value)
    freedom = sum(len(group) - 1 for group in groups.values())
    squares = sum(float(np.var(group)) * len(group) for group in groups.values())
    return float(np.sqrt(squares / freedom)) if freedom else float("nan")


@dataclass(frozen=True)
class Summary:
    """Hold all measures of one run.

    Arrays are over sessions, `forgetting` over all sessions but the last.
    """

    accuracy: Floats
    base: Floats
    novel: Floats
    harmonic: Floats
    forgetting: Floats
    average: float
    last: float
    pd: float
    gacc: float


def summarize(labels: ArrayLike, session_of_class: ArrayLike, predictions: ArrayLike) -> Summary:
    """Return all measures of one run at once."""
    run = (
        np.asarray(labels, np.int64),
        np.asarray(session_of_class, np.int64),
        np.asarray(predictions, np.int64),
    )
    accuracies = accuracy(*run)
    base = base_accuracy(*run)
    novel = novel_accuracy(*run)
    return Summary(
        accuracy=accuracies,
        base=base,
        novel=novel,
        harmonic=harmonic_mean(base, novel),
        forgetting=forgetting(*run),
        average=average(accuracies),
        last=last(accuracies),
        pd=performance_drop(accuracies),
        gacc=generalized_accuracy(*run),
    )
