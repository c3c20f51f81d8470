"""Make recipes: functions from a benchmark and a method to a frozen set of settings.

`official` is what the authors' program does, `paper` what the text says, `mild` is for images that
are stored small, `quick` is what a laptop can do in a minute. They hold the common settings; those
of a method are in the method's own file. A variant is `dataclasses.replace`, or on the command line
`--set pretrain.epochs=50`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fewmore.data.benchmarks import Benchmark
from fewmore.errors import UnknownName
from fewmore.methods import find
from fewmore.methods.base import Recipe
from fewmore.research.settings import apply_settings, distribute_settings
from fewmore.training.pretrain import PretrainConfig

MILESTONES = {"miniimagenet": (40, 70), "cub200": (30, 40, 60, 80)}  # (60, 70) on others


def official(benchmark: Benchmark, method: str) -> Recipe:
    """Do what the authors' released program does, but for choosing epochs on the test set."""
    return Recipe(
        "official",
        benchmark.backbone,
        benchmark.transform,
        "imagenet" if benchmark.pretrained else None,
        PretrainConfig(milestones=MILESTONES.get(benchmark.name, (60, 70))),
        find(method).config("official", benchmark),
    )


def paper(benchmark: Benchmark, method: str) -> Recipe:
    """Do what the text says where the program does otherwise: see docs/method.md."""
    base = official(benchmark, method)
    return replace(base, name="paper", method=find(method).config("paper", benchmark))


def mild(benchmark: Benchmark, method: str) -> Recipe:
    """Change `official` for images stored no larger than they are seen: small crops are a blur.

    A crop is enlarged at most twice, and batch norm takes its statistics over 32 images, as the
    authors' four GPUs did: the better choice on held-out base images (docs/log.md).
    """
    base = official(benchmark, method)
    return replace(
        base,
        name="mild",
        transform=replace(base.transform, scale=(0.25, 1.0)),
        pretrain=replace(base.pretrain, ghost=32),
        method=find(method).config("mild", benchmark),
    )


def quick(benchmark: Benchmark, method: str) -> Recipe:
    """Train for a small part of the epochs, for a first look and for small machines.

    Where fewer epochs need other settings, these were chosen on the validation split of glyphs
    (results/bench-tuning-cpu.json). All sessions take about a minute on a laptop's core.
    """
    base = official(benchmark, method)
    # Without a warm-up, or at the rates of longer training, stage 1 with a cosine head stays at
    # chance for a number of epochs that differs from seed to seed (docs/log.md).
    pretrain = replace(
        base.pretrain,
        epochs=7,
        batch=64,
        lr=0.05,
        schedule="cosine",
        warm_up=1,
        milestones=(),
    )
    method_config = find(method).config("quick", benchmark)
    return replace(base, name="quick", pretrain=pretrain, method=method_config)


RECIPES: dict[str, Callable[[Benchmark, str], Recipe]] = {
    "official": official,
    "paper": paper,
    "mild": mild,
    "quick": quick,
}


def recipe(
    name: str | None, benchmark: Benchmark, method: str, settings: Sequence[str] = ()
) -> Recipe:
    """Return a method's recipe by name, with changed settings such as `pretrain.epochs=50`."""
    [(changed, _)] = recipes_for(name, benchmark, [method], settings)
    return changed


def recipes_for(
    name: str | None, benchmark: Benchmark, methods: Sequence[str], settings: Sequence[str] = ()
) -> list[tuple[Recipe, dict[str, str]]]:
    """Return, for each method, its recipe and those of the changed settings that it has.

    Without a name it is the benchmark's default. A setting that no method has is an error; a
    method that lacks a setting of another one goes without it.
    """
    name = name or ("quick" if benchmark.name == "glyphs" else "official")
    if name not in RECIPES:
        raise UnknownName("recipe", name, RECIPES)
    plain = [RECIPES[name](benchmark, method) for method in methods]
    names = [find(method).name for method in methods]
    own_settings = distribute_settings(settings, plain, names)
    return [
        (apply_settings(recipe, texts), texts)
        for recipe, texts in zip(plain, own_settings, strict=True)
    ]
