"""Fine-tuning: the whole network is trained on each session's images.

The comparison's Ft-CNN row (Tao et al.: Few-Shot Class-Incremental Learning, CVPR 2020, https://arxiv.org/abs/2004.10956) and the
ablation's rows `linear` and `cosine` without decoupling (Zhang et al., CVPR 2021, https://arxiv.org/abs/2104.03047).

The classifier grows by rows for the new classes, at random, and everything is trained on the few new images, with the
recipe's rate. Nothing reminds the network of the old classes, so they are forgotten: this is the floor that every other
method must clear.
"""

from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.methods.base import Method, Recipe
from fewmore.methods.network import Network
from fewmore.training.checkpoint import State
from fewmore.training.learn_session import new_prototypes, train_network
from fewmore.training.loop import Runtime


class Finetune(Method):
    """The whole network is trained on, session by session."""

    def __init__(
        self, recipe: Recipe, runtime: Runtime, seed: int, similarity: str = "linear"
    ) -> None:
        super().__init__(recipe, runtime, seed)
        self.similarity = similarity
        self.network = Network(recipe, runtime)

    def fit(self, base: ImageSet) -> None:
        self.network.fit(base, self.similarity, self.seed)
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        network, recipe = self.network, self.recipe
        rows = new_prototypes(
            network.backbone, session, recipe.transform, recipe.session, self.seed
        )
        network.classifier = network.classifier.grown(rows)
        stage = f"session {self.sessions}"
        train_network(
            network.backbone,
            network.classifier,
            session,
            recipe.transform,
            recipe.session,
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
