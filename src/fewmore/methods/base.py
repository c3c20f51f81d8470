"""Define the contract between the protocol and a method, and the recipe that a method is given.

A method sees the base session once (`fit`), then each new session once (`learn`), and scores images
over all classes seen so far, in the order in which they came. Old images are never shown again: a
method that needs them keeps them itself, and declares it.
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

    per_recipe: ClassVar[Mapping[str, Changes]] = {}  # where a recipe differs from the defaults

    @property
    def head(self) -> str:
        """Return the kind of classifier that stage 1 is trained with: cosine or linear."""
        return "cosine"

    @classmethod
    def for_recipe(cls, recipe: str, benchmark: Benchmark) -> "MethodConfig":
        """Return the settings for a recipe (official, paper, mild or quick) and a benchmark."""
        return override(cls(), cls.per_recipe.get(recipe, {}))


@dataclass(frozen=True)
class Recipe:
    """Hold all settings of an experiment: those common to all methods, and those of its method."""

    name: str
    backbone: str
    transform: Transform
    weights: str | None = None  # initial weights: None for random ones, "imagenet", or a file
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    method: Any = field(default_factory=MethodConfig)  # the method's Config


class Method(ABC):
    """Learn classes session by session. Concrete classes are final, and constructors only store."""

    config_type: ClassVar[type[MethodConfig]] = MethodConfig  # the class of its settings
    keeps: str | None = None  # what it keeps of old images, in words; None: nothing
    config: Any  # its settings; a subclass annotates it with its own Config

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        if not isinstance(recipe.method, self.config_type):
            raise ConfigError(
                f"{type(self).__name__} cannot use a recipe with the settings {recipe.method}, "
                "which are not its own: make one with fewmore.research.recipes.recipe"
            )
        self.recipe = recipe
        self.config = recipe.method
        self.runtime = runtime
        self.seed = seed
        self.sessions = 0  # sessions learnt, the base session included

    @abstractmethod
    def fit(self, base: ImageSet) -> None:
        """Learn the base session."""

    @abstractmethod
    def learn(self, session: ImageSet) -> None:
        """Learn a new session. Its labels start at 0; its classes come after the known ones."""

    @abstractmethod
    def scores(self, images: ImageSet) -> Tensor:
        """Score images over all classes seen so far: (images, classes)."""

    @abstractmethod
    def state(self) -> State:
        """Return all that was learnt, as nested dicts of tensors and JSON values."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Return to a state; all else stays as the constructor left it."""

    def images_kept(self) -> int:
        """Return how many old images are held now."""
        return 0


class FrozenBackbone(Method):
    """Learn with features that never change after `fit`, so that images are embedded only once."""

    @abstractmethod
    def embed(self, images: ImageSet) -> Tensor:
        """Compute features: (images, d)."""

    @abstractmethod
    def scores_of(self, features: Tensor) -> Tensor:
        """Score features over all classes seen so far."""

    def also_scores_of(self, features: Tensor) -> dict[str, Tensor]:
        """Return other scores of the same images that are worth reporting, by name."""
        return {}

    def scores(self, images: ImageSet) -> Tensor:
        """Score images over all classes seen so far: (images, classes)."""
        return self.scores_of(self.embed(images))
