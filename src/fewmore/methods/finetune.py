"""Fine-tune the whole network on each session's images.

Tao, Hong, Chang, Dong, Wei, Gong: Few-Shot Class-Incremental Learning, CVPR 2020,
https://arxiv.org/abs/2004.10956 (`finetune`, the row Ft-CNN of its comparison); Zhang et al.:
Few-Shot Incremental Learning with Continually Evolved Classifiers, CVPR 2021,
https://arxiv.org/abs/2104.03047 (`linear` and `cosine`, the rows of its ablation that are not
decoupled).

The classifier gets a random prototype for each new class, and the whole network is trained on the
few new images. Nothing keeps the old classes, so they are forgotten. Every method that keeps the
old classes should do better.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from fewmore.data.images import ImageSet
from fewmore.methods.base import MethodConfig, TrainedNetwork
from fewmore.training.learn_session import SessionConfig, new_prototypes, train_network


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the similarity of the classifier, and how a session trains the network."""

    similarity: Literal["linear", "cosine"] = "linear"  # of features and prototypes
    # `finetune` has a low rate, to keep as much of the old classes as it can. The registry gives
    # `linear` and `cosine` the rate of stage 1, as in the ablation.
    session: SessionConfig = field(
        default_factory=lambda: SessionConfig(data_init=False, epochs=100, lr=0.01)
    )
    per_recipe: ClassVar = {"quick": {"session": {"epochs": 40}}}

    @property
    def head(self) -> str:
        return self.similarity


class Finetune(TrainedNetwork):
    """Train the whole network on, session by session."""

    config_type = Config
    config: Config

    def fit(self, base: ImageSet) -> None:
        """Train the network (stage 1)."""
        self.network.fit(base, self.config.head, self.seed)
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        """Append prototypes for the new classes, and train everything on the session's images."""
        network = self.network
        transform = self.recipe.transform
        config = self.config.session
        prototypes = new_prototypes(network.backbone, session, transform, config, self.seed)
        network.classifier = network.classifier.grown(prototypes)
        train_network(
            network.backbone,
            network.classifier,
            session,
            transform,
            config,
            self.runtime,
            self.seed,
            f"session {self.sessions}",
        )
        self.sessions += 1
