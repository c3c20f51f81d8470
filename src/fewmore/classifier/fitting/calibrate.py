"""Calibrate a head on held-out base images."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fewmore.classifier.calibration import (
    ACCEPTANCE_RATE,
    Calibration,
    acceptance_threshold,
    auroc,
    expected_calibration_error,
    fit_temperature,
)
from fewmore.classifier.fitting.base import FOLDS, BaseFeatures
from fewmore.classifier.fitting.sessions import SHOTS, Session, map_alike
from fewmore.classifier.heads import Head, Scorer

# What the threshold grows by when the classes become e times as many, in standard deviations of
# the similarities to other classes.
GROWTH = 0.25

# Fits features and head on images, given by a mask (n,).
Fit = Callable[[Tensor], tuple[BaseFeatures, Head]]


def calibrate(sessions: Sequence[Session], fit: Fit) -> Calibration:
    """Measure temperature, threshold and accuracy on images that are not in the class means.

    Classes that are learnt later have few images, so half of the sessions have new classes of
    five. With one image a class the accuracy is so much lower that both cannot be met.
    """
    sessions = [session for session in sessions if session.shots != 1]
    scores, similarity, labels, shots = _score(sessions, fit)
    temperature = fit_temperature(scores, labels)
    confidences, predicted = scores.softmax(1).max(1)
    calibrated = (scores / temperature).softmax(1).amax(1)
    is_full = shots == 0
    return Calibration(
        temperature=temperature,
        threshold=acceptance_threshold(similarity.amax(1)),
        classes=similarity.shape[1],
        growth=threshold_growth(similarity, labels),
        held_out=int(is_full.sum()),
        accuracy=float((predicted == labels)[is_full].float().mean()),
        ece_before=expected_calibration_error(confidences, predicted == labels),
        ece_after=expected_calibration_error(calibrated, predicted == labels),
        auroc=auroc_of_held_out_classes(similarity[is_full], labels[is_full]),
    )


def _score(sessions: Sequence[Session], fit: Fit) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scores (q, N), similarities (q, N), labels (q,) and shots (q,) of all queries."""

    def score(alike: list[Session]) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        base, head = fit(alike[0].rest)
        results = []
        for session in alike:
            scorer = Scorer.build(head, base.select(session.learnt).classes())
            features = base.features[session.queries]
            labels = base.labels[session.queries]
            shots = torch.full_like(labels, session.shots)
            results.append((scorer.scores(features), scorer.similarity(features), labels, shots))
        return results

    parts = map_alike(score, sessions, lambda session: session.rest)
    scores, similarity, labels, shots = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    return scores, similarity, labels, shots


def threshold_growth(similarity: Tensor, labels: Tensor) -> float:
    """Return by how much the threshold grows when the classes become e times as many.

    The largest of many similarities grows with their standard deviation. A share of it, and not a
    fit to fewer classes, because that is noise where there are only five (docs/log.md).
    """
    others = torch.ones_like(similarity, dtype=torch.bool).scatter_(1, labels[:, None], False)
    return GROWTH * float(similarity[others].double().std()) if similarity.shape[1] > 2 else 0.0


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
    result = auroc(torch.cat(known), torch.cat(unknown))
    return None if math.isnan(result) else result


def typical_closeness(base: BaseFeatures, head: Head) -> float | None:
    """Return the closeness to their nearest neighbor that 95 % of five-shot classes stay below."""
    if len(base.names) < 3:
        return None
    scorer = Scorer.build(head, base.classes())
    nearest = []
    for label in range(len(base.names)):
        shots = base.features[base.labels == label][: max(SHOTS)].cpu().double()
        closeness = scorer.closeness(shots.mean(0), len(shots))
        closeness[label] = -math.inf
        nearest.append(float(closeness.max()))
    return float(torch.tensor(nearest, dtype=torch.float64).quantile(ACCEPTANCE_RATE))
