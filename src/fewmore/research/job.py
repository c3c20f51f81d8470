"""Run one seed and draw of an experiment, and write its files (run_folder.py says which).

A launcher (launchers/) calls the jobs of all runs, here or on other machines.
"""

import dataclasses
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fewmore.data.benchmarks import Task
from fewmore.errors import FewmoreError, MethodError, describe
from fewmore.io import write_bytes
from fewmore.methods import MethodInfo
from fewmore.methods.base import Method
from fewmore.research import loggers, protocol, run_folder
from fewmore.research.clock import SharedClock
from fewmore.research.experiment import Experiment, run_name
from fewmore.research.machine import BUSY, machine_facts, shares_gpu
from fewmore.research.metrics_log import MetricsLog
from fewmore.research.predictions import write_predictions, write_scores
from fewmore.research.protocol import Outcome
from fewmore.research.results import WALL_CLOCK, Run
from fewmore.training.checkpoint import Checkpoint, write_state
from fewmore.training.distributed import world_size
from fewmore.training.fast_path import share_gpu
from fewmore.training.runtime import Round, Runtime

if TYPE_CHECKING:
    from fewmore.research.launchers.base import Launcher

RUNS_ON_GPU = 5  # computed side by side


class Watcher:
    """Receive the progress of an experiment, from several threads; this one ignores it."""

    def on_task(self, task: Task) -> None:
        """Report that the images are loaded and the runs begin."""

    def on_round(self, run: str, report: Round) -> None:
        """Report the end of a round of training."""

    def on_session(self, run: str, outcome: Outcome) -> None:
        """Report that a session was learnt and tested."""

    def on_loss(self, run: str, reason: str) -> None:
        """Report that a run lost its worker, and goes on elsewhere from its checkpoint."""


@dataclass(frozen=True)
class RunOptions:
    """Hold where and how runs are computed; results differ by rounding only."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    command: str = ""  # as it was typed, for the result
    parallel: int | None = None  # runs side by side; None: RUNS_ON_GPU on a GPU, else 1
    checkpoint_every: float = 20.0  # seconds
    stage1_cache: Path | None = None  # where methods share stage 1
    accel: bool = True  # use the GPU fast path
    precision: str | None = None  # of training; None: what suits the device
    batch_norm: str = "sync"  # in several processes: statistics over all (sync), or in each (local)
    save_scores: bool = False  # also write the scores of all test images after each session
    save_sessions: bool = False  # also write the model after each session
    loggers: tuple[str, ...] = ()  # names of loggers/ that are told of every round and session
    launcher: "Launcher | None" = None  # where runs are computed; None: in threads of this process

    def workers(self, runs: int) -> int:
        """Return how many of so many runs share the device that they are computed on."""
        if self.launcher is not None:
            return self.launcher.side_by_side
        if world_size() > 1:
            return 1
        most = self.parallel or (RUNS_ON_GPU if self.device.type == "cuda" else 1)
        return max(1, min(runs, most))

    @property
    def place(self) -> str:
        """Say where runs are computed."""
        place = str(self.device if self.launcher is None else self.launcher)
        return place if world_size() == 1 else f"{world_size()} processes on {self.device.type}"

    def notes(self) -> list[str]:
        """Return notes on where the device or the launcher cannot do what was asked for."""
        if self.launcher is not None:
            return self.launcher.notes()
        return Runtime(
            self.device, accel=self.accel, precision=self.precision, batch_norm=self.batch_norm
        ).notes()


@dataclass(frozen=True)
class Plan:
    """Pair an experiment with its run folder and the watcher of its progress."""

    experiment: Experiment
    folder: Path
    watcher: Watcher = field(default_factory=Watcher)


@dataclass(frozen=True)
class Measured:
    """Hold what a finished run adds to the result: its measures, and where it was computed."""

    run: Run
    machine: Mapping[str, Any]


@dataclass(eq=False)
class Job:
    """Run one seed and draw of a plan and write its files."""

    plan: Plan
    method_info: MethodInfo
    seed: int
    draw: int | None
    task: Task
    options: RunOptions
    exclusive: bool  # no other run shares the device
    stop: threading.Event  # set when another job has failed whose failure concerns this one
    clock: SharedClock
    home: Path | None = None  # where the run's folder will lie, if it is computed elsewhere
    reporting_error: Exception | None = None  # what a watcher or logger failed with

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        return run_name(self.seed, self.draw)

    @property
    def folder(self) -> Path:
        """Return the folder of the run."""
        return self.plan.folder / self.name

    def __call__(self) -> Measured:
        if self.stop.is_set():
            raise CancelledError
        self.folder.mkdir(exist_ok=True)
        facts = loggers.RunFacts(self.plan.experiment, self.folder, self.seed, self.draw, self.home)
        self.clock.start(self)
        try:
            with loggers.opened(self.options.loggers, facts) as self.loggers:
                return self._run()
        except BaseException:
            self.clock.abandon(self)
            raise

    def _run(self) -> Measured:
        self.log = MetricsLog(self.folder / run_folder.METRICS)
        self.runtime = self._runtime()
        was_shared = shares_gpu(self.options.device)
        recipe = self.plan.experiment.recipe
        with share_gpu(self.options.device), self._explained():
            self.method = self.method_info.build(recipe, self.runtime, self.seed)
            outcome = protocol.run(
                self.method, self.task, self.runtime, self._on_session, self.options.save_scores
            )
            write_state(self.folder / run_folder.MODEL, self.method.state())
        write_predictions(self.folder, outcome, self.task)
        machine = {
            **machine_facts(self.options.device),
            **self.runtime.describe(),
            "checks": ", ".join(outcome.checks),
            BUSY: was_shared or shares_gpu(self.options.device),
        }
        return Measured(self._measure(outcome), machine)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Make a sentence of what the method fails with; the traceback goes into a file."""
        file = self.folder / run_folder.ERROR
        file.unlink(missing_ok=True)
        try:
            yield
        except (FewmoreError, CancelledError):
            raise
        except Exception as error:
            if error is self.reporting_error:
                raise
            write_bytes(file, "".join(traceback.format_exception(error)).encode())
            session = protocol.sessions_learnt(self.runtime.checkpoint)
            where = f"session {session}" if session else "the base session"
            raise MethodError(
                f"{self.method_info.name} fails in {where} of {self.name}: {describe(error)}; "
                f"traceback: {(self.home or self.folder) / run_folder.ERROR}"
            ) from error

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Remember an error in a report: it is not the method's."""
        try:
            yield
        except Exception as error:
            self.reporting_error = error
            raise

    def _runtime(self) -> Runtime:
        checkpoint = self.folder / run_folder.CHECKPOINT
        self.resumed = checkpoint.exists()
        return Runtime(
            self.options.device,
            checkpoint=Checkpoint(checkpoint, self.options.checkpoint_every),
            on_round=self._on_round,
            stage1_cache=self.options.stage1_cache,
            data_root=self.task.data_root,
            exclusive=self.exclusive,
            accel=self.options.accel,
            precision=self.options.precision,
            batch_norm=self.options.batch_norm,
        )

    def _on_round(self, report: Round) -> None:
        with self._reporting():
            self._log(dataclasses.asdict(report))
            self.plan.watcher.on_round(self.name, report)
        if self.stop.is_set():
            raise CancelledError

    def _on_session(self, outcome: Outcome) -> None:
        summary = outcome.summary()
        line: dict[str, Any] = {"session": outcome.sessions - 1}
        for key in ("accuracy", "base", "novel", "harmonic"):
            value = round(float(getattr(summary, key)[-1]), 4)
            if value == value:  # NaN where it is undefined
                line[key] = value
        with self._reporting():
            self._log(line)
            self._save_session(outcome)
            self.plan.watcher.on_session(self.name, outcome)

    def _log(self, line: dict[str, Any]) -> None:
        """Log a round or a session, once even if a resumed run repeats it."""
        if self.log.add(line):
            self.loggers.line(line)

    def _save_session(self, outcome: Outcome) -> None:
        """Write the model and the scores after a session, if they were asked for."""
        folder = run_folder.session_folder(self.folder, outcome.sessions - 1)
        if self.options.save_sessions:
            folder.mkdir(exist_ok=True)
            write_state(folder / run_folder.MODEL, self.method.state())
        if outcome.scores is not None:
            folder.mkdir(exist_ok=True)
            write_scores(folder, outcome.scores, outcome, self.task)

    def _measure(self, outcome: Outcome) -> Run:
        extra = {
            name: outcome.summary(name).accuracy.tolist() for name in outcome.predictions if name
        }
        if self.method_info.memory != "none" or any(outcome.images_kept):
            extra["images_kept"] = list(map(float, outcome.images_kept))
        views = _count_views(self.method)
        if views > 1:
            extra["test_views"] = [float(views)] * outcome.sessions
        seconds = self.log.seconds()
        wall_clock = self.clock.stop(self)
        if not self.resumed:  # what else was before the stop is not known
            seconds = {**outcome.seconds, **seconds, WALL_CLOCK: wall_clock}
        memory = _peak_memory_mb(self.options.device)
        return Run(self.seed, self.draw, outcome.summary(), seconds, memory, extra)


def _count_views(method: Method) -> int:
    """Return how many views of a test image are averaged: the method's own, or the recipe's."""
    if method.test_views is not None:
        return method.test_views
    return len(method.recipe.transform.test_views)


def _peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory: on a GPU of all runs together, on a CPU of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
