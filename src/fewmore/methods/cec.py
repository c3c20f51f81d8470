"""Adapt class means to each other by graph attention (CEC, continually evolved classifiers).

Zhang, Song, Lin, Zheng, Pan, Xu: Few-Shot Incremental Learning with Continually Evolved
Classifiers, CVPR 2021, https://arxiv.org/abs/2104.03047.

Features are learnt on the base session and frozen, and the prototype of a class is the mean of its
features. Prototypes from different sessions were never compared with each other, so a graph
attention network, the adapter, updates each of them from all others and from the query image. The
adapter is trained beforehand, on pseudo-incremental sessions made of base classes and rotated
copies of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import fitted
from fewmore.methods.base import MethodConfig, Recipe, ScoresPerView
from fewmore.nn.adapter import Adapter, AdapterConfig
from fewmore.nn.closed_form import Context
from fewmore.nn.prototypes import Classifier
from fewmore.nn.weights import set_tensors
from fewmore.random import derive_seed
from fewmore.training.checkpoint import State
from fewmore.training.learn_session import class_prototypes
from fewmore.training.pseudo_incremental import (
    PseudoConfig,
    check_episodes,
    pseudo_incremental,
)
from fewmore.training.runtime import Runtime

TEN_QUERIES = {"base_query": 10, "new_query": 10}  # images of each class to classify
# The text differs from the authors' program: see docs/method.md.
TEXT = {**TEN_QUERIES, "same_classes": False, "encoder": "last", "augmented_rounds": 100}
QUICK = {
    "episodes": 100,
    "milestones": (1,),
    "base_query": 5,
    "new_query": 5,
    "lr": 0.002,
    "encoder_lr": 0.005,  # at four times this rate, training collapses (docs/log.md)
}


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the settings of stage 2 and of the adapter."""

    per_benchmark: ClassVar = {
        "cifar100": {"pseudo": {"encoder_lr": 0.002}},
        "cub200": {"pseudo": TEN_QUERIES},
    }
    per_recipe: ClassVar = {"paper": {"pseudo": TEXT}, "quick": {"pseudo": QUICK}}
    pseudo: PseudoConfig = field(default_factory=PseudoConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)

    def fitted(self, counts: Sequence[int]) -> "Config":
        """Return these settings, with episodes that a base session of this size has images for."""
        return replace(self, pseudo=self.pseudo.fitted(counts))


class CEC(ScoresPerView):
    """Classify by class means on frozen features, adapted to each other and to the query."""

    config_type = Config
    config: Config

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self._adapter: Adapter | None = None
        # Of the prototypes of each test view and the adapter; computed when needed.
        self._contexts: list[Context] = []

    def fit(self, base: ImageSet) -> None:
        """Train backbone and adapter (stages 1 and 2), and take the base classes' means."""
        check_episodes(base, self.config.pseudo)
        network = self.network
        network.fit(base, self.config.head, self.seed)
        adapter = self._new_adapter()
        pseudo_incremental(
            network.backbone,
            adapter,
            base,
            self.recipe.transform,
            self.config.pseudo,
            self.runtime,
            self.seed,
        )
        self._adapter = adapter
        prototypes = class_prototypes(network.backbone, base, self.recipe.transform)
        network.classifier = Classifier("cosine", prototypes)
        self._contexts = []
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        """Append the means of the new classes; nothing is trained."""
        prototypes = class_prototypes(self.network.backbone, session, self.recipe.transform)
        self.network.classifier = self.network.classifier.grown(prototypes)
        self._contexts = []
        self.sessions += 1

    @torch.no_grad()
    def view_scores(self, features: Tensor, view: int) -> Tensor:
        """Score features by their cosines to the adapted prototypes."""
        if not self._contexts:
            prototypes = self.split_views(self.network.classifier.prototypes.detach())
            self._contexts = [self.adapter.context(of_view) for of_view in prototypes]
        return self.adapter.scores(features, self._contexts[view])

    def also_scores_of(self, features: Tensor) -> dict[str, Tensor]:
        """Return plain cosines on the fine-tuned encoder: the difference is due to the graph."""
        views = self.split_views(features)
        cosines = [self.network.scores_of(part, view) for view, part in enumerate(views)]
        cosine = cosines[0] if len(cosines) == 1 else torch.stack(cosines).mean(0)
        return {"cosine_after_pil": cosine, **super().also_scores_of(features)}

    @property
    def adapter(self) -> Adapter:
        """Return the trained adapter."""
        return fitted(self._adapter)

    def state(self) -> State:
        return {**super().state(), "adapter": dict(self.adapter.state_dict())}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._adapter = self._new_adapter().eval()
        set_tensors(self._adapter, state["adapter"])
        self._contexts = []

    def _new_adapter(self) -> Adapter:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "adapter"))
        adapter = Adapter(self.network.backbone.dim, self.config.adapter, generator)
        return adapter.to(self.runtime.device)
