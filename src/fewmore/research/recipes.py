"""Experiments: functions from a benchmark and a method to a frozen recipe.

`official` is what the authors' program does, `paper` what the text says, `mild` is for images that are stored small, `quick` what
a laptop can do in a minute. A variant is `dataclasses.replace`, on the command line `--set pretrain.epochs=50`.
"""

import ast
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fewmore.data.benchmarks import Benchmark
from fewmore.errors import ConfigError, UnknownName
from fewmore.methods.base import Recipe
from fewmore.methods.settings import DistillationConfig, LucirConfig, TopicConfig
from fewmore.training.learn_session import SessionConfig
from fewmore.training.loop import EpochsConfig
from fewmore.training.pretrain import PretrainConfig
from fewmore.training.pseudo_incremental import PseudoConfig

MILESTONES = {"cifar100": (60, 70), "miniimagenet": (40, 70), "cub200": (30, 40, 60, 80)}
ENCODER_LR = {"cifar100": 0.002}  # of stage 2; 0.0002 elsewhere
QUERIES = {"cub200": 10}  # of stage 2; 15 elsewhere
LINEAR = {
    "finetune",
    "linear",
    "decoupled-linear",
    "decoupled-l2",
    "icarl",
    "eeil",
    "topic",
}  # stage 1 with a linear classifier

# The whole network, or the new rows from random values, at the rate of stage 1: the ablation's rows without data init.
TRAINED = SessionConfig(data_init=False, epochs=100, lr=0.1)
# The comparison's fine-tuning goes gently, as a person would who hopes to keep the old classes.
GENTLE = SessionConfig(data_init=False, epochs=100, lr=0.01)
# How the other methods of the comparison learn a session. EpochsConfig and milestones are their papers', and so is where new rows start: from
# class means in LUCIR, else at random. The papers' rates and weights are for hundreds of images of each new class; those here were
# chosen on base classes alone, out of the same eight for each method (benchmarks/tuning.py, results/bench-tuning-gpu.json).
SESSIONS = {
    "finetune": GENTLE,
    "linear": TRAINED,
    "cosine": TRAINED,
    "icarl": SessionConfig(
        data_init=False, epochs=70, lr=0.001, milestones=(49, 63), decay=0.2, frozen_norm=True
    ),
    "eeil": SessionConfig(
        data_init=False, epochs=40, lr=0.001, milestones=(10, 20, 30), frozen_norm=True
    ),
    "lucir": SessionConfig(epochs=160, lr=0.01, milestones=(80, 120)),
    "topic": SessionConfig(data_init=False, epochs=100, lr=0.001),
}
BALANCED = EpochsConfig(
    epochs=30, lr=0.0001, milestones=(10, 20)
)  # EEIL's second part, at a tenth of the first one's rate
DISTILLATION = {"icarl": DistillationConfig(weight=5.0), "eeil": DistillationConfig(weight=5.0)}
LUCIR = LucirConfig(less_forget=25.0)
TOPIC = TopicConfig(anchor=0.5)


def official(benchmark: Benchmark, method: str) -> Recipe:
    """What the authors' released program does, but for choosing epochs on the test set."""
    queries = QUERIES.get(benchmark.name, 15)
    pseudo = PseudoConfig(
        base_query=queries, new_query=queries, encoder_lr=ENCODER_LR.get(benchmark.name, 0.0002)
    )
    if method == "cec-meta":
        pseudo = replace(pseudo, angles=())
    return Recipe(
        "official",
        benchmark.backbone,
        benchmark.transform,
        "imagenet" if benchmark.pretrained else None,
        PretrainConfig(milestones=MILESTONES.get(benchmark.name, (60, 70))),
        SESSIONS.get(method, replace(TRAINED, data_init=True)),
        pseudo,
        distillation=DISTILLATION.get(method, DistillationConfig()),
        balanced=BALANCED,
        lucir=LUCIR,
        topic=TOPIC,
    )


def paper(benchmark: Benchmark, method: str) -> Recipe:
    """What the text says where the program does otherwise: see docs/method.md."""
    made = official(benchmark, method)
    pseudo = replace(
        made.pseudo,
        same_classes=False,
        encoder="last",
        base_query=10,
        new_query=10,
        augmented_rounds=made.pseudo.rounds,
    )
    return replace(made, name="paper", pseudo=pseudo, deepemd=replace(made.deepemd, centred=False))


def mild(benchmark: Benchmark, method: str) -> Recipe:
    """`official` for images that are stored no larger than they are seen: a small crop of such an image is a blur.

    A crop is enlarged at most twice, and batch norm takes its statistics over 32 images, as the authors' four GPUs did: the better
    choice on base images held out (docs/log.md).
    """
    made = official(benchmark, method)
    return replace(
        made,
        name="mild",
        transform=replace(made.transform, scale=(0.25, 1.0)),
        pretrain=replace(made.pretrain, ghost=32),
    )


def quick(benchmark: Benchmark, method: str) -> Recipe:
    """A small part of the epochs, for a first look and for small machines."""
    made = official(benchmark, method)
    # An epoch goes over exemplars too, or a batch over nodes: about half a minute on a laptop's core for all sessions. Where fewer
    # epochs want other settings, they were chosen like those above, on glyphs (results/bench-tuning-cpu.json).
    fewer = {"icarl": 4, "eeil": 4, "lucir": 4, "topic": 16}
    if method in fewer:
        session = replace(
            made.session,
            epochs=fewer[method],
            batch=64,
            milestones=(),
            lr=0.001,
            frozen_norm=method != "lucir",
        )
    else:
        session = replace(made.session, epochs=40)
    # With a cosine classifier stage 1 stalls for some seeds at the rate that a linear one needs, and stage 2 collapses at four times the
    # encoder's (docs/log.md).
    rate = 0.03 if method in LINEAR else 0.01
    return replace(
        made,
        name="quick",
        pretrain=replace(made.pretrain, epochs=7, batch=32, lr=rate, milestones=(5,)),
        session=session,
        pseudo=replace(
            made.pseudo,
            episodes=100,
            milestones=(1,),
            base_query=5,
            new_query=5,
            lr=0.002,
            encoder_lr=0.005,
        ),
        exemplars=replace(made.exemplars, per_class=5),
        distillation=replace(made.distillation, weight=1.0),
        balanced=replace(made.balanced, epochs=2, batch=64, milestones=()),
        topic=replace(made.topic, nodes=100),
        deepemd=replace(made.deepemd, side=3),
    )


RECIPES: dict[str, Callable[[Benchmark, str], Recipe]] = {
    "official": official,
    "paper": paper,
    "mild": mild,
    "quick": quick,
}


def recipe(
    name: str | None, benchmark: Benchmark, method: str, settings: Sequence[str] = ()
) -> Recipe:
    """A recipe by name (the benchmark's own where none is given), with changed settings such as `pretrain.epochs=50`."""
    name = name or ("quick" if benchmark.name == "glyphs" else "official")
    if name not in RECIPES:
        raise UnknownName("recipe", name, RECIPES)
    changes = []
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(
                f"--set {setting}: write it as name=value, such as --set pretrain.epochs=50"
            )
        changes.append((path.split("."), text, path))
    made: Recipe = _changed(RECIPES[name](benchmark, method), changes)
    return made


def _changed(config: Any, changes: Sequence[tuple[list[str], str, str]]) -> Any:
    """A config with the field at each dotted path replaced by what the text says; all at once, as they are checked together."""
    kinds = get_type_hints(type(config))
    values: dict[str, Any] = {}
    groups: dict[str, list[tuple[list[str], str, str]]] = {}
    for (name, *inner), text, whole in changes:
        if name not in kinds or name == "name":
            raise UnknownName(
                f"setting of {type(config).__name__}", name, [n for n in kinds if n != "name"]
            )
        value = getattr(config, name)
        if not dataclasses.is_dataclass(value):
            if inner:
                raise ConfigError(
                    f"--set {whole}: '{name}' is a single value, not a group of settings"
                )
            values[name] = _parsed(text, kinds[name], value, whole)
        elif inner:
            groups.setdefault(name, []).append((inner, text, whole))
        else:
            names = ", ".join(f"{whole}.{f.name}" for f in dataclasses.fields(value))
            raise ConfigError(f"--set {whole}: that is a group of settings; name one of {names}")
    values |= {name: _changed(getattr(config, name), inner) for name, inner in groups.items()}
    return replace(config, **values)


def _parsed(text: str, hint: Any, was: Any, whole: str) -> Any:
    """A value from text, of a kind that the setting's annotation permits."""
    try:
        value = ast.literal_eval(
            {"true": "True", "false": "False", "none": "None"}.get(text.lower(), text)
        )
    except (
        ValueError,
        SyntaxError,
        TypeError,
        MemoryError,
        RecursionError,
    ):  # not a number, or not even Python
        value = text
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for kind in kinds:
        if (found := _as(kind, value)) is not _UNFIT:
            return found
    raise ConfigError(
        f"--set {whole}={text}: '{text}' is not {' or '.join(map(_in_words, kinds))}; it was {was!r}"
    )


_UNFIT = object()
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    NoneType: "none",
}


def _as(kind: Any, value: Any) -> Any:
    """The value as one of a kind, if it is one."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and number:
        return float(value)
    if kind is int and number and (isinstance(value, int) or value.is_integer()):
        return int(value)
    if get_origin(kind) is tuple:
        values = () if value == "" else value if isinstance(value, (tuple, list)) else (value,)
        items = get_args(kind)
        items = items[:1] * len(values) if items[-1] is ... else items
        found = [_as(item, v) for item, v in zip(items, values, strict=False)]
        return tuple(found) if len(items) == len(values) and _UNFIT not in found else _UNFIT
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else _UNFIT
    return value if kind in (bool, str, NoneType) and isinstance(value, kind) else _UNFIT


def _in_words(kind: Any) -> str:
    if get_origin(kind) is tuple:
        items = get_args(kind)
        return f"{'' if items[-1] is ... else f'{len(items)} '}numbers with commas between them"
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    return _WORDS.get(kind, str(kind))
