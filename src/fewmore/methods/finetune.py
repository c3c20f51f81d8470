"""Fine-tuning: the whole network is trained on each session's images.

The comparison's Ft-CNN row (Tao et al.: Few-Shot Class-Incremental Learning, CVPR 2020, https://arxiv.org/abs/2004.10956) and the
ablation's rows `linear` and `cosine` without decoupling (Zhang et al., CVPR 2021, https://arxiv.org/abs/2104.03047).

The classifier grows by rows for the new classes, at random, and everything is trained on the few new images, with the
recipe's rate. Nothing reminds the network of the old classes, so they are forgotten: this is the floor that every other
method must clear.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from fewmore.data.benchmarks import Benchmark
from fewmore.data.images import ImageSet
from fewmore.methods.base import Method, MethodConfig, Recipe
from fewmore.methods.network import Network
from fewmore.training.checkpoint import State
from fewmore.training.learn_session import SessionConfig, new_prototypes, train_network
from fewmore.training.runtime import Runtime


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the similarity of the classifier, and how a session trains the network."""

    similarity: Literal["linear", "cosine"] = "linear"
    # The comparison fine-tunes at a low rate, to keep the old classes as well as it can. The rows of
    # the ablation train at the rate of stage 1: the registry sets it for `linear` and `cosine`.
    session: SessionConfig = field(
        default_factory=lambda: SessionConfig(data_init=False, epochs=100, lr=0.01)
    )

    @property
    def head(self) -> str:
        return self.similarity

    @classmethod
    def for_recipe(cls, recipe: str, benchmark: Benchmark) -> "Config":
        config = cls()
        if recipe == "quick":
            return replace(config, session=replace(config.session, epochs=40))
        return config


class Finetune(Method):
    """The whole network is trained on, session by session."""

    config_type = Config
    config: Config

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.network = Network(recipe, runtime)

    def fit(self, base: ImageSet) -> None:
        self.network.fit(base, self.config.head, self.seed)
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        network, recipe, config = self.network, self.recipe, self.config.session
        rows = new_prototypes(network.backbone, session, recipe.transform, config, self.seed)
        network.classifier = network.classifier.grown(rows)
        stage = f"session {self.sessions}"
        train_network(
            network.backbone,
            network.classifier,
            session,
            recipe.transform,
            config,
            self.runtime,
            self.seed,
            stage,
        )
        self.sessions += 1

    def scores(self, images: ImageSet) -> Tensor:
        return self.network.scores_of(self.network.embed(images))

    def state(self) -> State:
        return {"sessions": self.sessions, "network": self.network.state()}

    def restore(self, state: State) -> None:
        self.sessions = state["sessions"]
        self.network.restore(state["network"])
