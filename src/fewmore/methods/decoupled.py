"""Classify by prototypes on frozen features (decoupled classifiers).

Zhang, Song, Lin, Zheng, Pan, Xu: Few-Shot Incremental Learning with Continually Evolved
Classifiers, CVPR 2021, https://arxiv.org/abs/2104.03047 (baselines of its comparison and ablation).

Features are learnt on the base session and then frozen, so they neither forget nor overfit. A new
class adds one prototype: the mean of its images' features (data init), or a vector that is trained
from random values. Scores are inner products with the prototypes, cosines, or negative squared
distances.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods.base import MethodConfig, ScoresPerView
from fewmore.nn.prototypes import Classifier
from fewmore.training.learn_session import (
    SessionConfig,
    class_prototypes,
    train_prototypes,
    untrained_prototypes,
)


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the similarity of the classifier, and how prototypes of new classes are trained."""

    similarity: Literal["linear", "cosine", "l2"] = "cosine"  # of features and prototypes
    # Without data init, prototypes are trained at the rate of stage 1, as in the paper's ablation.
    session: SessionConfig = field(default_factory=lambda: SessionConfig(epochs=100, lr=0.1))
    per_recipe: ClassVar = {"quick": {"session": {"epochs": 40}}}

    @property
    def head(self) -> str:
        """Return the kind of classifier that stage 1 is trained with: cosine or linear."""
        # A distance is a poor head to train with: stage 1 of `l2` is the one of `linear`.
        return "cosine" if self.similarity == "cosine" else "linear"


class Decoupled(ScoresPerView):
    """Classify by class means, or by trained prototypes, on a frozen backbone."""

    config_type = Config
    config: Config

    def fit(self, base: ImageSet) -> None:
        """Train the backbone (stage 1); with data init, replace the head by class means."""
        if self.recipe.transform.separate_views > 1 and not self.config.session.data_init:
            raise ConfigError(
                "prototypes of single test views are class means and are not trained: "
                "--set session.data_init=true, or --set transform.view_features=mean"
            )
        network = self.network
        network.fit(base, self.config.head, self.seed)
        prototypes = network.classifier.prototypes.detach()
        if self.config.session.data_init:
            prototypes = class_prototypes(network.backbone, base, self.recipe.transform)
        network.classifier = Classifier(self.config.similarity, prototypes)
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        """Append a prototype for each new class."""
        if self.config.session.data_init:
            transform = self.recipe.transform
            prototypes = class_prototypes(self.network.backbone, session, transform)
        else:
            prototypes = self._trained_prototypes(session)
        self.network.classifier = self.network.classifier.grown(prototypes)
        self.sessions += 1

    def _trained_prototypes(self, session: ImageSet) -> Tensor:
        backbone = self.network.backbone
        untrained = untrained_prototypes(backbone, session, self.seed)
        new = Classifier(self.config.similarity, untrained)
        train_prototypes(
            backbone,
            self.network.classifier,
            new,
            session,
            self.recipe.transform,
            self.config.session,
            self.runtime,
            self.seed,
            f"session {self.sessions}",
        )
        return new.prototypes.detach()

    def view_scores(self, features: Tensor, view: int) -> Tensor:
        return self.network.scores_of(features, view)
