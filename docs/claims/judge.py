"""Define measures, comparisons and the rules that turn a gain into a verdict.

A claim is a list of comparisons: one row of a study is claimed to be better than another by some
measure. git has the rules since 0ad28f2, some minutes after the first studies were measured; what
was changed later, when results were known, is named on the page (`sections/studies.py`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student

from fewmore.research.published import PublishedRow
from fewmore.research.results import RunResult

HOLDS = "holds"
IN_PART = "holds in part"
FAILS = "does not hold"
UNSHOWN = "not shown"
UNMEASURED = "not measured yet"

CERTAINTY = 0.95  # of the sign of a gain, one-sided
DEVIATIONS = 2  # standard deviations of a difference that a gain from a single seed must exceed

Run = tuple[int, int | None]  # seed and draw
Rule = Callable[[float, float], str]  # mean gain and required gain to a verdict


@dataclass(frozen=True)
class Measure:
    """Name a number by which rows are compared, and say how to read it from a result."""

    name: str
    measured: Callable[[RunResult], Sequence[float]]  # one number per run
    published: Callable[[PublishedRow], float | None]
    lower_is_better: bool = False


LAST = Measure("last session", lambda result: result.last, lambda row: row.sessions[-1])
AVERAGE = Measure("average", lambda result: result.average, lambda row: row.average)
PD = Measure("PD", lambda result: result.pd, lambda row: row.pd, lower_is_better=True)


@dataclass(frozen=True)
class Side:
    """Hold one side of a comparison: a row's name, its value per run, and its published value."""

    name: str
    runs: Mapping[Run, float]
    published: float | None = None

    @property
    def mean(self) -> float:
        """Return the mean over runs, NaN without runs."""
        return fmean(self.runs.values()) if self.runs else math.nan


@dataclass(frozen=True)
class Estimate:
    """Hold a mean over seeds with its standard deviation."""

    mean: float
    std: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Estimate from one value per seed."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Comparison:
    """Hold one comparison of a claim with its verdict."""

    where: str  # the benchmark, and the study where that is not the claim's own
    better: str  # the row that the claim is about
    worse: str  # the row that it is compared with
    measure: str
    published: tuple[float | None, float | None] = (None, None)
    measured: tuple[Estimate, Estimate] | None = None
    gain: Estimate | None = None  # of the first over the second, seed by seed
    required: float = math.nan  # the gain must exceed this
    verdict: str = UNMEASURED

    @property
    def opposed(self) -> bool:
        """Return whether it is clearly the other way: by more than the required gain."""
        gain = abs(self.gain.mean) if self.gain else 0.0
        return self.verdict == FAILS and gain > self.required


def required_gain(gain: Estimate, seed_std: float) -> float:
    """Return the bound that a mean gain must exceed.

    With several seeds this is Student's one-sided bound. With one seed it is a multiple of √2 times
    `seed_std`, the standard deviation of CEC's own seeds: two rows vary, not one.
    """
    if gain.std is None:
        return DEVIATIONS * math.sqrt(2) * seed_std
    return float(student.ppf(CERTAINTY, gain.seeds - 1)) * gain.std / math.sqrt(gain.seeds)


def is_better(gain: float, required: float) -> str:
    """Judge "is better": holds beyond the bound, in part where only the sign is right."""
    if gain > required:
        return HOLDS
    return IN_PART if gain > 0 else FAILS


def is_no_better(gain: float, required: float) -> str:
    """Judge "does not help", the reverse of `is_better`."""
    return {HOLDS: FAILS, IN_PART: IN_PART, FAILS: HOLDS}[is_better(gain, required)]


def is_best(gain: float, required: float) -> str:
    """Judge "is the best of all": in part where the best other row is within the bound."""
    if gain > 0:
        return HOLDS
    return IN_PART if gain > -required else FAILS


def overall(comparisons: Sequence[Comparison]) -> str:
    """Sum up how many comparisons of a claim hold; those that are not measured do not count."""
    measured = [each for each in comparisons if each.verdict != UNMEASURED]
    hold = [each.verdict == HOLDS for each in measured]
    if not measured:
        return UNMEASURED
    if any(hold):
        return HOLDS if all(hold) else IN_PART
    return FAILS if any(each.opposed for each in measured) else UNSHOWN
