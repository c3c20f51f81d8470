"""Calibrate a head on held-out base images."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor

from fewmore.classifier.calibration import (
    ACCEPTANCE_RATE,
    Calibration,
    acceptance_threshold,
    auroc,
    expected_calibration_error,
    fit_temperature,
)
from fewmore.classifier.fitting.base import FOLDS, BaseFeatures
from fewmore.classifier.fitting.pseudo_sessions import SHOTS, pseudo_session
from fewmore.classifier.heads import Head, Scorer


def calibrate(
    base: BaseFeatures, head: Head, folds: Sequence[int], generator: Generator
) -> Calibration:
    """Measure temperature, threshold and accuracy on images that are not in the class means.

    Classes that are learnt later have few images, so half of the scores come from
    pseudo-sessions, in which some classes have few images too.
    """
    full = _HeldOutScores()
    few_shot = _HeldOutScores()
    for fold in folds:
        held = base.folds == fold
        features = base.views[0, held]
        labels = base.labels[held]
        full.add(Scorer.build(head, base.without_fold(fold)), features, labels)
        few_shot.add(Scorer.build(head, pseudo_session(base, fold, generator)), features, labels)
    scores = torch.cat([full.scores, few_shot.scores])
    labels = torch.cat([full.labels, few_shot.labels])
    similarity = torch.cat([full.similarity, few_shot.similarity])
    temperature = fit_temperature(scores, labels)
    confidences, predicted = scores.softmax(1).max(1)
    calibrated = (scores / temperature).softmax(1).amax(1)
    return Calibration(
        temperature=temperature,
        threshold=acceptance_threshold(similarity.amax(1)),
        closeness=typical_closeness(base, head),
        held_out=len(full.labels),
        accuracy=float((full.scores.argmax(1) == full.labels).float().mean()),
        ece_before=expected_calibration_error(confidences, predicted == labels),
        ece_after=expected_calibration_error(calibrated, predicted == labels),
        auroc=auroc_of_held_out_classes(full.similarity, full.labels),
    )


class _HeldOutScores:
    """Collect scores, similarities and labels of held-out images."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, scorer: Scorer, features: Tensor, labels: Tensor) -> None:
        """Add images of one fold."""
        scores = scorer.scores(features).cpu()
        self.parts.append((scores, scorer.similarity(features).cpu(), labels.cpu()))

    @property
    def scores(self) -> Tensor:
        """Return all scores, (n, N)."""
        return torch.cat([scores for scores, _, _ in self.parts])

    @property
    def similarity(self) -> Tensor:
        """Return all similarities, (n, N)."""
        return torch.cat([similarity for _, similarity, _ in self.parts])

    @property
    def labels(self) -> Tensor:
        """Return all labels, (n,)."""
        return torch.cat([labels for _, _, labels in self.parts])


def auroc_of_held_out_classes(similarity: Tensor, labels: Tensor) -> float | None:
    """Return how well familiarity tells known classes from unknown ones.

    A fifth of the classes at a time is left out and plays the unknown ones.
    """
    classes = similarity.shape[1]
    if classes < 3:
        return None
    group = torch.arange(classes) % FOLDS
    known = []
    unknown = []
    for left_out in range(min(FOLDS, classes)):
        familiarity = similarity[:, group != left_out].amax(1)
        is_unknown = group[labels] == left_out
        known.append(familiarity[~is_unknown])
        unknown.append(familiarity[is_unknown])
    return auroc(torch.cat(known), torch.cat(unknown))


def typical_closeness(base: BaseFeatures, head: Head) -> float | None:
    """Return the closeness to their nearest neighbor that 95 % of five-shot classes stay below."""
    if len(base.classes) < 3:
        return None
    scorer = Scorer.build(replace(head, adapter=None), base.classes)
    nearest = []
    for label in range(len(base.classes)):
        shots = base.views[0, base.labels == label][:SHOTS].cpu().double()
        closeness = scorer.closeness(shots.mean(0), len(shots))
        closeness[label] = -math.inf
        nearest.append(float(closeness.max()))
    return float(torch.tensor(nearest, dtype=torch.float64).quantile(ACCEPTANCE_RATE))
