"""Define the contract between the protocol and a method.

A method sees the base session once (`fit`), then each new session once (`learn`), and scores images
over all classes seen so far, in the order in which they came. Old images are never shown again: a
method that needs them keeps them itself, and declares it.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods.network import Network
from fewmore.methods.recipe import MethodConfig, Recipe
from fewmore.training.checkpoint import State
from fewmore.training.runtime import Runtime

__all__ = ["FrozenBackbone", "Method", "MethodConfig", "Recipe"]


class Method(ABC):
    """Learn classes session by session. Concrete classes are final, and constructors only store."""

    config_type: ClassVar[type[MethodConfig]] = MethodConfig  # the class of its settings
    name: ClassVar[str] = ""  # in tables and run folders; empty: the class's, in lower case
    keeps: str | None = None  # what it keeps of old images, in words; None: nothing
    # How many views of an image it averages at test time; None: those of the recipe.
    test_views: int | None = None
    # Whether what it learns depends on the order of the classes, by design; the exam asks.
    ordered: ClassVar[bool] = False
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
        self.network = Network(recipe, runtime)  # backbone and classifier, empty until fitted
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
