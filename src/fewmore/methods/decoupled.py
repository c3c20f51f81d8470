"""Decoupled classifiers.

Zhang, Song, Lin, Zheng, Pan, Xu: Few-Shot Incremental Learning with Continually Evolved Classifiers, CVPR 2021,
https://arxiv.org/abs/2104.03047 (the baselines of its comparison and ablation).

Features are learnt on the base session and then frozen, so nothing is forgotten in them and nothing overfits. A new class
is one more row of the classifier: the mean of its images' features (data init), or a row trained from random values.
Scores are inner products, cosines or negative squared distances to the rows.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from fewmore.data.benchmarks import Benchmark
from fewmore.data.images import ImageSet
from fewmore.methods.base import FrozenBackbone, MethodConfig, Recipe
from fewmore.methods.network import Network
from fewmore.nn.prototypes import Classifier
from fewmore.training.checkpoint import State
from fewmore.training.learn_session import (
    SessionConfig,
    class_prototypes,
    train_prototypes,
    untrained_prototypes,
)
from fewmore.training.runtime import Runtime


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the similarity of the classifier, and how prototypes of new classes are trained."""

    similarity: Literal["linear", "cosine", "l2"] = "cosine"
    # Without data init, prototypes are trained at the rate of stage 1, as in the paper's ablation.
    session: SessionConfig = field(default_factory=lambda: SessionConfig(epochs=100, lr=0.1))

    @property
    def head(self) -> str:
        # A distance is a poor head to train with: stage 1 of the L2 classifier is the linear one's.
        return "cosine" if self.similarity == "cosine" else "linear"

    @classmethod
    def for_recipe(cls, recipe: str, benchmark: Benchmark) -> "Config":
        config = cls()
        if recipe == "quick":
            return replace(config, session=replace(config.session, epochs=40))
        return config


class Decoupled(FrozenBackbone):
    """A frozen backbone with a classifier whose rows are class means, or are trained."""

    config_type = Config
    config: Config

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.network = Network(recipe, runtime)

    def fit(self, base: ImageSet) -> None:
        network = self.network
        network.fit(base, self.config.head, self.seed)
        rows = network.classifier.prototypes.detach()
        if self.config.session.data_init:
            rows = class_prototypes(network.backbone, base, self.recipe.transform)
        network.classifier = Classifier(self.config.similarity, rows)
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        backbone, known, recipe = self.network.backbone, self.network.classifier, self.recipe
        if self.config.session.data_init:
            rows = class_prototypes(backbone, session, recipe.transform)
        else:
            new = Classifier(
                self.config.similarity, untrained_prototypes(backbone, session, self.seed)
            )
            stage = f"session {self.sessions}"
            train_prototypes(
                backbone,
                known,
                new,
                session,
                recipe.transform,
                self.config.session,
                self.runtime,
                self.seed,
                stage,
            )
            rows = new.prototypes.detach()
        self.network.classifier = known.grown(rows)
        self.sessions += 1

    def embed(self, images: ImageSet) -> Tensor:
        return self.network.embed(images)

    def scores_of(self, features: Tensor) -> Tensor:
        return self.network.scores_of(features)

    def state(self) -> State:
        return {"sessions": self.sessions, "network": self.network.state()}

    def restore(self, state: State) -> None:
        self.sessions = state["sessions"]
        self.network.restore(state["network"])
