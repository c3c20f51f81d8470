"""Gather the runs of an experiment into one result."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np

from fewmore.errors import DataError
from fewmore.research.machine import commit, machine_facts
from fewmore.research.metrics import Floats
from fewmore.research.results.schema import Run, RunResult, SessionSize


def gather(
    runs: Sequence[Run],
    *,
    benchmark: str,
    method: str,
    recipe: str | None,
    split: str,
    command: str,
    sessions: Sequence[SessionSize],
    settings: Mapping[str, Any] | None = None,
    all_settings: Mapping[str, str] | None = None,
    keeps: str | None = None,
    machine: Mapping[str, Any] | None = None,
    date: str | None = None,
) -> RunResult:
    """Return the result of several runs, stamped with time, machine and code version."""
    if not runs or any(np.isnan(run.summary.accuracy).any() for run in runs):
        raise DataError(
            "a result needs at least one run, and test images of the base classes: "
            "add images to the test set"
        )
    return RunResult(
        benchmark=benchmark,
        method=method,
        recipe=recipe,
        split=split,
        command=command,
        seeds=tuple(run.seed for run in runs),
        draws=tuple(run.draw for run in runs),
        commit=commit(),
        date=date or datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine_facts() if machine is None else dict(machine),
        settings=dict(settings or {}),
        all_settings=dict(all_settings or {}),
        sessions=tuple(sessions),
        accuracy=tuple(tuple(map(float, run.summary.accuracy)) for run in runs),
        base=tuple(_nan_to_none(run.summary.base) for run in runs),
        novel=tuple(_nan_to_none(run.summary.novel) for run in runs),
        harmonic=tuple(_nan_to_none(run.summary.harmonic) for run in runs),
        forgetting=tuple(_nan_to_none(run.summary.forgetting) for run in runs),
        gacc=_nan_to_none([run.summary.gacc for run in runs]),
        seconds=tuple(dict(run.seconds) for run in runs),
        peak_memory_mb=tuple(float(run.peak_memory_mb) for run in runs),
        extra={
            name: tuple(_nan_to_none(run.extra[name]) for run in runs) for name in runs[0].extra
        },
        keeps=keeps,
    )


def _nan_to_none(values: Floats | Sequence[float]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else float(value) for value in values)
