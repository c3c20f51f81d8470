"""Make recipes: functions from a benchmark and a method to a frozen set of settings.

`official` is what the authors' program does, `paper` what the text says, `mild` is for images that
are stored small, `quick` is what a laptop can do in minutes. The settings of stage 1 are those of
a feature recipe, which is the method's own unless another is named; those of a method are in the
method's own file. A variant is `dataclasses.replace`, or on the command line
`--set pretrain.epochs=50`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from fewmore.data.benchmarks import Benchmark
from fewmore.errors import ConfigError, UnknownName
from fewmore.methods import find, find_features
from fewmore.methods.base import Recipe
from fewmore.research.results.schema import FEATURES_SETTING, default_recipe
from fewmore.research.settings import apply_settings, check_types, distribute_settings


def official(benchmark: Benchmark, method: str, features: str | None = None) -> Recipe:
    """Do what the authors' released program does, but for choosing epochs on the test set."""
    info = find(method)
    features = features or info.features
    stage1 = find_features(features).load()
    return Recipe(
        "official",
        benchmark.backbone,
        stage1.transform_for(benchmark),
        "imagenet" if benchmark.pretrained else None,
        stage1.for_benchmark(benchmark),
        info.config("official", benchmark),
        features,
    )


def paper(benchmark: Benchmark, method: str, features: str | None = None) -> Recipe:
    """Do what the text says where the program does otherwise: see docs/method.md."""
    base = official(benchmark, method, features)
    return replace(
        base,
        name="paper",
        pretrain=base.pretrain.for_recipe("paper"),
        method=find(method).config("paper", benchmark),
    )


def mild(benchmark: Benchmark, method: str, features: str | None = None) -> Recipe:
    """Change `official` for images stored no larger than they are seen: small crops are a blur.

    A crop is enlarged at most twice, and batch norm takes its statistics over 32 images, as the
    authors' four GPUs did: the better choice on held-out base images (docs/log.md).
    """
    base = official(benchmark, method, features)
    return replace(
        base,
        name="mild",
        transform=replace(base.transform, scale=(0.25, 1.0)),
        pretrain=base.pretrain.for_recipe("mild", ghost=32),
        method=find(method).config("mild", benchmark),
    )


def quick(benchmark: Benchmark, method: str, features: str | None = None) -> Recipe:
    """Train for a small part of the epochs, for a first look and for small machines.

    Where fewer epochs need other settings, these were chosen on the validation split of glyphs
    (results/bench-tuning-cpu.json). All sessions take about a minute on a laptop's core.
    """
    base = official(benchmark, method, features)
    # Without a warm-up, or at the rates of longer training, stage 1 with a cosine head stays at
    # chance for a number of epochs that differs from seed to seed (docs/log.md).
    pretrain = base.pretrain.for_recipe(
        "quick",
        epochs=7,
        batch=64,
        lr=0.05,
        schedule="cosine",
        warm_up=1,
        milestones=(),
    )
    method_config = find(method).config("quick", benchmark)
    return replace(base, name="quick", pretrain=pretrain, method=method_config)


RECIPES: dict[str, Callable[[Benchmark, str, str | None], Recipe]] = {
    "official": official,
    "paper": paper,
    "mild": mild,
    "quick": quick,
}


def recipe(
    name: str | None,
    benchmark: Benchmark,
    method: str,
    settings: Sequence[str] = (),
    features: str | None = None,
) -> Recipe:
    """Return a method's recipe by name, with changed settings such as `pretrain.epochs=50`."""
    [(changed, _)] = recipes_for(name, benchmark, [method], settings, [features])
    return changed


def recipes_for(
    name: str | None,
    benchmark: Benchmark,
    methods: Sequence[str],
    settings: Sequence[str] = (),
    features: Sequence[str | None] | None = None,
) -> list[tuple[Recipe, dict[str, str]]]:
    """Return, for each method, its recipe and those of the changed settings that it has.

    Without a name it is the benchmark's default. A setting that no method has is an error; a
    method that lacks a setting of another one goes without it. `features` names a feature recipe
    for each method, None being the method's own; so does the setting `features=NAME`, for all.
    """
    name = name or default_recipe(benchmark.name)
    if name not in RECIPES:
        raise UnknownName("recipe", name, RECIPES)
    chosen, settings = take_features(list(features or [None] * len(methods)), settings)
    infos = [find(method) for method in methods]
    plain = [
        RECIPES[name](benchmark, method, own) for method, own in zip(methods, chosen, strict=True)
    ]
    for info, recipe in zip(infos, plain, strict=True):
        if info.source:
            check_types(recipe.method, info.name)
    own_settings = distribute_settings(settings, plain, [info.name for info in infos])
    made = []
    for info, recipe, texts in zip(infos, plain, own_settings, strict=True):
        other = {} if recipe.features == info.features else {FEATURES_SETTING: recipe.features}
        with _named(info.name) if len(infos) > 1 else nullcontext():
            made.append((apply_settings(recipe, texts), {**other, **texts}))
    return made


@contextmanager
def _named(method: str) -> Iterator[None]:
    """Put the name of a method before what is wrong with its settings."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{method}: {error}") from None


def take_features(
    features: list[str | None], settings: Sequence[str]
) -> tuple[list[str | None], list[str]]:
    """Take `features=NAME` out of the settings: it decides which settings there are."""
    prefix = f"{FEATURES_SETTING}="
    rest = [setting for setting in settings if not setting.startswith(prefix)]
    named = [setting.removeprefix(prefix) for setting in settings if setting.startswith(prefix)]
    if not named:
        return features, rest
    if any(features):
        raise ConfigError(
            f"--features and --set {prefix}{named[-1]} both name a feature recipe: keep one"
        )
    return [named[-1]] * len(features), rest
