"""Hold what `IncrementalClassifier` returns: predictions, learning results and evaluations."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewmore.classifier.calibration import expected_calibration_error


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


def evaluate_predictions(
    predictions: Sequence[Prediction],
    labels: Tensor,
    evaluated: Sequence[str],
    classes: tuple[str, ...],
) -> Evaluation:
    """Count predictions of images whose classes, as positions in `classes`, are `labels`."""
    positions = {name: position for position, name in enumerate(classes)}
    predicted = torch.tensor([positions[prediction.names[0]] for prediction in predictions])
    confidences = torch.tensor([prediction.confidences[0] for prediction in predictions])
    count = len(classes)
    pairs = torch.bincount(labels * count + predicted, minlength=count**2)
    confusion = pairs.view(count, count)
    correct = confusion.diagonal()
    images = confusion.sum(1)
    accepted = sum(prediction.known for prediction in predictions)
    return Evaluation(
        accuracy=float(correct.sum() / images.sum()),
        by_class={
            name: float(correct[positions[name]] / images[positions[name]]) for name in evaluated
        },
        classes=classes,
        confusion=confusion,
        ece=expected_calibration_error(confidences, predicted == labels),
        rejected=1 - accepted / len(predictions),
        images=len(labels),
    )
