"""Make experiments, run them on a CPU, and make results of random predictions."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fewmore.data.benchmarks import Task
from fewmore.methods.base import Recipe
from fewmore.research import metrics, results, run_folder, runner
from fewmore.research.experiment import Experiment
from fewmore.research.results import RunResult
from fewmore.research.runner import Plan, RunOptions, Watcher


@pytest.fixture
def make_experiment(tiny_recipe_for: Callable[[str], Recipe]) -> Callable[..., Experiment]:
    """Return the function (method, **fields) -> Experiment."""

    def make_experiment(method: str = "decoupled-cosine", **fields: object) -> Experiment:
        return Experiment("tiny", method, tiny_recipe_for(method), **fields)

    return make_experiment


@pytest.fixture
def run(tiny_task: Task, tmp_path: Path) -> Callable[..., tuple[Path, RunResult]]:
    """Return the function (experiment, folder, watcher, **options) -> (folder, result)."""

    def run(
        experiment: Experiment,
        folder: Path | None = None,
        watcher: Watcher | None = None,
        task: Task = tiny_task,
        **options: object,
    ) -> tuple[Path, RunResult]:
        folder = folder or run_folder.create(tmp_path / "runs", experiment)
        plan = Plan(experiment, folder, watcher or Watcher())
        [result] = runner.run_plans([plan], task, RunOptions(**options))
        return folder, result

    return run


def make(
    benchmark="cifar100",
    method="cec",
    seeds=(0,),
    draws=(None,),
    base=60,
    way=5,
    sessions=9,
    skill=0.6,
    extra=(),
    seconds=(("pretrain", 41.239), ("evaluate", 1.5)),
    **about,
):
    """Make a result of random predictions, so that its numbers are consistent."""
    session_of_class = np.repeat(np.arange(sessions), [base] + [way] * (sessions - 1))
    labels = np.repeat(np.arange(len(session_of_class)), 4)
    runs = []
    for seed in seeds:
        for draw in draws:
            rng = np.random.default_rng([seed, draw or 0])
            predictions = np.full((sessions, len(labels)), -1)
            for session in range(sessions):
                arrived = session_of_class[labels] <= session
                guesses = rng.integers(0, (session_of_class <= session).sum(), len(labels))
                predicted = np.where(rng.random(len(labels)) < skill, labels, guesses)
                predictions[session, arrived] = predicted[arrived]
            summary = metrics.summarize(labels, session_of_class, predictions)
            series = {name: rng.random(sessions) * 100 for name in extra}
            runs.append(results.Run(seed, draw, summary, dict(seconds), 812.34, series))
    sizes = [results.SessionSize(base + way * i, 4 * (base + way * i)) for i in range(sessions)]
    about = {
        "recipe": results.schema.default_recipe(benchmark),
        "split": "official",
        "command": f"fewmore run {benchmark} --method {method}",
        **about,
    }
    return results.gather(runs, benchmark=benchmark, method=method, sessions=sizes, **about)


@pytest.fixture(scope="session")
def make_result():
    """Return the function that makes results."""
    return make
