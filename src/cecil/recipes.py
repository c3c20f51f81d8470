"""Experiments: functions from a benchmark and a method to a frozen recipe.

`official` is what the authors' program does, `paper` what the text says, `quick` what a laptop can do in a minute. A variant is
`dataclasses.replace`, on the command line `--set pretrain.epochs=50`.
"""

import ast
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from cecil.data.benchmarks import Benchmark

from cecil.errors import ConfigError, UnknownName
from cecil.methods.base import Recipe
from cecil.stages.learn_session import SessionConfig
from cecil.stages.pretrain import PretrainConfig

MILESTONES = {"cifar100": (60, 70), "miniimagenet": (40, 70), "cub200": (30, 40, 60, 80)}

# The whole network, or the new rows from random values, at the rate of stage 1: the ablation's rows without data init.
TRAINED = SessionConfig(data_init=False, epochs=100, lr=0.1)
# The comparison's fine-tuning goes gently, as a person would who hopes to keep the old classes.
GENTLE = SessionConfig(data_init=False, epochs=100, lr=0.01)
SESSIONS = {"finetune": GENTLE, "linear": TRAINED, "cosine": TRAINED}


def official(benchmark: Benchmark, method: str) -> Recipe:
    """The settings of the authors' released program."""
    pretrain = PretrainConfig(milestones=MILESTONES.get(benchmark.name, (60, 70)))
    return Recipe(
        "official",
        benchmark.backbone,
        benchmark.transform,
        "imagenet" if benchmark.pretrained else None,
        pretrain,
        SESSIONS.get(method, dataclasses.replace(TRAINED, data_init=True)),
    )


def quick(benchmark: Benchmark, method: str) -> Recipe:
    """A tenth of the epochs, for a first look and for small machines."""
    recipe = official(benchmark, method)
    pretrain = dataclasses.replace(recipe.pretrain, epochs=12, batch=64, milestones=(8, 11))
    return dataclasses.replace(recipe, name="quick", pretrain=pretrain, session=dataclasses.replace(recipe.session, epochs=40))


RECIPES: dict[str, Callable[[Benchmark, str], Recipe]] = {"official": official, "quick": quick}


def recipe(name: str | None, benchmark: Benchmark, method: str, settings: Sequence[str] = ()) -> Recipe:
    """A recipe by name (the benchmark's own where none is given), with changed settings such as `pretrain.epochs=50`."""
    name = name or ("quick" if benchmark.name == "glyphs" else "official")
    if name not in RECIPES:
        raise UnknownName("recipe", name, RECIPES)
    made = RECIPES[name](benchmark, method)
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: write it as name=value, such as --set pretrain.epochs=50")
        made = _changed(made, path.split("."), text, path)
    return made


def _changed(config: Any, path: list[str], text: str, whole: str) -> Any:
    """A config with the field at a dotted path replaced by what the text says."""
    fields = {f.name: f for f in dataclasses.fields(config)}
    if path[0] not in fields or path[0] == "name":
        raise UnknownName(f"setting of {type(config).__name__}", path[0], [n for n in fields if n != "name"])
    value = getattr(config, path[0])
    if len(path) > 1 or dataclasses.is_dataclass(value):
        if not dataclasses.is_dataclass(value):
            raise ConfigError(f"--set {whole}: '{path[0]}' is a single value, not a group of settings")
        if len(path) == 1:
            names = ", ".join(f"{whole}.{f.name}" for f in dataclasses.fields(value))
            raise ConfigError(f"--set {whole}: that is a group of settings; name one of {names}")
        return dataclasses.replace(config, **{path[0]: _changed(value, path[1:], text, whole)})
    return dataclasses.replace(config, **{path[0]: _parsed(text, value, whole)})


def _parsed(text: str, like: Any, whole: str) -> Any:
    """A value from text, of the kind that the setting has."""
    try:
        value = ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    except (ValueError, SyntaxError):
        value = text
    if isinstance(like, tuple) and not isinstance(value, tuple):
        value = (value,)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = {
        bool: isinstance(value, bool),
        int: number and value == int(value),
        float: number,
        str: isinstance(value, str),
        tuple: isinstance(value, tuple) and all(isinstance(v, (int, float)) for v in value),
    }.get(type(like), True)
    if not fits:
        raise ConfigError(f"--set {whole}={text}: '{text}' is not a {type(like).__name__}; it was {like!r}")
    return float(value) if type(like) is float else int(value) if type(like) is int else value
