"""Define the contract between the protocol and a method.

A method sees the base session once (`fit`), then each new session once (`learn`), and scores images
over all classes seen so far, in the order in which they came. Old images are never shown again: a
method that needs them keeps them itself, and declares it.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods.network import Network
from fewmore.methods.recipe import MethodConfig, Recipe
from fewmore.training.checkpoint import State
from fewmore.training.runtime import Runtime

__all__ = [
    "FrozenBackbone",
    "Method",
    "MethodConfig",
    "Recipe",
    "ScoresPerView",
    "TrainedNetwork",
]

ONE_VIEW = "one_view"  # the name of the scores by the first of several test views alone


class Method(ABC):
    """Learn classes session by session. Concrete classes are final, and constructors only store."""

    config_type: ClassVar[type[MethodConfig]] = MethodConfig  # the class of its settings
    name: ClassVar[str] = ""  # in tables and run folders; empty: the class's, in lower case
    keeps: str | None = None  # what it keeps of old images, in words; None: nothing
    # How many views of an image it averages at test time; None: those of the recipe.
    test_views: int | None = None
    # Whether what it learns depends on the order of the classes, by design; the exam asks.
    ordered: ClassVar[bool] = False
    features: ClassVar[str] = "cec"  # the feature recipe of its stage 1, unless another is named
    config: Any  # its settings; a subclass annotates it with its own Config

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        if not isinstance(recipe.method, self.config_type):
            raise ConfigError(
                f"{type(self).__name__} cannot use a recipe with the settings {recipe.method}, "
                "which are not its own: make one with fewmore.research.recipes.recipe"
            )
        if recipe.transform.separate_views > 1 and not isinstance(self, FrozenBackbone):
            raise ConfigError(
                f"{type(self).__name__} trains on after stage 1 and has no prototypes of single "
                "test views: --set transform.view_features=mean averages their features"
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


class TrainedNetwork(Method):
    """Score images by the network itself, which each session may train on."""

    def scores(self, images: ImageSet) -> Tensor:
        """Score images over all classes seen so far: (images, classes)."""
        return self.network.scores_of(self.network.embed(images))

    def state(self) -> State:
        """Return all that was learnt; methods add what they have beside the network."""
        return {"sessions": self.sessions, "network": self.network.state()}

    def restore(self, state: State) -> None:
        """Return to a state."""
        self.sessions = state["sessions"]
        self.network.restore(state["network"])


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


class ScoresPerView(FrozenBackbone):
    """Score each separate test view by what was learnt of that view, and average the scores.

    A network that was trained with rotation labels tells a rotated image from an unrotated one, so
    it is compared with prototypes of images that were rotated alike. Where features are averaged
    over test views, or there is one, there is a single score.
    """

    @abstractmethod
    def view_scores(self, features: Tensor, view: int) -> Tensor:
        """Score the features (images, d) of one view over all classes seen so far."""

    def state(self) -> State:
        """Return all that was learnt; methods add what they have beside the network."""
        return {"sessions": self.sessions, "network": self.network.state()}

    def restore(self, state: State) -> None:
        """Return to a state."""
        self.sessions = state["sessions"]
        self.network.restore(state["network"])

    def embed(self, images: ImageSet) -> Tensor:
        """Compute features, those of separate test views side by side: (images, views · d)."""
        return self.network.embed(images)

    @torch.no_grad()
    def scores_of(self, features: Tensor) -> Tensor:
        """Score features over all classes seen so far: the mean over views."""
        views = self.split_views(features)
        if len(views) == 1:
            return self.view_scores(features, 0)
        scores = [self.view_scores(of_view, number) for number, of_view in enumerate(views)]
        return torch.stack(scores).mean(0)

    @torch.no_grad()
    def also_scores_of(self, features: Tensor) -> dict[str, Tensor]:
        """Return the scores of the first view alone, where there are several."""
        views = self.split_views(features)
        return {} if len(views) == 1 else {ONE_VIEW: self.view_scores(views[0], 0)}

    def split_views(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """Return the part of each view of features or prototypes, (n, d) each."""
        return torch.split(vectors, self.network.backbone.dim, 1)
