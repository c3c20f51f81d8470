"""Run experiments and write their run folders (see run_folder.py for what is in them).

Both `fewmore run` and `fewmore reproduce` load a task, make a plan for each experiment and call
`run_plans`. Runs share the loaded images. On a GPU several runs are computed side by side, each in
a stream of its own: a small network leaves most of a large GPU idle.
"""

import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from fewmore import methods
from fewmore.data import loading
from fewmore.data.benchmarks import Task
from fewmore.data.transform import Transform
from fewmore.errors import FewmoreError
from fewmore.methods import MethodInfo
from fewmore.methods.base import Method
from fewmore.research import loggers, protocol, results, run_folder
from fewmore.research.clock import SharedClock
from fewmore.research.experiment import Experiment, run_name
from fewmore.research.machine import machine_facts, source_digest
from fewmore.research.metrics_log import MetricsLog
from fewmore.research.predictions import write_predictions, write_scores
from fewmore.research.protocol import Outcome
from fewmore.research.results import WALL_CLOCK, Run, RunResult, SessionSize
from fewmore.research.validation import redraw_shots
from fewmore.training.checkpoint import Checkpoint, write_state
from fewmore.training.device import prepare_device
from fewmore.training.fast_path import share_gpu
from fewmore.training.runtime import Round, Runtime

T = TypeVar("T")
OnFailure = Callable[["Plan", Exception], None]

RUNS_ON_GPU = 5  # computed side by side


class Watcher:
    """Receive the progress of an experiment, from several threads; this one ignores it."""

    def on_task(self, task: Task) -> None:
        """Report that the images are loaded and the runs begin."""

    def on_round(self, run: str, report: Round) -> None:
        """Report the end of a round of training."""

    def on_session(self, run: str, outcome: Outcome) -> None:
        """Report that a session was learnt and tested."""


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
    save_scores: bool = False  # also write the scores of all test images after each session
    save_sessions: bool = False  # also write the model after each session
    loggers: tuple[str, ...] = ()  # names of loggers/ that are told of every round and session

    def workers(self, runs: int) -> int:
        """Return how many of so many runs are computed side by side."""
        most = self.parallel or (RUNS_ON_GPU if self.device.type == "cuda" else 1)
        return max(1, min(runs, most))

    def notes(self) -> list[str]:
        """Return notes on where the device cannot do what was asked for."""
        return Runtime(self.device, accel=self.accel, precision=self.precision).notes()


@dataclass(frozen=True)
class Plan:
    """Pair an experiment with its run folder and the watcher of its progress."""

    experiment: Experiment
    folder: Path
    watcher: Watcher = field(default_factory=Watcher)


def load_task(
    benchmark: str,
    options: RunOptions,
    data_root: Path | None = None,
    on_load: Callable[[int, int], None] | None = None,
    draw: int | None = None,
    transforms: Sequence[Transform] = (),
    **split: int | None,
) -> Task:
    """Load a benchmark's images, as large as the transforms need, while the device warms up.

    `split` changes the benchmark's sessions: base, way, shot, class_order.
    """
    prepare_device(options.device, options.accel, options.precision)
    return loading.load_task(
        benchmark, data_root, on_progress=on_load, draw=draw, transforms=transforms, **split
    )


def run_plans(
    plans: Sequence[Plan],
    task: Task,
    options: RunOptions,
    on_result: Callable[[Plan, RunResult], None] = lambda plan, result: None,
    on_failure: OnFailure | None = None,
) -> list[RunResult]:
    """Run experiments on the same task, each going on where its folder left off.

    The result of an experiment is written as soon as its last run is done. If one run fails, the
    others stop after their current round. With `on_failure` only those of the same experiment do:
    it is told of the failure, and the results of the other experiments are returned.
    """
    source_digest()  # of the files that are run: they may be edited before the result is written
    device = options.device
    task = dataclasses.replace(task, train=task.train.to(device), test=task.test.to(device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # the runs' own streams do not wait for these copies
    workers = options.workers(sum(len(plan.experiment.runs()) for plan in plans))
    done: dict[_Job, Run] = {}
    finished: dict[Path, RunResult] = {}
    try:
        jobs = _jobs(plans, task, options, workers == 1, together=on_failure is None)
        for job, run in _work(jobs, workers, on_failure):
            done[job] = run
            siblings = [other for other in jobs if other.plan is job.plan]
            if all(other in done for other in siblings):
                runs = [done[other] for other in siblings]
                result = _attempt(job, partial(_write_result, job, runs, workers), on_failure)
                if result is not None:
                    finished[job.plan.folder] = result
                    on_result(job.plan, result)
    except FewmoreError:
        for plan in plans:
            run_folder.discard_unused(plan.folder)
        raise
    return [finished[plan.folder] for plan in plans if plan.folder in finished]


def _jobs(
    plans: Sequence[Plan], task: Task, options: RunOptions, exclusive: bool, together: bool
) -> "list[_Job]":
    """Return the jobs of all plans; they stop together, or those of each plan by themselves."""
    clock = SharedClock()
    stop_all = threading.Event()
    jobs = []
    for plan in plans:
        stop = stop_all if together else threading.Event()
        # Loaded once a plan: the file of a user's own method may change while it runs.
        method_info = methods.find(plan.experiment.method)
        plan.watcher.on_task(task)
        tasks = {draw: _redraw(task, plan.experiment, draw) for draw in plan.experiment.draws}
        jobs += [
            _Job(plan, method_info, seed, draw, tasks[draw], options, exclusive, stop, clock)
            for seed, draw in plan.experiment.runs()
        ]
    return jobs


def _redraw(task: Task, experiment: Experiment, draw: int | None) -> Task:
    """Return the task with its shots drawn anew, unless it was loaded with this draw."""
    if draw == experiment.draws[0]:
        return task
    if experiment.validation:
        return redraw_shots(task, draw or 0)
    split = loading.draw_split(task.benchmark, task.train, task.keys, draw, experiment.class_order)
    return dataclasses.replace(task, split=split)


def _work(
    jobs: "Sequence[_Job]", workers: int, on_failure: OnFailure | None
) -> "Iterator[tuple[_Job, Run]]":
    """Call the jobs, several at a time, and yield each with its run as it finishes."""
    if workers == 1:
        for job in jobs:
            run = _attempt(job, job, on_failure)
            if run is not None:
                yield job, run
        return
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(job): job for job in jobs}
        try:
            for future in as_completed(futures):
                run = _attempt(futures[future], future.result, on_failure)
                if run is not None:
                    yield futures[future], run
        except BaseException:
            for job in jobs:
                job.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _attempt(job: "_Job", call: Callable[[], T], on_failure: OnFailure | None) -> T | None:
    """Return what a call for a job returns, or None if it failed and `on_failure` was told.

    Of an experiment's runs the first failure is told; the others stop.
    """
    try:
        return call()
    except Exception as error:
        if on_failure is None:
            raise
        if not job.stop.is_set():
            job.stop.set()
            on_failure(job.plan, error)
        return None


@dataclass(eq=False)
class _Job:
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

    def __call__(self) -> Run:
        if self.stop.is_set():
            raise CancelledError
        self.name = run_name(self.seed, self.draw)
        self.folder = self.plan.folder / self.name
        self.folder.mkdir(exist_ok=True)
        facts = loggers.RunFacts(self.plan.experiment, self.folder, self.seed, self.draw)
        self.clock.start(self)
        try:
            with loggers.opened(self.options.loggers, facts) as self.loggers:
                return self._run()
        except BaseException:
            self.clock.abandon(self)
            raise

    def _run(self) -> Run:
        self.log = MetricsLog(self.folder / "metrics.jsonl")
        self.runtime = self._runtime()
        self.method = self.method_info.build(self.plan.experiment.recipe, self.runtime, self.seed)
        with share_gpu(self.options.device):
            outcome = protocol.run(
                self.method, self.task, self.runtime, self._on_session, self.options.save_scores
            )
            write_state(self.folder / run_folder.MODEL, self.method.state())
        self.checks = ", ".join(outcome.checks)
        write_predictions(self.folder, outcome, self.task)
        return self._measure(outcome)

    def _runtime(self) -> Runtime:
        checkpoint = self.folder / "checkpoint.safetensors"
        return Runtime(
            self.options.device,
            checkpoint=Checkpoint(checkpoint, self.options.checkpoint_every),
            on_round=self._on_round,
            stage1_cache=self.options.stage1_cache,
            data_root=self.task.data_root,
            exclusive=self.exclusive,
            accel=self.options.accel,
            precision=self.options.precision,
        )

    def _on_round(self, report: Round) -> None:
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
        if any(outcome.images_kept):
            extra["images_kept"] = list(map(float, outcome.images_kept))
        views = _count_views(self.method)
        if views > 1:
            extra["test_views"] = [float(views)] * outcome.sessions
        seconds = {
            **outcome.seconds,
            **self.log.seconds(),
            WALL_CLOCK: self.clock.stop(self),
        }
        memory = _peak_memory_mb(self.options.device)
        return Run(self.seed, self.draw, outcome.summary(), seconds, memory, extra)


def _write_result(job: _Job, runs: Sequence[Run], workers: int) -> RunResult:
    """Gather the runs of a job's experiment and write them into its folder."""
    experiment = job.plan.experiment
    memory = job.method_info.memory
    machine = machine_facts(job.options.device)
    sources = {
        "method_source": job.method_info.source,
        "features_source": methods.find_features(experiment.recipe.features).source,
        "benchmark_source": job.task.benchmark.source,
    }
    result = results.gather(
        runs,
        benchmark=experiment.benchmark,
        method=job.method_info.name,
        recipe=experiment.recipe.name,
        split=_split_name(experiment, job.task),
        command=job.options.command,
        sessions=[SessionSize(*size) for size in protocol.session_sizes(job.task)],
        settings=experiment.settings,
        keeps=None if memory == "none" else memory,
        machine={
            **machine,
            **job.runtime.describe(),
            "side_by_side": workers,
            "checks": job.checks,
            **{name: dict(source) for name, source in sources.items() if source},
        },
    )
    results.write(job.plan.folder / run_folder.RESULT, result)
    return result


def _split_name(experiment: Experiment, task: Task) -> str:
    name = task.split.name
    if len(experiment.draws) == 1:
        return name
    kind = "validation, " if experiment.validation else ""
    return f"{kind}{len(experiment.draws)} draws: {name.partition(': ')[2]}"


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
