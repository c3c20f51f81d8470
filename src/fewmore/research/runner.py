"""An experiment from its settings to its run folder: one method on one benchmark, over seeds and draws.

    runs/<benchmark>-<method>-<time>/
        config.json              what was asked for
        result.json              what was measured, once all runs are done
        report.html              all of it on one page
        figures/                 accuracy by session, base against novel
        seed0/ or seed0-draw1/   one run each:
            metrics.jsonl            every round and session, as it happens
            checkpoint.safetensors   what a killed run resumes from
            predictions.safetensors  what was answered for every test image after every session
            model.safetensors        what was learnt

Runs share the loaded images. On a GPU several run side by side, each in its own stream: a small network leaves most
of a large GPU idle.
"""

import dataclasses
import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fewmore import methods
from fewmore.data import benchmarks, splits
from fewmore.data.benchmarks import Task
from fewmore.errors import CheckpointError
from fewmore.io import write_bytes
from fewmore.methods import MethodInfo
from fewmore.methods.base import Recipe
from fewmore.research import protocol, results
from fewmore.research.protocol import Outcome
from fewmore.research.results import Run, RunResult, SessionSize
from fewmore.training.checkpoint import Checkpoint, write_state
from fewmore.training.loop import Round, Runtime, beside_others

SIDE_BY_SIDE = 5  # runs on a GPU


@dataclass(frozen=True)
class Experiment:
    """What is run: enough to repeat it."""

    benchmark: str
    method: str
    recipe: Recipe
    settings: Mapping[str, Any] = field(default_factory=dict)  # what was changed in the recipe
    seeds: tuple[int, ...] = (0,)
    draws: tuple[int | None, ...] = (
        None,
    )  # None: the official lists where there are any, else draw 0
    base: int | None = None
    way: int | None = None
    shot: int | None = None
    class_order: int | None = None

    def runs(self) -> list[tuple[int, int | None]]:
        """Seed and draw of each run."""
        return [(seed, draw) for seed in self.seeds for draw in self.draws]

    def to_json(self) -> str:
        return json.dumps({"config": 1, **dataclasses.asdict(self)}, indent=1)

    def key(self) -> str:
        """A short name of everything that decides the outcome."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]


class Watcher:
    """Is told how an experiment goes on, from several threads; this one does not care."""

    def on_load(self, done: int, total: int) -> None:
        """Images were read."""

    def on_task(self, task: Task) -> None:
        """The images are there and the runs begin."""

    def on_round(self, run: str, report: Round) -> None:
        """A round of training is over."""

    def on_session(self, run: str, outcome: Outcome) -> None:
        """A session was learnt and tested."""


def run_name(seed: int, draw: int | None) -> str:
    return f"seed{seed}" if draw is None else f"seed{seed}-draw{draw}"


def new_folder(runs: Path, experiment: Experiment) -> Path:
    """A folder for an experiment, with its config in it."""
    stem = f"{experiment.benchmark.replace(':', '-').replace('/', '-')}-{Path(experiment.method).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        folder = runs / (stem + suffix)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise CheckpointError(
                f"{folder} cannot be made ({error.strerror}): give another place for run folders with --runs"
            ) from error
        write_bytes(folder / "config.json", experiment.to_json().encode())
        return folder
    raise CheckpointError(f"no name is left for a run folder {runs / stem}")


def discard_unused(folder: Path) -> None:
    """Remove a run folder in which no run began."""
    if [path.name for path in folder.iterdir()] == ["config.json"]:
        (folder / "config.json").unlink()
        folder.rmdir()


def is_finished(folder: Path) -> bool:
    return (folder / "result.json").exists()


def folders_of(
    runs: Path, experiments: Sequence[Experiment], finished_first: bool = True
) -> list[Path | None]:
    """The folder of each experiment: the newest finished one, else the newest, None if it was never begun."""
    configs = sorted(
        runs.glob("*/config.json"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    found = [(path.parent, path.read_text()) for path in configs]
    same = [
        [folder for folder, text in found if text == experiment.to_json()]
        for experiment in experiments
    ]
    return [
        min(folders, key=lambda folder: is_finished(folder) != finished_first, default=None)
        for folders in same
    ]


def folders_to_resume(runs: Path, experiments: Sequence[Experiment]) -> list[Path | None]:
    """Where each experiment of a stopped command goes on: its newest unfinished folder, else its finished one, None if not begun."""
    folders = folders_of(runs, experiments, finished_first=False)
    begun = [folder for folder in folders if folder is not None]
    if not begun:
        raise CheckpointError(
            f"there is nothing to resume: no run below {runs} has these settings; leave out --resume to start one"
        )
    if len(begun) == len(folders) and all(map(is_finished, begun)):
        listed = " ".join(map(str, begun))
        what = f"{listed} is finished" if len(begun) == 1 else f"all {len(begun)} runs are finished"
        raise CheckpointError(
            f"there is nothing to resume: {what}; see it with: fewmore compare {listed}"
        )
    return folders


@dataclass(frozen=True)
class Plan:
    """An experiment, the folder that it goes into, and who is told how it goes on."""

    experiment: Experiment
    folder: Path
    watcher: Watcher = field(default_factory=Watcher)


def run(
    experiment: Experiment,
    folder: Path,
    device: torch.device,
    data_root: Path | None = None,
    command: str = "",
    parallel: int | None = None,
    checkpoint_every: float = 20.0,
    share: Path | None = None,
    watcher: Watcher | None = None,
    task: Task | None = None,
) -> RunResult:
    """Run an experiment in a folder, going on where the folder left off, and write its result."""
    plan, e = Plan(experiment, folder, watcher or Watcher()), experiment
    if task is None:
        task = benchmarks.load(
            e.benchmark,
            data_root,
            e.base,
            e.way,
            e.shot,
            e.draws[0],
            e.class_order,
            plan.watcher.on_load,
        )
    (result,) = run_together([plan], task, device, command, parallel, checkpoint_every, share)
    return result


def run_together(
    plans: Sequence[Plan],
    task: Task,
    device: torch.device,
    command: str = "",
    parallel: int | None = None,
    checkpoint_every: float = 20.0,
    share: Path | None = None,
) -> list[RunResult]:
    """Run experiments on the same images and sessions, several runs at a time on a GPU, and write each result as soon as it is there."""
    task = dataclasses.replace(task, train=task.train.to(device), test=task.test.to(device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # runs read the images from streams of their own
    stop, clock = threading.Event(), _Clock()
    wanted = sum(len(plan.experiment.runs()) for plan in plans)
    workers = max(1, min(wanted, parallel or (SIDE_BY_SIDE if device.type == "cuda" else 1)))
    jobs: list[_OneRun] = []
    for plan in plans:
        info = methods.find(
            plan.experiment.method
        )  # once: a file of one's own may change while it runs
        plan.watcher.on_task(task)
        tasks = {draw: _redrawn(task, plan.experiment, draw) for draw in plan.experiment.draws}
        for seed, draw in plan.experiment.runs():
            jobs.append(
                _OneRun(
                    plan,
                    info,
                    seed,
                    draw,
                    tasks[draw],
                    device,
                    workers == 1,
                    checkpoint_every,
                    share,
                    stop,
                    clock,
                )
            )
    runs: dict[Path, dict[_OneRun, Run]] = {plan.folder: {} for plan in plans}
    found: dict[Path, RunResult] = {}

    def done(job: _OneRun, run: Run) -> None:
        own = runs[job.plan.folder]
        own[job] = run
        ordered = [own[other] for other in jobs if other in own]
        if len(ordered) == len(job.plan.experiment.runs()):
            found[job.plan.folder] = _gathered(
                job.plan, ordered, task, job.info, device, command, workers
            )

    _work(jobs, workers, stop, done)
    return [found[plan.folder] for plan in plans]


def _gathered(
    plan: Plan,
    runs: Sequence[Run],
    task: Task,
    info: MethodInfo,
    device: torch.device,
    command: str,
    workers: int,
) -> RunResult:
    e = plan.experiment
    result = results.gather(
        runs,
        benchmark=e.benchmark,
        method=e.method,
        recipe=e.recipe.name,
        split=task.split.name
        if len(e.draws) == 1
        else f"{len(e.draws)} draws: {task.split.name.partition(': ')[2]}",
        command=command,
        sessions=[SessionSize(*size) for size in protocol.session_sizes(task)],
        settings=e.settings,
        keeps=None if info.memory == "none" else info.memory,
        device=device,
    )
    result = dataclasses.replace(result, machine={**result.machine, "side_by_side": workers})
    results.write(plan.folder / "result.json", result)
    return result


def _redrawn(task: Task, e: Experiment, draw: int | None) -> Task:
    if draw == e.draws[0]:
        return task
    b = task.benchmark
    return dataclasses.replace(
        task, split=splits.draw(task.train, b.base, b.way, b.shot, draw or 0, e.class_order)
    )


def _work(
    jobs: "Sequence[_OneRun]",
    workers: int,
    stop: threading.Event,
    done: "Callable[[_OneRun, Run], None]",
) -> None:
    """Several runs at a time. Where one fails, or a person stops them, the others stop after the round they are in."""
    if workers == 1:
        for job in jobs:
            done(job, job())
        return
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(job): job for job in jobs}
        try:
            for future in as_completed(futures):
                done(futures[future], future.result())
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Clock:
    """The wall clock, shared among the runs that are under way at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[object, float] = {}
        self._since = time.monotonic()

    def start(self, run: object) -> None:
        with self._lock:
            self._tick()
            self._seconds[run] = 0.0

    def stop(self, run: object) -> float:
        """The run's share, in seconds."""
        with self._lock:
            self._tick()
            return round(self._seconds.pop(run), 3)

    def _tick(self) -> None:
        now = time.monotonic()
        for run in self._seconds:
            self._seconds[run] += (now - self._since) / len(self._seconds)
        self._since = now


@dataclass(eq=False)
class _OneRun:
    """One seed and draw, from its checkpoint if there is one to its files."""

    plan: Plan
    info: MethodInfo
    seed: int
    draw: int | None
    task: Task
    device: torch.device
    alone: bool
    checkpoint_every: float
    share: Path | None
    stop: threading.Event
    clock: _Clock

    def __call__(self) -> Run:
        name, watcher = run_name(self.seed, self.draw), self.plan.watcher
        folder = self.plan.folder / name
        folder.mkdir(exist_ok=True)
        log = _Log(folder / "metrics.jsonl")

        def on_round(report: Round) -> None:
            log.add(dataclasses.asdict(report))
            watcher.on_round(name, report)
            if self.stop.is_set():
                raise CancelledError

        def on_session(outcome: Outcome) -> None:
            measured = outcome.summary()
            row = {
                key: round(float(getattr(measured, key)[-1]), 4)
                for key in ("accuracy", "base", "novel", "harmonic")
            }
            log.add(
                {
                    "session": outcome.sessions - 1,
                    **{key: value for key, value in row.items() if value == value},
                }
            )
            watcher.on_session(name, outcome)

        self.clock.start(self)
        checkpoint = Checkpoint(folder / "checkpoint.safetensors", self.checkpoint_every)
        runtime = Runtime(
            self.device,
            checkpoint=checkpoint,
            on_round=on_round,
            share=self.share,
            alone=self.alone,
        )
        method = self.info.build(self.plan.experiment.recipe, runtime, self.seed)
        with beside_others(self.device):
            outcome = protocol.run(method, self.task, runtime, on_session)
            write_state(folder / "model.safetensors", method.state())
        predictions = {"predictions": dict(outcome.predictions), "confidence": outcome.confidence}
        write_state(
            folder / "predictions.safetensors",
            {"labels": outcome.labels, "session_of_class": outcome.session_of_class, **predictions},
        )
        also = {
            name: outcome.summary(name).accuracy.tolist() for name in outcome.predictions if name
        }
        if any(outcome.images_kept):
            also["images_kept"] = list(map(float, outcome.images_kept))
        seconds = {
            **outcome.seconds,
            **log.seconds(),
            "share of the wall clock": self.clock.stop(self),
        }
        return Run(
            self.seed, self.draw, outcome.summary(), seconds, _peak_memory_mb(self.device), also
        )


class _Log:
    """metrics.jsonl: one JSON object a line. What a resumed run does again is not written again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a kill may have cut the last line
        if whole != text:
            write_bytes(path, whole.encode())
        self.lines = [json.loads(line) for line in whole.splitlines()]
        self.known = {self._key(line) for line in self.lines}

    def add(self, line: dict[str, Any]) -> None:
        if self._key(line) in self.known:
            return
        self.known.add(self._key(line))
        self.lines.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def seconds(self) -> dict[str, float]:
        """Time by stage of training."""
        total: dict[str, float] = {}
        for line in self.lines:
            if "stage" in line:
                stage = "sessions" if line["stage"].startswith("session ") else line["stage"]
                total[stage] = round(total.get(stage, 0.0) + line["seconds"], 3)
        return total

    @staticmethod
    def _key(line: dict[str, Any]) -> tuple[Any, ...]:
        return (line.get("stage"), line.get("round"), line.get("session"))


def _peak_memory_mb(device: torch.device) -> float:
    """The most memory that was in use: on the GPU by all runs together, on a CPU by the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
