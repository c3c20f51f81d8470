"""Choose how features are whitened, by sessions simulated on held-out base images.

In each session the old classes alone decide on mean, covariance and variance, as they do when
classes are learnt later. Whitened cosines compete, each with several strengths of the correction
for few images, and with several shares of the probabilities of the backbone's own classifier. They
are few: among many candidates that differ by less than sessions can tell, the luckiest wins
(docs/log.md). The plain cosine is measured beside them.

n: images   C: classes   q: queries   k: classes of the backbone's own classifier
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.classifier.fitting.base import BaseFeatures
from fewmore.classifier.fitting.sessions import Session, map_alike
from fewmore.classifier.heads import Head, norm_correction
from fewmore.classifier.whitening import Covariance, Whitening, class_roots
from fewmore.nn.covariance import raise_to

SHRINKAGES = (0.8, 0.4)
# Shares of the backbone's own classes, and temperatures of their probabilities; 0: without them. A
# large share is for things that the backbone knows, a small one of milder opinions for others.
WITHOUT, MILD, STRONG = (0.0, 1.0), (0.1, 2.0), (0.25, 1.0)
SHARES = (WITHOUT, MILD, STRONG)
CORRECTIONS = (1.0, 0.8, 0.6, 0.4, 0.2)  # shares of the variance that few images are corrected by
MAX_LOSS = {1: 0.05, 5: 0.03}  # accuracy that old classes may lose, by shots of the new ones
MIN_QUERIES = 200  # of old classes, or their losses are too uncertain to decide anything
DEFAULT_CORRECTION = 0.6  # where nothing is held out


@dataclass(frozen=True)
class Choice:
    """Hold what won, and its accuracy on the simulated sessions beside the plain cosine's."""

    power: float = 1.0
    shrinkage: float | None = None
    share: float = 0.0  # of the backbone's own classes
    temperature: float = 1.0  # of their probabilities
    correction: float = DEFAULT_CORRECTION
    accuracy: float | None = None
    plain_accuracy: float | None = None

    def fit(
        self, base: BaseFeatures, classifier: Tensor | None = None, kept: Tensor | None = None
    ) -> tuple[Whitening, BaseFeatures, Head]:
        """Fit whitening and head on images, or those that a mask (n,) keeps; whiten all of them.

        The classifier (k, d + 1) is the backbone's own.
        """
        rest = base if kept is None else base.select(kept)
        covariance = Covariance.within(rest.features, rest.labels, self.power)
        whitening = covariance.whitening(self.shrinkage)
        if self.share:
            assert classifier is not None
            softer = classifier / self.temperature
            whitening = replace(whitening, classifier=softer, share=self.share)
        whitened = base.whitened(whitening)
        rest = whitened if kept is None else whitened.select(kept)
        variance = self.correction * rest.variance()
        return whitening, whitened, Head(base.features.device, whitening.dim, variance)

    def note(self) -> str:
        """Say what won."""
        if self.accuracy is None or self.plain_accuracy is None:
            return "classes are compared by the plain cosine: nothing is held out to choose by"
        kind = "the plain cosine"
        if self.shrinkage is not None:
            kind = f"a cosine whitened with shrinkage {self.shrinkage:g}"
        if self.power != 1:
            kind += " after a square root"
        if self.share:
            kind += f" and to {100 * self.share:.0f} % by the classes that the backbone knows"
        return (
            f"classes are compared by {kind}: {100 * self.accuracy:.1f} % of held-out images are "
            f"right in simulated sessions, {100 * self.plain_accuracy:.1f} % by the plain cosine"
        )


def choose(
    base: BaseFeatures, sessions: Sequence[Session], classifier: Tensor | None = None
) -> Choice:
    """Return the choice that is right most often and does not harm old classes.

    The first shrinkage, with the small share of the backbone's own classes, is the usual choice,
    and the others have to be proven to be better.
    """
    power = power_for(base.features)
    candidates = list_candidates(power, classifier)
    usual_share = WITHOUT if classifier is None else MILD
    usual = candidates.index(Choice(power, SHRINKAGES[0], *usual_share))
    correct, labels, losses = _compare(base, sessions, classifier)
    allowed = (losses <= 0).all(-1)  # (candidates, corrections)
    means = correct.mean(-1)
    # Where each correction harms old classes, the weakest is taken.
    allowed[:, -1] |= ~allowed.any(1)
    corrections = means.masked_fill(~allowed, -1.0).argmax(1).tolist()
    accuracies = torch.stack([of[place] for of, place in zip(correct, corrections, strict=True)])
    best = 1 + int(accuracies[1:].mean(1).argmax())
    gain = accuracies[best] - accuracies[usual]
    chosen = best if is_proven(gain, labels, errors_for(len(set(labels.tolist())))) else usual
    return replace(
        candidates[chosen],
        correction=CORRECTIONS[corrections[chosen]],
        accuracy=float(accuracies[chosen].mean()),
        plain_accuracy=float(accuracies[0].mean()),
    )


def list_candidates(power: float, classifier: Tensor | None) -> list[Choice]:
    """List the plain cosine, which does not compete, and the candidates."""
    shares = (WITHOUT,) if classifier is None else SHARES
    competing = [Choice(power, shrinkage, *own) for shrinkage, own in product(SHRINKAGES, shares)]
    return [Choice(), *competing]


def power_for(features: Tensor) -> float:
    """Return the power to raise features to before they are whitened.

    Where none is negative they are like counts, of which a root is taken.
    """
    return 1.0 if bool((features < 0).any()) else 0.5


def errors_for(classes: int) -> float:
    """Return how many standard errors prove a gain: as many as Student's t deviates by.

    A standard error of few classes is itself uncertain, and three classes prove nothing.
    """
    return math.sqrt((classes - 1) / (classes - 3)) if classes > 3 else math.inf


def is_proven(gain: Tensor, labels: Tensor, errors: float) -> bool:
    """Say whether the mean gain over images (n,) is beyond so many of its standard errors.

    These are taken over classes, whose images are right or wrong together.
    """
    by_class = torch.stack([gain[labels == label].mean() for label in sorted(set(labels.tolist()))])
    error = by_class.std() / math.sqrt(len(by_class)) if len(by_class) > 1 else math.inf
    return float(by_class.mean()) > errors * float(error)


def _compare(
    base: BaseFeatures, sessions: Sequence[Session], classifier: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return accuracies of each image, its label, and what old classes lose beyond what they may.

    The shapes are (candidates, corrections, images), (images,) and (candidates, corrections,
    shots).
    """
    features = _Features(base, classifier)
    shape = (len(list_candidates(features.power, classifier)), len(CORRECTIONS))
    correct = torch.zeros(*shape, len(base.labels), dtype=torch.float64)
    asked = torch.zeros(len(base.labels), dtype=torch.float64)
    lost = {shots: torch.zeros(*shape, dtype=torch.float64) for shots in MAX_LOSS}
    old_queries = dict.fromkeys(MAX_LOSS, 0)
    with_new = [session for session in sessions if session.shots]
    results = map_alike(features.compare, with_new, lambda session: session.known)
    for session, (is_right, lost_now) in zip(with_new, results, strict=True):
        queries = session.queries.cpu()
        asked[queries] += 1
        old_queries[session.shots] += int(session.is_old[base.labels[session.queries]].sum())
        correct[..., queries] += is_right.cpu()
        lost[session.shots] += lost_now.cpu()
    held = asked > 0
    losses = [
        lost[shots] / old_queries[shots] - most
        if old_queries[shots] >= MIN_QUERIES
        else torch.full(shape, -most)
        for shots, most in MAX_LOSS.items()
    ]
    accuracies = correct[..., held] / asked[held]
    return accuracies, base.labels.cpu()[held], torch.stack(losses, -1)


class _Features:
    """Score queries by all candidates.

    A whitening multiplies the coordinates x_r of a centered feature x of unit length, along some
    directions, by factors l_r. The dot product of two whitened features is then
    ⟨x, y⟩ − Σ_r (1 − l_r²) x_r y_r. So all whitenings share the products of the centered features,
    and whitened ones are never made.
    """

    def __init__(self, base: BaseFeatures, classifier: Tensor | None) -> None:
        self.base = base
        self.own = [
            (share, _Part(class_roots(base.features, classifier / temperature)))
            for share, temperature in SHARES[1:]
            if classifier is not None
        ]
        self.power = power_for(base.features)
        self.raised = raise_to(base.features, self.power)

    def compare(self, sessions: Sequence[Session]) -> list[tuple[Tensor, Tensor]]:
        """Compare all candidates in sessions that have the same old images.

        For each session, return which queries are right, (candidates, corrections, q), and how
        many queries of old classes are right only without the new classes, less those that are
        right only with them, (candidates, corrections).
        """
        parts = list(self.fit(sessions[0].known))
        results = []
        for session in sessions:
            labels = self.base.labels[session.queries]
            is_old = session.is_old[labels]
            right = []
            lost = []
            for scores in self.scores(session, parts):
                right.append(scores.argmax(-1) == labels)
                without_new = scores.masked_fill(~session.is_old, -math.inf)
                right_without_new = without_new.argmax(-1) == labels
                lost.append((right_without_new & is_old).sum(1) - (right[-1] & is_old).sum(1))
            results.append((torch.stack(right), torch.stack(lost)))
        return results

    def scores(self, session: Session, parts: Sequence["_Part"]) -> Iterator[Tensor]:
        """Yield the scores of the queries in the order of the candidates, (corrections, q, C)."""
        own = [
            (share, products)
            for share, part in self.own
            for products in _Products.of(part, self.base, session)
        ]
        plain, whitened = parts
        for products in _Products.of(plain, self.base, session):
            yield products.scores()
        for products in _Products.of(whitened, self.base, session):
            yield products.scores()
            for share, of_own in own:
                yield products.mixed(of_own, share).scores()

    def fit(self, known: Tensor) -> Iterator["_Part"]:
        """Yield plain features, and centered ones with the factors of each shrinkage."""
        yield _Part(F.normalize(self.base.features, dim=1))
        old = self.base.select(known)
        covariance = Covariance.within(old.features, old.labels, self.power)
        unit = F.normalize(self.raised - covariance.center, dim=1)
        factors = [covariance.left(shrinkage).to(unit) for shrinkage in SHRINKAGES]
        yield _Part(unit, unit @ covariance.directions, factors)


@dataclass(frozen=True, eq=False)
class _Part:
    """Hold features x of unit length, and their coordinates x_r along the damped directions."""

    unit: Tensor  # (n, d)
    along: Tensor | None = None  # (n, r)
    factors: Sequence[Tensor] = ()  # l, (r,), of several whitenings


@dataclass(frozen=True, eq=False)
class _Products:
    """Hold the products that cosines to class means are made of."""

    dots: Tensor  # (q, C): dot products of queries of unit length and class means
    squares: Tensor  # (C,): squared norms of the class means
    counts: Tensor  # (C,): images that each mean is of
    is_old: Tensor  # (C,) bool

    @classmethod
    def of(cls, part: _Part, base: BaseFeatures, session: Session) -> Iterator["_Products"]:
        """Compute them for the features as they are, or whitened by each of the factors."""
        learnt = session.learnt.nonzero().squeeze(1)
        labels = base.labels[learnt]
        counts = torch.bincount(labels, minlength=len(base.names))

        def means(features: Tensor) -> Tensor:
            sums = features.new_zeros(len(base.names), features.shape[1])
            return sums.index_add_(0, labels, features) / counts.clamp(min=1)[:, None]

        unit, queries = part.unit[learnt], part.unit[session.queries]
        if part.along is None:
            of_classes = means(unit)
            dots = queries @ of_classes.T
            yield cls(dots, of_classes.square().sum(1), counts, session.is_old)
            return
        along, along_queries = part.along[learnt], part.along[session.queries]
        squares, squares_queries = along.square(), along_queries.square()
        for factors in part.factors:
            removed = 1 - factors.square()
            # The norms of whitened features, as those of the centered ones are 1.
            inverse_norms = (1 - squares @ removed).clamp(min=1e-12).rsqrt()[:, None]
            query_norms = (1 - squares_queries @ removed).clamp(min=1e-12).sqrt()[:, None]
            of_classes = means(unit * inverse_norms)
            along_classes = means(along * inverse_norms)
            dots = queries @ of_classes.T - (along_queries * removed) @ along_classes.T
            squared_norms = of_classes.square().sum(1) - along_classes.square() @ removed
            yield cls(dots / query_norms, squared_norms, counts, session.is_old)

    def mixed(self, other: "_Products", share: float) -> "_Products":
        """Return those of both features side by side, of which the other ones have a share."""
        dots = torch.lerp(self.dots, other.dots, share)
        squares = torch.lerp(self.squares, other.squares, share)
        return replace(self, dots=dots, squares=squares)

    def scores(self) -> Tensor:
        """Return cosines with each strength of the correction, (corrections, q, C)."""
        old = self.counts[self.is_old]
        within = (old * (1 - self.squares[self.is_old])).sum()  # squared distances from the means
        variance = within / max(1, int(old.sum() - (old > 0).sum()))
        variances = variance * torch.tensor(CORRECTIONS, device=variance.device)[:, None]
        factors = norm_correction(self.squares, self.counts, variances)
        cosines = self.dots / self.squares.clamp(min=1e-24).sqrt()
        return cosines * factors[:, None]
