"""Hold what `IncrementalClassifier` returns: predictions, learning results and evaluations."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewmore.classifier.calibration import auroc, expected_calibration_error
from fewmore.classifier.class_set import ClassSet
from fewmore.classifier.history import class_sessions


@dataclass(frozen=True)
class Prediction:
    """Hold the prediction for one image, the most likely class first."""

    names: tuple[str, ...]
    confidences: tuple[float, ...]  # of each name; over all known classes they add up to 1
    known: bool  # False means "none of these": out of distribution
    familiarity: float  # similarity to the closest class, at most about 1; decides on `known`


@dataclass(frozen=True)
class LearnResult:
    """Describe what a call of `learn` changed."""

    added: list[str]
    refined: list[str]
    warnings: list[str]
    version: int


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Hold accuracy and calibration on labelled images."""

    accuracy: float  # over all images; "none of these" is not considered
    by_class: dict[str, float]
    classes: tuple[str, ...]
    confusion: Tensor  # (C, C) int64: rows are true classes, columns predicted ones
    ece: float  # expected calibration error
    rejected: float  # share of the images predicted as "none of these"
    images: int
    base_accuracy: float | None = None  # on the classes of the training
    new_accuracy: float | None = None  # on the classes that were learnt later
    learnt: int = 0  # images among these that the classifier has learnt from
    unknown: "UnknownImages | None" = None
    mistakes: tuple["Mistake", ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mistake:
    """Hold an image that was taken for another class."""

    image: str  # its path, or what messages call it
    name: str  # of the right class
    prediction: Prediction


@dataclass(frozen=True)
class UnknownImages:
    """Describe the predictions for images of no known class."""

    images: int
    rejected: float  # share predicted as "none of these"
    auroc: float  # of the familiarity, against the images of known classes


@dataclass(frozen=True, eq=False)
class Queries:
    """Hold the predictions for labelled images."""

    predictions: Sequence[Prediction]
    labels: Tensor  # (n,): positions of the classes in the class set
    names: tuple[str, ...]  # of the classes that have images
    hashes: Sequence[int]
    titles: Sequence[str]


def evaluate_predictions(
    queries: Queries,
    unknown: Sequence[Prediction],
    class_set: ClassSet,
    notes: tuple[str, ...] = (),
) -> Evaluation:
    """Count the predictions for labelled images, and those for images of no known class."""
    classes = class_set.names
    positions = {name: position for position, name in enumerate(classes)}
    predicted = torch.tensor([positions[one.names[0]] for one in queries.predictions])
    confidences = torch.tensor([one.confidences[0] for one in queries.predictions])
    count = len(classes)
    pairs = torch.bincount(queries.labels * count + predicted, minlength=count**2)
    confusion = pairs.view(count, count)
    correct = confusion.diagonal()
    images = confusion.sum(1)
    sessions = class_sessions(class_set.history)
    is_base = torch.tensor([sessions[name] == 0 for name in classes])
    known_hashes = frozenset[int]().union(*(known.hashes for known in class_set.classes))
    return Evaluation(
        accuracy=float(correct.sum() / images.sum()),
        by_class={
            name: float(correct[positions[name]] / images[positions[name]])
            for name in queries.names
        },
        classes=classes,
        confusion=confusion,
        ece=expected_calibration_error(confidences, predicted == queries.labels),
        rejected=_share_rejected(queries.predictions),
        images=len(queries.labels),
        base_accuracy=_accuracy(correct[is_base], images[is_base]),
        new_accuracy=_accuracy(correct[~is_base], images[~is_base]),
        learnt=sum(digest in known_hashes for digest in queries.hashes),
        unknown=_evaluate_unknown(queries.predictions, unknown) if unknown else None,
        mistakes=tuple(
            Mistake(title, classes[label], prediction)
            for title, label, prediction in zip(
                queries.titles, queries.labels.tolist(), queries.predictions, strict=True
            )
            if prediction.names[0] != classes[label]
        ),
        notes=notes,
    )


def _accuracy(correct: Tensor, images: Tensor) -> float | None:
    return float(correct.sum() / images.sum()) if images.sum() else None


def _share_rejected(predictions: Sequence[Prediction]) -> float:
    return sum(not one.known for one in predictions) / len(predictions)


def _evaluate_unknown(known: Sequence[Prediction], unknown: Sequence[Prediction]) -> UnknownImages:
    familiarities = [torch.tensor([one.familiarity for one in some]) for some in (known, unknown)]
    return UnknownImages(len(unknown), _share_rejected(unknown), auroc(*familiarities))
