"""Compute one run on a worker: a JSON text in, a folder out, and events on the way."""

import dataclasses
import json
import platform
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fewmore import errors, methods
from fewmore.data.benchmarks import Task
from fewmore.errors import ConfigError, DataError, FewmoreError
from fewmore.research import runner
from fewmore.research.clock import SharedClock
from fewmore.research.experiment import Experiment
from fewmore.research.job import Job, Measured, Plan, RunOptions, Watcher
from fewmore.research.launchers import request as requests
from fewmore.research.machine import source_digest
from fewmore.research.protocol import Outcome
from fewmore.research.results import WALL_CLOCK
from fewmore.training import stage1_cache
from fewmore.training.device import select_device
from fewmore.training.runtime import Round


@dataclass(frozen=True)
class Failed:
    """Report that a run failed by an error of its own."""

    kind: str  # of the error, if it is one of the input
    message: str

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        """Describe an error on this machine."""
        place = platform.node()
        if isinstance(error, FewmoreError):
            return cls(type(error).__name__, f"on {place}: {error}")
        return cls("", f"on {place}:\n{''.join(traceback.format_exception(error))}")

    def error(self) -> Exception:
        """Return the error, as it would be raised on this machine."""
        kind = getattr(errors, self.kind, None)
        if kind is None:
            return RuntimeError(self.message)
        error: Exception = kind.__new__(kind)  # an error may be made of other things than a message
        error.args = (self.message,)
        return error


Event = Round | Outcome | Measured | Failed
Emit = Callable[[Round | Outcome], None]


def compute(request: str, folder: Path, emit: Emit) -> Measured | Failed:
    """Compute a run in a folder of its own, going on where that left off.

    `emit` is told of every round and session, from the thread that trains.
    """
    try:
        return _compute(json.loads(request), folder, emit)
    except Exception as error:
        return Failed.of(error)


def _compute(request: dict[str, Any], folder: Path, emit: Emit) -> Measured:
    if source_digest() != request["source"]:
        raise ConfigError(
            "the installed fewmore is not the one that sends the runs: install the same code on "
            "all machines, and change none of it while they work"
        )
    torch.set_num_threads(request["threads"])
    device = select_device(request["device"])
    options = RunOptions(
        device,
        stage1_cache=stage1_cache.make_folder() if request["share_stage1"] else None,
        **requests.run_options(request),
    )
    experiment = Experiment.from_json(requests.unpack_config(request))
    if requests.sources(experiment) != request["sources"]:
        raise ConfigError(
            f"the code of {experiment.method} is not the one that sends the runs: install the "
            "same package on all machines"
        )
    folder.mkdir(parents=True, exist_ok=True)
    job = Job(
        Plan(experiment, folder.parent, _Emitter(emit)),
        methods.find(experiment.method),
        request["seed"],
        request["draw"],
        _load(experiment, options, request),
        options,
        exclusive=not 0 < request["gpus"] < 1,
        stop=threading.Event(),
        clock=SharedClock(),
        home=Path(request["home"]),
    )
    measured = job()
    return _charge(measured, min(1.0, request["gpus"] or 1.0))


_LOADED: dict[str, Task] = {}  # the last task, by what it was loaded by


def _load(experiment: Experiment, options: RunOptions, request: dict[str, Any]) -> Task:
    """Load a run's task, unless the run before had it, and check that it is the sender's."""
    e = experiment
    parts = (e.benchmark, e.draws[0], e.validation, e.split(), e.recipe.transform)
    key = repr((parts, request["images"], request["data_root"], options.device))
    if key not in _LOADED:
        _LOADED.clear()
        root = request["data_root"] and Path(request["data_root"])
        task = runner.load_experiment(e, options, root)
        if requests.images_hash(task) != request["images"]:
            raise _other_data("images", task)
        device = options.device
        _LOADED[key] = dataclasses.replace(
            task, train=task.train.to(device), test=task.test.to(device)
        )
    task = runner.redraw(_LOADED[key], e, request["draw"])
    if requests.shots_hash(task) != request["shots"]:
        raise _other_data("session lists", task)
    return task


def _other_data(what: str, task: Task) -> DataError:
    return DataError(
        f"the {what} of {task.benchmark.name} here, with the data root {task.data_root}, are not "
        "those of the machine that sends the runs: copy them, or set FEWMORE_DATA"
    )


def _charge(measured: Measured, share: float) -> Measured:
    """Return the measures with the run's share of the wall clock, if it shares a GPU."""
    seconds = dict(measured.run.seconds)
    if WALL_CLOCK in seconds:
        seconds[WALL_CLOCK] = round(seconds[WALL_CLOCK] * share, 3)
    return dataclasses.replace(measured, run=dataclasses.replace(measured.run, seconds=seconds))


class _Emitter(Watcher):
    """Pass on what happens in a run, as it is now: an outcome changes with the next session."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit

    def on_round(self, run: str, report: Round) -> None:
        self.emit(report)

    def on_session(self, run: str, outcome: Outcome) -> None:
        copy = dataclasses.replace(
            outcome,
            predictions=dict(outcome.predictions),
            seconds=dict(outcome.seconds),
            images_kept=list(outcome.images_kept),
            checks=list(outcome.checks),
            scores=None,  # large, and in the folder where they were asked for
        )
        self.emit(copy)
