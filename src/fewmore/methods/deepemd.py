"""DeepEMD: feature maps compared cell by cell.

Zhang, Cai, Lin, Shen: DeepEMD: Few-Shot Image Classification with Differentiable Earth Mover's Distance and Structured Classifiers,
CVPR 2020, https://arxiv.org/abs/2003.06777; decoupled as in Zhang et al., CVPR 2021, https://arxiv.org/abs/2104.03047.

Features are learnt on the base session and frozen, and a class is the mean of its images' feature maps. The cells of an image's map
are matched with the class's at the least total cost, one minus the cosine of two cells, so that a thing may lie elsewhere than it did.
A cell weighs what it has in common with the other map as a whole, so that background counts little.

Costs and weights are the paper's; that every weight has 0.001 added and that cells are centred before they are compared is its
program's. Stage 1 is the cosine classifier's. Class means are taken as they are, where the paper goes on to train them, and the last
feature map is taken as it is, without patches or a pyramid. The temperature is the cosine classifier's; it does not change the answer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewmore.data.benchmarks import Benchmark
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, NotFittedError
from fewmore.methods.base import FrozenBackbone, MethodConfig, Recipe
from fewmore.methods.network import Network
from fewmore.nn.prototypes import class_means
from fewmore.nn.similarity import earth_mover
from fewmore.training.checkpoint import State
from fewmore.training.embed import embed_maps
from fewmore.training.runtime import Runtime


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold how feature maps are compared."""

    side: int = 8  # a larger map is averaged down to side × side cells; no map of the paper is
    centred: bool = True  # subtract a cell's mean over channels: in the program, not in the text

    def __post_init__(self) -> None:
        if self.side < 1:
            raise ConfigError(f"side must be at least 1, not {self.side}")

    @classmethod
    def for_recipe(cls, recipe: str, benchmark: Benchmark) -> "Config":
        return cls(side=3 if recipe == "quick" else 8, centred=recipe != "paper")


class DeepEMD(FrozenBackbone):
    """Mean feature maps of the classes, and the earth mover's similarity to them."""

    config_type = Config
    config: Config

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.network = Network(recipe, runtime)
        self._means: Tensor | None = None  # (classes, cells · d)

    def fit(self, base: ImageSet) -> None:
        self.network.fit(base, self.config.head, self.seed)
        self._means = self._means_of(base)
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        self._means = torch.cat([self.means, self._means_of(session)])
        self.sessions += 1

    def embed(self, images: ImageSet) -> Tensor:
        return embed_maps(
            self.network.backbone, images, self.recipe.transform, self.config.side
        ).flatten(1)

    def scores_of(self, features: Tensor) -> Tensor:
        return earth_mover(self._cells(features), self._cells(self.means), self.config.centred)

    def _cells(self, maps: Tensor) -> Tensor:
        dim = self.network.backbone.dim
        return maps.view(len(maps), maps.shape[1] // dim, dim)

    @property
    def means(self) -> Tensor:
        if self._means is None:
            raise NotFittedError("nothing is learnt yet: call fit with the base session first")
        return self._means

    def _means_of(self, session: ImageSet) -> Tensor:
        return class_means(self.embed(session), session.labels, len(session.class_names))

    def state(self) -> State:
        return {"sessions": self.sessions, "network": self.network.state(), "means": self.means}

    def restore(self, state: State) -> None:
        self.sessions = state["sessions"]
        self.network.restore(state["network"])
        self._means = state["means"].to(self.runtime.device)
