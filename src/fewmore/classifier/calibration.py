"""Calibrate confidences, and set a threshold for "none of these", from held-out scores.

n: held-out images   N: classes
"""

import math
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

BINS = 15  # of the expected calibration error
ACCEPTANCE_RATE = 0.95  # share of known images that are not rejected as unknown
MIN_TEMPERATURE = 0.01
MAX_TEMPERATURE = 100.0


@dataclass(frozen=True)
class Calibration:
    """Hold what held-out base images say; None where too few were held out for a number."""

    temperature: float = 1.0
    threshold: float | None = None  # familiarity below which an image is "none of these"
    classes: int = 0  # number of known classes that the threshold was set for
    growth: float = 0.0  # added to the threshold when the classes become e times as many
    closeness: float | None = None  # cosine of class means above which a new class is close
    held_out: int = 0  # images that were held out
    accuracy: float | None = None
    ece_before: float | None = None
    ece_after: float | None = None
    auroc: float | None = None
    sessions_plain: float | None = None  # accuracy in simulated sessions by the plain cosine
    sessions_chosen: float | None = None  # the same by what was chosen

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"a temperature of {self.temperature}")
        if any(value is not None and not math.isfinite(value) for value in asdict(self).values()):
            raise ValueError("a number that is not finite")

    def for_classes(self, classes: int) -> "Calibration":
        """Return the same with the threshold for another number of known classes.

        Among more classes there is a more similar one for every image, known or not.
        """
        if self.threshold is None or not self.growth or self.classes < 1 or classes < 1:
            return self
        threshold = self.threshold + self.growth * math.log(classes / self.classes)
        return replace(self, threshold=threshold, classes=classes)


def expected_calibration_error(confidences: Tensor, correct: Tensor) -> float:
    """Return the mean gap between confidence and accuracy, over bins of equal width."""
    if not len(confidences):
        return math.nan
    bins = (confidences.double() * BINS).ceil().long().clamp(1, BINS) - 1
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(
        0, bins.cpu(), (confidences.double() - correct.double()).cpu()
    )
    return float(gaps.abs().sum() / len(confidences))


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """Return the divisor of scores (n, N) that minimizes their negative log-likelihood.

    A hundred held-out images without a mistake do not make a classifier certain: as in Platt
    scaling, the labels are smoothed by 1 / (n + 2). The loss is convex in the inverse temperature,
    and bisection finds the zero of its derivative.
    """
    if scores.shape[1] < 2 or not len(scores):
        return 1.0
    smoothing = 1 / (len(scores) + 2)
    of_labels = scores.gather(1, labels[:, None]).double().sum()
    target = (1 - smoothing) * of_labels + smoothing * scores.double().mean(1).sum()
    low = math.log(1 / MAX_TEMPERATURE)
    high = math.log(1 / MIN_TEMPERATURE)
    for _ in range(40):
        middle = (low + high) / 2
        expected = ((math.exp(middle) * scores).softmax(1) * scores).sum(1).double().sum()
        low, high = (low, middle) if expected - target > 0 else (middle, high)
    return math.exp(-(low + high) / 2)


def acceptance_threshold(familiarity: Tensor) -> float:
    """Return the familiarity that 95 % of held-out images reach; with few images, all of them."""
    rejected = int((1 - ACCEPTANCE_RATE) * (len(familiarity) + 1))
    return float(familiarity.double().sort().values[max(0, rejected - 1)])


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Return how often a known image is more familiar than an unknown one; a tie counts half."""
    if not len(known) or not len(unknown):
        return math.nan
    ordered = unknown.double().sort().values
    below = torch.searchsorted(ordered, known.double())
    not_above = torch.searchsorted(ordered, known.double(), right=True)
    return float((below + not_above).double().mean() / 2 / len(unknown))
