"""Define the result of an experiment: one method on one benchmark under one recipe and split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fewmore.research import metrics
from fewmore.research.metrics import Floats, Summary
from fewmore.training.runtime import GRAPHS_ALONE

SCHEMA = 2  # 1 lacked all_settings
WALL_CLOCK = "share of the wall clock"  # keys of a run's seconds
SHARED_STAGE1 = "pretrain (shared)"
FEATURES_SETTING = "features"  # key of the settings: the feature recipe, if not the method's own

DEFAULT_RECIPES = {"glyphs": "quick"}  # by benchmark; official elsewhere

# Runs × sessions; None where undefined, as for classes without a test image.
RunsBySession = tuple[tuple[float | None, ...], ...]


def default_recipe(benchmark: str) -> str:
    """Return the name of the recipe of a benchmark where none is named."""
    return DEFAULT_RECIPES.get(benchmark, "official")


@dataclass(frozen=True)
class SessionSize:
    """Count all classes seen up to a session, and the test images of them."""

    classes: int
    test: int


@dataclass(frozen=True)
class Run:
    """Hold the measures of one run, before runs are gathered into a result."""

    seed: int
    draw: int | None  # None: the official lists
    summary: Summary
    seconds: Mapping[str, float]  # by stage
    peak_memory_mb: float
    extra: Mapping[str, Sequence[float]] = field(default_factory=dict)  # named series over sessions


@dataclass(frozen=True)
class RunResult:
    """Hold an experiment's runs. The fields are the keys of the JSON, in this order."""

    benchmark: str
    method: str
    recipe: str | None
    split: str  # "official", or how it was drawn
    command: str  # empty where a run was started from Python
    seeds: tuple[int, ...]  # one a run, as are the draws
    draws: tuple[int | None, ...]
    commit: str | None
    date: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]  # those that differ from the recipe's
    all_settings: Mapping[str, str]  # of the recipe that was run; empty in an older file
    sessions: tuple[SessionSize, ...]
    accuracy: tuple[tuple[float, ...], ...]  # runs × sessions, in percent
    base: RunsBySession
    novel: RunsBySession  # None in session 0, and so is the harmonic mean
    harmonic: RunsBySession
    forgetting: RunsBySession  # runs × sessions but the last, in points
    gacc: tuple[float | None, ...]  # None without a new session
    seconds: tuple[Mapping[str, float], ...]
    peak_memory_mb: tuple[float, ...]
    extra: Mapping[str, RunsBySession]
    keeps: str | None  # what the method keeps of old images

    @property
    def runs(self) -> int:
        """Return the number of runs."""
        return len(self.seeds)

    @property
    def average(self) -> tuple[float, ...]:
        """Return the mean accuracy over the sessions, one a run."""
        return tuple(metrics.average(row) for row in self._accuracies())

    @property
    def last(self) -> tuple[float, ...]:
        """Return the accuracy after the last session, one a run."""
        return tuple(metrics.last(row) for row in self._accuracies())

    @property
    def pd(self) -> tuple[float, ...]:
        """Return the performance drop, one a run."""
        return tuple(metrics.performance_drop(row) for row in self._accuracies())

    @property
    def mean_forgetting(self) -> tuple[float | None, ...]:
        """Return the forgetting's mean over sessions, one a run; None where it is undefined."""
        known = [[value for value in run if value is not None] for run in self.forgetting]
        return tuple(float(np.mean(run)) if run else None for run in known)

    @property
    def images_kept(self) -> tuple[float | None, ...]:
        """Return how many old images are held at the end, one a run; None if never counted."""
        if "images_kept" in self.extra:
            return tuple(run[-1] for run in self.extra["images_kept"])
        return (None if self.keeps else 0.0,) * self.runs

    @property
    def test_views(self) -> tuple[float | None, ...]:
        """Return how many views of a test image are averaged, one a run; 1 if none is recorded."""
        if "test_views" in self.extra:
            return tuple(run[-1] for run in self.extra["test_views"])
        return (1.0,) * self.runs

    @property
    def one_view(self) -> tuple[float | None, ...]:
        """Return the last accuracy by one test view alone, one a run; empty if not measured."""
        return tuple(run[-1] for run in self.extra.get("one_view", ()))

    @property
    def total_seconds(self) -> tuple[float | None, ...]:
        """Return the seconds that each run needs, one a run; None where they were not measured.

        A run that took over another's stage 1 counts the seconds that stage 1 took to train: the
        elapsed ones are divided by the runs side by side, as the wall clock is.
        """
        workers = int(self.machine.get("side_by_side", 1))
        return tuple(
            times[WALL_CLOCK] + times.get(SHARED_STAGE1, 0.0) / workers
            if WALL_CLOCK in times
            else None
            for times in self.seconds
        )

    @property
    def shared_stage1(self) -> tuple[bool, ...]:
        """Return whether stage 1 was taken over from another run, one a run."""
        return tuple(SHARED_STAGE1 in times for times in self.seconds)

    @property
    def layer_failure(self) -> str:
        """Return why runs on a GPU went on without fused layers; empty where they had them."""
        how, _, failure = str(self.machine.get("accel", "")).partition(": ")
        return failure if how == GRAPHS_ALONE else ""

    def _accuracies(self) -> Floats:
        return np.array(self.accuracy, dtype=np.float64)
