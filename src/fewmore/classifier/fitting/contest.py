"""Choose how features are whitened, by sessions simulated on held-out base images.

In each session the old classes alone decide on mean, covariance and variance, as they do when
classes are learnt later. The plain cosine, centered ones and whitened ones with several shrinkages,
of features and of their square roots, compete, each with several strengths of the correction for
few images.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from fewmore.classifier.fitting.base import BaseFeatures
from fewmore.classifier.fitting.sessions import Session
from fewmore.classifier.heads import Head, Scorer, norm_correction
from fewmore.classifier.whitening import Covariance, Whitening

POWERS = (1.0, 0.5)  # that features are raised to
SHRINKAGES = (1.0, 0.9, 0.7, 0.5, 0.3)  # 1: centered alone
PLAIN = (1.0, None)  # the plain cosine
CANDIDATES = (PLAIN, *product(POWERS, SHRINKAGES))  # powers and shrinkages
CORRECTIONS = (1.0, 0.8, 0.6, 0.4, 0.2)  # shares of the variance that few images are corrected by
MAX_LOSS = {1: 0.05, 5: 0.03}  # accuracy that old classes may lose, by shots of the new ones
MIN_QUERIES = 200  # of old classes, or their losses are too uncertain to decide anything
DEFAULT_CORRECTION = 0.6  # where nothing is held out
MIN_GAIN = 2.0  # over the plain cosine, in standard errors


@dataclass(frozen=True)
class Choice:
    """Hold what won, and its accuracy on the simulated sessions beside the plain cosine's."""

    power: float = 1.0
    shrinkage: float | None = None
    correction: float = DEFAULT_CORRECTION
    accuracy: float | None = None
    plain_accuracy: float | None = None

    def fit(self, base: BaseFeatures) -> tuple[Whitening, Head]:
        """Fit whitening and head on images."""
        covariance = Covariance.within(base.features, base.labels, self.power)
        whitening = covariance.whitening(self.shrinkage)
        variance = self.correction * base.whitened(whitening).variance()
        return whitening, Head(base.features.device, base.features.shape[1], variance)

    def note(self) -> str:
        """Say what won."""
        if self.accuracy is None or self.plain_accuracy is None:
            return "classes are compared by the plain cosine: nothing is held out to choose by"
        kind = "the plain cosine"
        if self.shrinkage is not None:
            kind = f"a cosine whitened with shrinkage {self.shrinkage:g}"
        if self.power != 1:
            kind += " after a square root"
        return (
            f"classes are compared by {kind}: {100 * self.accuracy:.1f} % of held-out images are "
            f"right in simulated sessions, {100 * self.plain_accuracy:.1f} % by the plain cosine"
        )


def choose(base: BaseFeatures, sessions: Sequence[Session]) -> Choice:
    """Return the choice that is right most often and does not harm old classes.

    Whitening has to beat the plain cosine by two standard errors of their difference. These are
    taken over classes, because images of one class are right or wrong together: with three classes
    there is little evidence for anything.
    """
    correct, labels, losses = _compare(base, sessions)
    allowed = (losses <= 0).all(-1)  # (candidates, corrections)
    means = correct.mean(-1)
    # Where each correction harms old classes, the weakest is taken.
    allowed[:, -1] |= ~allowed.any(1)
    corrections = means.masked_fill(~allowed, -1.0).argmax(1).tolist()
    accuracies = torch.stack([of[place] for of, place in zip(correct, corrections, strict=True)])
    best = int(accuracies.mean(1).argmax())
    chosen = best if _is_proven(accuracies[best] - accuracies[0], labels) else 0
    return Choice(
        *CANDIDATES[chosen],
        CORRECTIONS[corrections[chosen]],
        float(accuracies[chosen].mean()),
        float(accuracies[0].mean()),
    )


def _is_proven(gain: Tensor, labels: Tensor) -> bool:
    """Say whether the mean gain over images (n,) is beyond what classes differ by chance."""
    by_class = torch.stack([gain[labels == label].mean() for label in sorted(set(labels.tolist()))])
    error = by_class.std() / math.sqrt(len(by_class)) if len(by_class) > 1 else math.inf
    return float(by_class.mean()) > MIN_GAIN * float(error)


def _compare(base: BaseFeatures, sessions: Sequence[Session]) -> tuple[Tensor, Tensor, Tensor]:
    """Return accuracies of each image, its label, and what old classes lose beyond what they may.

    The shapes are (candidates, corrections, images), (images,) and (candidates, corrections,
    shots).
    """
    shape = (len(CANDIDATES), len(CORRECTIONS))
    correct = torch.zeros(*shape, len(base.labels), dtype=torch.float64)
    asked = torch.zeros(len(base.labels), dtype=torch.float64)
    lost = {shots: torch.zeros(*shape, dtype=torch.float64) for shots in MAX_LOSS}
    old_queries = dict.fromkeys(MAX_LOSS, 0)
    for session in sessions:
        queries = session.queries.cpu()
        labels = base.labels[session.queries]
        is_old = session.is_old[labels]
        asked[queries] += 1
        old_queries[session.shots] = old_queries.get(session.shots, 0) + int(is_old.sum())
        for place, scores in _scores(base, session):
            is_right = scores.argmax(1) == labels
            correct[place][queries] += is_right.cpu()
            if session.shots in MAX_LOSS:
                alone = scores.masked_fill(~session.is_old, -math.inf).argmax(1) == labels
                lost[session.shots][place] += int(
                    (alone & is_old).sum() - (is_right & is_old).sum()
                )
    held = asked > 0
    losses = [
        lost[shots] / old_queries[shots] - most
        if old_queries[shots] >= MIN_QUERIES
        else torch.full(shape, -most)
        for shots, most in MAX_LOSS.items()
    ]
    accuracies = correct[..., held] / asked[held]
    return accuracies, base.labels.cpu()[held], torch.stack(losses, -1)


def _scores(base: BaseFeatures, session: Session) -> Iterator[tuple[tuple[int, int], Tensor]]:
    """Yield each contestant's place in the grid, and its scores of the queries (q, C)."""
    old = base.select(session.known)
    covariances = {power: Covariance.within(old.features, old.labels, power) for power in POWERS}
    for row, (power, shrinkage) in enumerate(CANDIDATES):
        whitened = base.whitened(covariances[power].whitening(shrinkage))
        variance = whitened.select(session.known).variance()
        classes = whitened.select(session.learnt).classes()
        uncorrected = Scorer.build(Head(base.features.device, base.features.shape[1]), classes)
        cosines = uncorrected.similarity(whitened.features[session.queries])
        squares = torch.stack([known.mean for known in classes]).square().sum(1)
        counts = torch.tensor([known.count for known in classes])
        for column, correction in enumerate(CORRECTIONS):
            factors = norm_correction(squares, counts, correction * variance)
            yield (row, column), cosines * factors.to(cosines)
