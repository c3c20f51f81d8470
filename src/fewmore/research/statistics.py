"""Compare two methods over the runs that they share."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student

CONFIDENCE = 0.95  # of the interval, two-sided


@dataclass(frozen=True)
class PairedDifference:
    """Hold the mean of differences over pairs, its interval and the p value of no difference."""

    pairs: int
    mean: float
    low: float
    high: float
    p: float


def paired_difference(values: Sequence[float], reference: Sequence[float]) -> PairedDifference:
    """Return the difference of paired values by Student's t, two-sided.

    Args:
        values: one number a pair, of at least two pairs.
        reference: the numbers that are subtracted, in the same order.
    """
    differences = [value - other for value, other in zip(values, reference, strict=True)]
    pairs = len(differences)
    if pairs < 2:
        raise ValueError(f"a difference has an interval from 2 pairs on, and there are {pairs}")
    mean = fmean(differences)
    error = stdev(differences) / pairs**0.5
    width = float(student.ppf((1 + CONFIDENCE) / 2, pairs - 1)) * error
    return PairedDifference(pairs, mean, mean - width, mean + width, _p_value(mean, error, pairs))


def _p_value(mean: float, error: float, pairs: int) -> float:
    if not error:  # all differences are the same
        return 0.0 if mean else 1.0
    return 2 * float(student.sf(abs(mean) / error, pairs - 1))
