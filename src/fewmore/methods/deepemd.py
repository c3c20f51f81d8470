"""Compare feature maps cell by cell with the earth mover's distance (DeepEMD).

Zhang, Cai, Lin, Shen: DeepEMD: Few-Shot Image Classification with Differentiable Earth Mover's
Distance and Structured Classifiers, CVPR 2020, https://arxiv.org/abs/2003.06777; decoupled as in
Zhang et al., CVPR 2021, https://arxiv.org/abs/2104.03047.

Features are learnt on the base session and frozen, and a class is the mean of its images' feature
maps. The cells of an image's map are matched with those of the class at the least total cost, where
the cost of two cells is one minus their cosine, so that an object may lie anywhere in the image. A
cell is weighted by its similarity to the other map as a whole, so that background counts little.

Costs and weights are the paper's. Two details are from the authors' program: 0.001 is added to each
weight, and cells are centred before they are compared. Stage 1 is that of the cosine classifier.
The paper goes on to train the class means, and has variants with patches and pyramids; here, means
and the last feature map are used as they are. The temperature is the cosine classifier's and does
not change the predicted class.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, fitted
from fewmore.methods.base import FrozenBackbone, MethodConfig, Recipe
from fewmore.nn.prototypes import class_means
from fewmore.nn.similarity import earth_mover
from fewmore.training.checkpoint import State
from fewmore.training.embed import embed_maps, require_plain_view
from fewmore.training.runtime import Runtime


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the settings of the comparison of feature maps."""

    side: int = 8  # larger maps are averaged down to side × side cells; the paper has none
    centred: bool = True  # subtract each cell's mean over channels, as the program does
    per_recipe: ClassVar = {"quick": {"side": 3}, "paper": {"centred": False}}

    def __post_init__(self) -> None:
        if self.side < 1:
            raise ConfigError(f"side must be at least 1, not {self.side}")


class DeepEMD(FrozenBackbone):
    """Classify by the earth mover's similarity to the mean feature maps of the classes."""

    config_type = Config
    config: Config

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self._means: Tensor | None = None  # (classes, cells · d)

    def fit(self, base: ImageSet) -> None:
        """Train the backbone (stage 1), and average the feature maps of each base class."""
        require_plain_view(self.recipe.transform)
        self.network.fit(base, self.config.head, self.seed)
        self._means = self._mean_maps(base)
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        """Append the mean feature maps of the new classes."""
        self._means = torch.cat([self.means, self._mean_maps(session)])
        self.sessions += 1

    def embed(self, images: ImageSet) -> Tensor:
        """Compute flattened feature maps: (images, cells · d)."""
        transform = self.recipe.transform
        return embed_maps(self.network.backbone, images, transform, self.config.side).flatten(1)

    def scores_of(self, features: Tensor) -> Tensor:
        return earth_mover(
            self._to_cells(features), self._to_cells(self.means), self.config.centred
        )

    def _to_cells(self, maps: Tensor) -> Tensor:
        dim = self.network.backbone.dim
        return maps.view(len(maps), maps.shape[1] // dim, dim)

    @property
    def means(self) -> Tensor:
        """Return the mean feature map of each class, flattened."""
        return fitted(self._means)

    def _mean_maps(self, session: ImageSet) -> Tensor:
        return class_means(self.embed(session), session.labels, len(session.class_names))

    def state(self) -> State:
        return {"sessions": self.sessions, "network": self.network.state(), "means": self.means}

    def restore(self, state: State) -> None:
        self.sessions = state["sessions"]
        self.network.restore(state["network"])
        self._means = state["means"].to(self.runtime.device)
