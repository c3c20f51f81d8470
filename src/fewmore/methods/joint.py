"""Train a new network on all images seen so far (joint training, the upper reference).

This is no paper's method. It keeps every image, and trains a new network on all of them at each
session, with the settings of stage 1. The other methods may not see old images again; this one
may, and declares it. Its accuracy shows what the few images of the new classes are worth when
nothing has to be remembered.
"""

from dataclasses import dataclass
from typing import Literal

from fewmore.data.images import ImageSet, concatenate
from fewmore.errors import fitted
from fewmore.methods.base import MethodConfig, Recipe, TrainedNetwork
from fewmore.training.checkpoint import State
from fewmore.training.runtime import Runtime


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the similarity of the classifier; training has the settings of stage 1."""

    similarity: Literal["linear", "cosine"] = "cosine"  # of features and prototypes

    @property
    def head(self) -> str:
        return self.similarity


class Joint(TrainedNetwork):
    """Train a network from scratch on all images seen so far."""

    config_type = Config
    config: Config
    keeps = "every image"

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.seen: ImageSet | None = None

    def fit(self, base: ImageSet) -> None:
        """Train the network (stage 1), and keep all images."""
        self._train_on(base)

    def learn(self, session: ImageSet) -> None:
        """Train a new network on all images, the session's included."""
        self._train_on(concatenate([fitted(self.seen), session]))

    def _train_on(self, images: ImageSet) -> None:
        # The base session is stage 1 itself, so it can be shared with other methods.
        stage = f"joint {self.sessions}" if self.sessions else "pretrain"
        self.network.fit(images, self.config.head, self.seed, stage)
        self.seen = images
        self.sessions += 1

    def images_kept(self) -> int:
        return 0 if self.seen is None else len(self.seen)

    def state(self) -> State:
        return {**super().state(), "seen": self.seen.state() if self.seen else {}}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.seen = ImageSet.from_state(state["seen"]).to(self.runtime.device)
