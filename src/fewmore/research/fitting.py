"""Fit the settings of an experiment to the base session, before training."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from fewmore.data.benchmarks import Task
from fewmore.errors import FewmoreError, MethodError, describe
from fewmore.research.experiment import Experiment


def base_counts(task: Task) -> list[int]:
    """Return the number of training images of each base class."""
    base = task.split.sessions[0].select_from(task.train)
    counts: list[int] = base.class_counts().tolist()
    return counts


def fit_to_base(experiment: Experiment, task: Task) -> Experiment:
    """Return the experiment with its method's settings fitted, and recorded among its settings.

    Episodes that the base session is too small for get fewer ways or queries; where nothing fits,
    the method's settings raise ConfigError.
    """
    method = experiment.recipe.method
    try:
        fitted = method.fitted(base_counts(task))
    except FewmoreError:
        raise
    except Exception as error:  # of a user's own code
        raise MethodError(
            f"the settings of {experiment.method} cannot be fitted to the base session: "
            f"{describe(error)}"
        ) from error
    changes = dict(_changes(method, fitted))
    if not changes:
        return experiment
    recipe = dataclasses.replace(experiment.recipe, method=fitted)
    settings = {**experiment.settings, **changes}
    return dataclasses.replace(experiment, recipe=recipe, settings=settings)


def _changes(before: Any, after: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings that differ, by dotted name, as text."""
    for field in dataclasses.fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        name = prefix + field.name
        if dataclasses.is_dataclass(old) and type(old) is type(new):
            yield from _changes(old, new, f"{name}.")
        elif old != new:
            yield name, str(new)
