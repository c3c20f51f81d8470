"""Method: what the protocol asks of every method, and what it is given.

A method sees the base session once (`fit`), then each new session once (`learn`), and scores images over all classes
seen so far, in the order they came. Whatever it wants to keep of old sessions it must keep itself, and declare.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Benchmark
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.training.checkpoint import State
from fewmore.training.pretrain import PretrainConfig
from fewmore.training.runtime import Runtime


@dataclass(frozen=True)
class MethodConfig:
    """Hold the settings of one method. A method with settings derives its own `Config` from it."""

    @property
    def head(self) -> str:
        """Return the kind of classifier that stage 1 is trained with: cosine or linear."""
        return "cosine"

    @classmethod
    def for_recipe(cls, recipe: str, benchmark: Benchmark) -> "MethodConfig":
        """Return the settings for a recipe (official, paper, mild or quick) and a benchmark."""
        return cls()


@dataclass(frozen=True)
class Recipe:
    """Hold all settings of an experiment: the common ones, and those of its method."""

    name: str
    backbone: str
    transform: Transform
    weights: str | None = (
        None  # where the backbone starts: None at random, "imagenet", or a file's path
    )
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    method: Any = field(default_factory=MethodConfig)  # the Config of the method


C = TypeVar("C")


def override(config: C, changes: Mapping[str, Any]) -> C:
    """Replace fields of a config all at once; a nested mapping replaces fields of a nested config."""
    values = {
        name: override(getattr(config, name), value) if isinstance(value, Mapping) else value
        for name, value in changes.items()
    }
    return replace(config, **values)  # type: ignore[type-var]


class Method(ABC):
    """A way to learn classes session by session. Final classes implement it; the constructor only stores."""

    config_type: ClassVar[type[MethodConfig]] = MethodConfig  # the settings that it reads
    keeps: str | None = None  # what it keeps of old images, in words; None: nothing
    config: Any  # a method annotates it with its own Config

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        if not isinstance(recipe.method, self.config_type):
            raise ConfigError(
                f"{type(self).__name__} needs a recipe whose method is its own Config, "
                f"not {recipe.method}: make it with fewmore.research.recipes.recipe"
            )
        self.recipe = recipe
        self.config = recipe.method
        self.runtime = runtime
        self.seed = seed
        self.sessions = 0  # how many sessions were learnt, the base included

    @abstractmethod
    def fit(self, base: ImageSet) -> None:
        """Learn the base session."""

    @abstractmethod
    def learn(self, session: ImageSet) -> None:
        """Learn a new session from its own images; its classes are numbered from 0 in it, and come after the known ones."""

    @abstractmethod
    def scores(self, images: ImageSet) -> Tensor:
        """Scores over all classes seen so far: (images, classes)."""

    @abstractmethod
    def state(self) -> State:
        """All that was learnt: nested dicts of tensors and JSON values."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Go back to a state; everything else is as the constructor left it."""

    def images_kept(self) -> int:
        """How many old images it holds now."""
        return 0


class FrozenBackbone(Method):
    """A method whose features never change after `fit`: images are embedded once, however often they are scored."""

    @abstractmethod
    def embed(self, images: ImageSet) -> Tensor:
        """Features, (images, d)."""

    @abstractmethod
    def scores_of(self, features: Tensor) -> Tensor:
        """Scores over all classes seen so far, from features."""

    def also_scores_of(self, features: Tensor) -> dict[str, Tensor]:
        """Other scores of the same images that are worth reporting beside, by name."""
        return {}

    def scores(self, images: ImageSet) -> Tensor:
        return self.scores_of(self.embed(images))
