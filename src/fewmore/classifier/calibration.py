"""Scores to probabilities one can trust, and a threshold for "none of these". Pure functions of held-out scores.

n: held-out images   N: classes
"""

import math

import torch
from torch import Tensor

BINS = 15  # of the expected calibration error
ACCEPTED = 0.95  # share of known images that are not turned away
SHARPEST, FLATTEST = 0.01, 100.0  # temperatures


def expected_calibration_error(confidences: Tensor, correct: Tensor) -> float:
    """The mean distance between confidence and accuracy, over bins of equal width, weighted by their images."""
    if not len(confidences):
        return math.nan
    bins = (confidences.double() * BINS).ceil().long().clamp(1, BINS) - 1
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(
        0, bins.cpu(), (confidences.double() - correct.double()).cpu()
    )
    return float(gaps.abs().sum() / len(confidences))


def temperature(scores: Tensor, labels: Tensor) -> float:
    """The number to divide scores (n, N) by, so that their softmax has the least negative log-likelihood.

    A hundred held-out images without a mistake do not make a classifier certain: as in Platt's scaling, the labels are
    softened by 1 / (n + 2). The loss is convex in the inverse temperature, and its derivative's zero is found by bisection.
    """
    if scores.shape[1] < 2 or not len(scores):
        return 1.0
    soft = 1 / (len(scores) + 2)
    wanted = (1 - soft) * scores.gather(
        1, labels[:, None]
    ).double().sum() + soft * scores.double().mean(1).sum()
    low, high = math.log(1 / FLATTEST), math.log(1 / SHARPEST)
    for _ in range(40):
        middle = (low + high) / 2
        slope = ((math.exp(middle) * scores).softmax(1) * scores).sum(1).double().sum() - wanted
        low, high = (low, middle) if slope > 0 else (middle, high)
    return math.exp(-(low + high) / 2)


def acceptance_threshold(familiarity: Tensor) -> float:
    """The familiarity that 95 % of known images reach, from those of held-out ones (with few of them, all of theirs do)."""
    rejected = int((1 - ACCEPTED) * (len(familiarity) + 1))
    return float(familiarity.double().sort().values[max(0, rejected - 1)])


def auroc(known: Tensor, unknown: Tensor) -> float:
    """How often a known image is more familiar than an unknown one; half counts for a tie."""
    if not len(known) or not len(unknown):
        return math.nan
    ordered = unknown.double().sort().values
    below = torch.searchsorted(ordered, known.double())
    not_above = torch.searchsorted(ordered, known.double(), right=True)
    return float((below + not_above).double().mean() / 2 / len(unknown))
