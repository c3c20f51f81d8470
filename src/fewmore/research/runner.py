"""Run experiments and write their run folders (see run_folder.py for what is in them).

`fewmore run`, `fewmore reproduce` and `fewmore tune` load a task, make a plan for each experiment
and call `run_plans`. A launcher (launchers/) computes the runs, one job (job.py) each.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from fewmore import methods
from fewmore.data import loading
from fewmore.data.benchmarks import Task
from fewmore.data.transform import Transform
from fewmore.errors import ConfigError, FewmoreError
from fewmore.research import protocol, results, run_folder
from fewmore.research.clock import SharedClock
from fewmore.research.experiment import Experiment
from fewmore.research.job import Job, Measured, Plan, RunOptions, Watcher
from fewmore.research.launchers.local import Local
from fewmore.research.machine import commit, source_digest
from fewmore.research.own_code import BENCHMARK, FEATURES, METHOD, features_source
from fewmore.research.results import RunResult, SessionSize
from fewmore.research.setting_list import setting_values
from fewmore.research.validation import redraw_shots, validation_task
from fewmore.training.device import prepare_device
from fewmore.training.distributed import is_first

__all__ = ["Plan", "RunOptions", "Watcher", "load_experiment", "load_task", "run_plans"]

T = TypeVar("T")
OnFailure = Callable[["Plan", Exception], None]


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


def load_experiment(
    experiment: Experiment,
    options: RunOptions,
    data_root: Path | None = None,
    on_load: Callable[[int, int], None] | None = None,
) -> Task:
    """Load the task of an experiment, with the shots of its first draw."""
    draw = experiment.draws[0]
    task = load_task(
        experiment.benchmark,
        options,
        data_root,
        on_load,
        None if experiment.validation else draw,
        [experiment.recipe.transform],
        **experiment.split(),
    )
    return validation_task(task, draw or 0) if experiment.validation else task


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
    # Of the files that are run: they may be edited before the result is written.
    source_digest(), commit()
    device = options.device
    task = dataclasses.replace(task, train=task.train.to(device), test=task.test.to(device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # the runs' own streams do not wait for these copies
    workers = options.workers(sum(len(plan.experiment.runs()) for plan in plans))
    launcher = options.launcher or Local()
    done: dict[Job, Measured] = {}
    finished: dict[Path, RunResult] = {}
    held = _hold(plans) if is_first() else ExitStack()
    try:
        with held:
            jobs = _jobs(plans, task, options, workers == 1, together=on_failure is None)
            computed = held.enter_context(closing(launcher.compute(jobs)))
            for job, call in computed:
                measured = _attempt(job, call, on_failure)
                if measured is None:
                    continue
                done[job] = measured
                siblings = [other for other in jobs if other.plan is job.plan]
                if any(other not in done for other in siblings):
                    continue
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


def _hold(plans: Sequence[Plan]) -> ExitStack:
    """Hold the folders of all plans until the stack is closed, or none of them."""
    with ExitStack() as held:
        for plan in plans:
            held.enter_context(run_folder.in_use(plan.folder))
        return held.pop_all()


def _jobs(
    plans: Sequence[Plan], task: Task, options: RunOptions, exclusive: bool, together: bool
) -> "list[Job]":
    """Return the jobs of all plans; they stop together, or those of each plan by themselves."""
    clock = SharedClock()
    stop_all = threading.Event()
    jobs = []
    for plan in plans:
        stop = stop_all if together else threading.Event()
        # Loaded once a plan: the file of a user's own method may change while it runs.
        method_info = methods.find(plan.experiment.method)
        plan.watcher.on_task(task)
        tasks = {draw: redraw(task, plan.experiment, draw) for draw in plan.experiment.draws}
        jobs += [
            Job(plan, method_info, seed, draw, tasks[draw], options, exclusive, stop, clock)
            for seed, draw in plan.experiment.runs()
        ]
    return jobs


def redraw(task: Task, experiment: Experiment, draw: int | None) -> Task:
    """Return the task with its shots drawn anew, unless it was loaded with this draw."""
    if draw == experiment.draws[0]:
        return task
    if experiment.validation:
        return redraw_shots(task, draw or 0)
    split = loading.draw_split(task.benchmark, task.train, task.keys, draw, experiment.class_order)
    before, after = ([each.classes for each in some.sessions] for some in (task.split, split))
    if before != after:
        raise ConfigError(
            f"draw {draw} has other classes in its sessions than the task that was given: "
            "give the experiment the class_order of the task"
        )
    return dataclasses.replace(task, split=split)


def _attempt(job: "Job", call: Callable[[], T], on_failure: OnFailure | None) -> T | None:
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


def _write_result(job: Job, measured: Sequence[Measured], workers: int) -> RunResult:
    """Gather the runs of a job's experiment and write them into its folder."""
    experiment = job.plan.experiment
    memory = job.method_info.memory
    now = {
        METHOD: job.method_info.source,
        FEATURES: features_source(experiment),
        BENCHMARK: job.task.benchmark.source,
    }
    # Hashes are those of when the run began, also where it was resumed; the task was read then.
    began = {**(run_folder.read_code(job.plan.folder) or {}), BENCHMARK: now[BENCHMARK]}
    sources = {
        name: {**source, "sha256": (began.get(name) or source)["sha256"]}
        for name, source in now.items()
        if source
    }
    result = results.gather(
        [each.run for each in measured],
        benchmark=experiment.benchmark,
        method=job.method_info.name,
        recipe=experiment.recipe.name,
        split=_split_name(experiment, job.task),
        command=job.options.command,
        sessions=[SessionSize(*size) for size in protocol.session_sizes(job.task)],
        settings=experiment.settings,
        all_settings=setting_values(experiment.recipe),
        keeps=None if memory == "none" else memory,
        machine={
            **_common_facts([each.machine for each in measured]),
            "side_by_side": workers,
            **({"launcher": job.options.place} if job.options.launcher else {}),
            **sources,
        },
    )
    results.write(job.plan.folder / run_folder.RESULT, result)
    return result


def _common_facts(machines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of the machines of all runs; where they differ, each fact once.

    A thing that is so of one run is said of all.
    """
    facts: dict[str, Any] = {}
    for name in machines[0]:
        values = list(dict.fromkeys(machine[name] for machine in machines))
        if all(isinstance(value, bool) for value in values):
            facts[name] = any(values)
        else:
            facts[name] = values[0] if len(values) == 1 else "; ".join(map(str, values))
    return facts


def _split_name(experiment: Experiment, task: Task) -> str:
    name = task.split.name
    if len(experiment.draws) == 1:
        return name
    kind = "validation, " if experiment.validation else ""
    return f"{kind}{len(experiment.draws)} draws: {name.partition(': ')[2]}"
