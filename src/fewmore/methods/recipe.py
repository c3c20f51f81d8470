"""Define recipes: the settings of an experiment, with those of its method among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Benchmark
from fewmore.training.pretrain import PretrainConfig

C = TypeVar("C")
Changes = Mapping[str, Any]  # of a config's fields; a nested mapping changes a nested config


def override(config: C, changes: Changes) -> C:
    """Replace fields of a config, all at once."""
    values = {
        name: override(getattr(config, name), value) if isinstance(value, Mapping) else value
        for name, value in changes.items()
    }
    return replace(config, **values)  # type: ignore[type-var]


@dataclass(frozen=True)
class MethodConfig:
    """Hold the settings of one method; a method with settings derives a `Config` from it."""

    # Where a benchmark and a recipe differ from the defaults, by their names.
    per_benchmark: ClassVar[Mapping[str, Changes]] = {}
    per_recipe: ClassVar[Mapping[str, Changes]] = {}

    @property
    def head(self) -> str:
        """Return the kind of classifier that stage 1 is trained with: cosine or linear."""
        return "cosine"

    @classmethod
    def for_recipe(cls, recipe: str, benchmark: Benchmark) -> "MethodConfig":
        """Return the settings for a recipe (official, paper, mild or quick) and a benchmark."""
        config = override(cls(), cls.per_benchmark.get(benchmark.name, {}))
        return override(config, cls.per_recipe.get(recipe, {}))

    def fitted(self, counts: Sequence[int]) -> "MethodConfig":
        """Return settings that fit a base session with these numbers of images by class.

        Called before training, so that what cannot be is found then: raise ConfigError.
        """
        return self


@dataclass(frozen=True)
class Recipe:
    """Hold all settings of an experiment: those common to all methods, and those of its method."""

    name: str
    # resnet8, resnet12, resnet20, resnet18, resnet18-3x3, mobilenet_v2, timm:NAME or mirrored:NAME
    backbone: str
    transform: Transform
    weights: str | None = None  # initial weights: None for random ones, "imagenet", or a file
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    method: Any = field(default_factory=MethodConfig)  # the method's Config
    features: str = "cec"  # the feature recipe that transform and pretrain are of
