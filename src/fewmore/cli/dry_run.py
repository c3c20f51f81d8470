"""Print what `fewmore run` would do: `fewmore run --dry-run`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fewmore.cli.terminal import plain

if TYPE_CHECKING:  # torch waits until the command runs
    from fewmore.data.benchmarks import Task
    from fewmore.methods.base import Recipe
    from fewmore.research.experiment import Experiment


def print_plan(
    experiments: "list[Experiment]", runs: Path, resume: bool, load_task: "Callable[[], Task]"
) -> None:
    """Print the recipe, settings, split, runs and folder of each experiment.

    Names and numbers that cannot be are refused, as far as that needs no images. The task is loaded
    only where a run to resume may have had its settings fitted to it.
    """
    from fewmore.methods import find
    from fewmore.research import run_folder
    from fewmore.research.experiment import run_name
    from fewmore.research.fitting import fit_to_base

    splits = [_split(experiment) for experiment in experiments]
    for experiment in experiments:
        _check_backbone(experiment.recipe)
    folders = run_folder.find(runs, experiments, prefer_finished=False)
    if resume and _may_be_fitted(experiments, folders, runs):
        task = load_task()
        experiments = [fit_to_base(experiment, task) for experiment in experiments]
        folders = run_folder.find(runs, experiments, prefer_finished=False)
    out = plain()
    for experiment, split, folder in zip(experiments, splits, folders, strict=True):
        texts = [f"{name}={value}" for name, value in experiment.settings.items()]
        out.print(f"{find(experiment.method).name} on {experiment.benchmark}")
        out.print(f"  recipe    {experiment.recipe.name}, {experiment.recipe.backbone}")
        out.print(f"  settings  {' '.join(texts) or 'those of the recipe'}")
        kind = "the validation split of " if experiment.validation else ""
        out.print(f"  split     {kind}{split}")
        out.print(f"  runs      {' '.join(run_name(*pair) for pair in experiment.runs())}")
        out.print(f"  folder    {_folder(folder if resume else None, runs)}")


def _may_be_fitted(experiments: "list[Experiment]", folders: list[Path | None], runs: Path) -> bool:
    """Return whether a folder that was not found may be there, with settings that were fitted."""
    from fewmore.research import run_folder

    configs = [path.read_text(encoding="utf-8") for path in runs.glob(f"*/{run_folder.CONFIG}")]
    return any(
        f'"method": {json.dumps(experiment.method)}' in config
        for experiment, folder in zip(experiments, folders, strict=True)
        for config in configs
        if folder is None
    )


def _check_backbone(recipe: "Recipe") -> None:
    """Refuse a backbone, or a file of weights, that there is not."""
    from fewmore.nn.backbones import check_name, check_weights

    check_name(recipe.backbone)
    if recipe.weights is not None and recipe.weights != "imagenet":
        check_weights(recipe.backbone, Path(recipe.weights))


def _split(experiment: "Experiment") -> str:
    from fewmore.data import benchmarks
    from fewmore.data.loading import reshape

    benchmark = reshape(benchmarks.find(experiment.benchmark), **experiment.split())
    if benchmark.plan:
        return benchmark.describe_sessions()
    order = "" if experiment.class_order is None else f", class order {experiment.class_order}"
    return f"{benchmark.base} base classes, then {benchmark.way}-way {benchmark.shot}-shot{order}"


def _folder(found: Path | None, runs: Path) -> str:
    from fewmore.research import run_folder

    if found is None:
        return f"a new one in {runs}"
    return f"{found}, which is {'' if run_folder.is_finished(found) else 'un'}finished"
