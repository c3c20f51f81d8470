"""Compare two methods over the runs that they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student

from fewmore.research.results import RunKey

CONFIDENCE = 0.95  # of the interval, two-sided
ROUNDING = 1e-12  # of differences that are the same, as a fraction of the numbers


@dataclass(frozen=True)
class PairedDifference:
    """Hold the mean of differences over pairs, its interval and the p value of no difference.

    Interval and p value are None where all differences are the same: these are no several
    measurements.
    """

    pairs: int
    mean: float
    low: float | None
    high: float | None
    p: float | None


def common_runs(
    values: Mapping[RunKey, float], reference: Mapping[RunKey, float]
) -> tuple[list[float], list[float]]:
    """Return the numbers of the runs that two methods share, one pair a seed.

    Runs of one seed have the network of one stage 1, so that the mean over their draws is one
    measurement. Where there is one seed, each draw is one.
    """
    shared = [key for key in values if key in reference]
    seeds = {seed for _, seed, _ in shared}
    groups: dict[object, list[RunKey]] = {}
    for key in shared:
        groups.setdefault(key[1] if len(seeds) > 1 else key, []).append(key)
    return (
        [fmean(values[key] for key in group) for group in groups.values()],
        [fmean(reference[key] for key in group) for group in groups.values()],
    )


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
    if error <= ROUNDING * max(map(abs, (*values, *reference))):
        return PairedDifference(pairs, mean, None, None, None)
    width = float(student.ppf((1 + CONFIDENCE) / 2, pairs - 1)) * error
    p = 2 * float(student.sf(abs(mean) / error, pairs - 1))
    return PairedDifference(pairs, mean, mean - width, mean + width, p)
