"""Make experiments of the options of research commands: names, numbers, or a config.json."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fewmore.errors import ConfigError

if TYPE_CHECKING:  # torch waits until the command runs
    from fewmore.research.experiment import Experiment


def experiments_of(
    benchmark: str | None,
    named: list[str] | None,
    features: list[str] | None,
    recipe: str | None,
    settings: list[str],
    **common: Any,
) -> "list[Experiment]":
    """Return an experiment for each method that is named, on each of the features."""
    if benchmark is None:
        raise typer.BadParameter("Missing argument 'BENCHMARK'.")
    if not named:
        raise typer.BadParameter("Missing option '--method' / '-m'.")
    methods = _method_names(named)
    on = _once("--features", features) if features else []
    check_names(benchmark, methods, on)
    from fewmore.data import benchmarks, loading
    from fewmore.research import recipes
    from fewmore.research.experiment import Experiment

    names = [method for method in methods for _ in on or [""]]
    shape = {name: common[name] for name in ("base", "way", "shot", "class_order")}
    # With its sessions, as a recipe may depend on the classes to come.
    found = loading.reshape(benchmarks.find(benchmark), **shape)
    chosen = recipes.recipes_for(recipe, found, names, settings, [*on] * len(methods) or None)
    return [
        Experiment(benchmark, method, own_recipe, own_settings, **common)
        for method, (own_recipe, own_settings) in zip(names, chosen, strict=True)
    ]


def read_config(path: Path, given: list[Any]) -> "Experiment":
    """Return the experiment of a run folder's config.json, which no option may change."""
    from fewmore.research import run_folder

    if any(value is not None for value in given):
        raise ConfigError(
            f"--config {path} says what is run: leave out the benchmark, the method, --features, "
            "--recipe, --set and the options of seeds, draws and classes"
        )
    try:
        experiment = run_folder.read_experiment(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--config {path} cannot be read ({error}): give the config.json of a run folder"
        ) from None
    run_folder.check_benchmark(path, experiment)
    return experiment


def check_names(benchmark: str, methods: list[str], features: Sequence[str] = ()) -> None:
    """Refuse a mistyped name before PyTorch is imported, which takes seconds."""
    from fewmore.data import benchmarks
    from fewmore.methods import find, find_features

    benchmarks.find(benchmark)
    for method in methods:
        find(method)
    for name in features:
        find_features(name)


def numbers(
    many: str, count: int | None, single: str, number: int | None
) -> tuple[int, ...] | None:
    """Return 0 … count − 1, or the single number; None if neither option was given."""
    if count is not None and number is not None:
        raise ConfigError(
            f"{many} (how many) and {single} (which one) were both given: keep one of them"
        )
    if number is not None:
        return (number,)
    return None if count is None else tuple(range(count))


def _method_names(given: list[str]) -> list[str]:
    """Return each method that is named, once."""
    from fewmore.methods import METHODS

    names: list[str] = []
    for name in _once("--method", given):
        names += METHODS if name == "all" else [name]
    return list(dict.fromkeys(names))


def _once(option: str, given: list[str]) -> list[str]:
    """Return each name that an option was given, once; say on standard error what is repeated."""
    names = ",".join(given).split(",")
    for name, count in Counter(names).items():
        if count > 1:
            typer.secho(
                f"{option} {name} was given {count} times, and is run once: "
                "several runs are --seeds 2",
                err=True,
                fg="yellow",
            )
    return list(dict.fromkeys(names))
