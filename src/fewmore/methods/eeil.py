"""Train with distillation per head, then fine-tune on balanced exemplars (EEIL).

Castro, Marín-Jiménez, Guil, Schmid, Alahari: End-to-End Incremental Learning, ECCV 2018,
https://arxiv.org/abs/1807.09536.

Features and classifier are trained together on the session's images and on exemplars of the old
classes, by cross-entropy over all classes and by distillation within the head of each earlier
session. Since old and new classes differ in their numbers of images there, the network is then
fine-tuned at a lower rate on a subset with equally many exemplars of each class. In this second
part, distillation also holds the new head to what it has just learnt.

The paper's noise on the gradients is left out, and augmentation is that of stage 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.methods.base import MethodConfig, Recipe, TrainedNetwork
from fewmore.methods.distillation import DistillationConfig, Teacher, distillation_loss
from fewmore.methods.exemplars import ExemplarConfig, Exemplars
from fewmore.training.checkpoint import State
from fewmore.training.learn_session import SessionConfig, new_prototypes, outputs, train_by_loss
from fewmore.training.optimizer import EpochsConfig
from fewmore.training.runtime import Runtime

# Epochs and milestones are the paper's. Rate and weight of distillation were chosen on the
# validation split of the base classes (docs/tuning.md): the rate is the paper's, the weight a fifth
# of the paper's. The second part has a tenth of the first one's rate, as there.
RATE, FROZEN_NORM, WEIGHT = 0.1, False, 0.2
SESSION = SessionConfig(
    data_init=False, epochs=40, lr=RATE, milestones=(10, 20, 30), frozen_norm=FROZEN_NORM
)
BALANCED = EpochsConfig(epochs=30, lr=RATE / 10, milestones=(10, 20))
DISTILLATION = DistillationConfig(weight=WEIGHT)


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the settings of both parts of a session."""

    session: SessionConfig = SESSION
    balanced: EpochsConfig = BALANCED  # the second part
    exemplars: ExemplarConfig = field(default_factory=ExemplarConfig)
    distillation: DistillationConfig = DISTILLATION

    head = "linear"
    per_recipe: ClassVar = {
        "quick": {
            "session": {
                "epochs": 4,
                "batch": 64,
                "lr": 0.001,
                "milestones": (),
                "frozen_norm": True,
            },
            "balanced": {"epochs": 2, "batch": 64, "lr": 0.0001, "milestones": ()},
            "exemplars": {"per_class": 5},
            "distillation": {"weight": 1.0},
        }
    }


class EEIL(TrainedNetwork):
    """Train by cross-entropy and distillation per head, then fine-tune on balanced exemplars."""

    config_type = Config
    config: Config
    keeps = Exemplars.keeps

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.exemplars = Exemplars(self.config.exemplars)
        self.heads: list[int] = []  # number of classes of each session

    def fit(self, base: ImageSet) -> None:
        """Train the network (stage 1), and keep exemplars."""
        self.network.fit(base, self.config.head, self.seed)
        self.exemplars.add(base, self.network.embed(base))
        self.heads = [len(base.class_names)]
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        """Train on the session and all exemplars, then on equally many exemplars of each class."""
        network = self.network
        backbone = network.backbone
        known = len(network.classifier)
        before = Teacher(backbone, network.classifier)
        backbone.train(not self.config.session.frozen_norm)
        prototypes = new_prototypes(
            backbone, session, self.recipe.transform, self.config.session, self.seed
        )
        classifier = network.classifier = network.classifier.grown(prototypes)

        def unbalanced(view: Tensor, labels: Tensor) -> Tensor:
            _, logits = outputs(backbone, classifier, view)
            _, old = before(view)
            return F.cross_entropy(logits, labels) + self._distillation(
                logits[:, :known], old, self.heads
            )

        stage = f"session {self.sessions}"
        self._train(unbalanced, self.exemplars.joined_by(session), self.config.session, stage)
        self.exemplars.add(session, network.embed(session))
        after = Teacher(backbone, classifier)
        heads = [*self.heads, len(session.class_names)]

        def balanced(view: Tensor, labels: Tensor) -> Tensor:
            _, logits = outputs(backbone, classifier, view)
            _, old = before(view)
            _, new = after(view)
            teacher_logits = torch.cat([old, new[:, known:]], 1)
            return F.cross_entropy(logits, labels) + self._distillation(
                logits, teacher_logits, heads
            )

        stage = f"{stage}, balanced"
        self._train(balanced, self.exemplars.balanced(), self.config.balanced, stage)
        self.heads = heads
        self.sessions += 1

    def _distillation(self, logits: Tensor, teacher_logits: Tensor, heads: Sequence[int]) -> Tensor:
        config = self.config.distillation
        return config.weight * distillation_loss(logits, teacher_logits, config.temperature, heads)

    def _train(
        self,
        loss_of: Callable[[Tensor, Tensor], Tensor],
        images: ImageSet,
        config: EpochsConfig,
        stage: str,
    ) -> None:
        """Train the whole network by a loss of views and labels."""
        train_by_loss(
            loss_of,
            {"backbone": self.network.backbone, "classifier": self.network.classifier},
            images,
            self.recipe.transform,
            config,
            self.runtime,
            self.seed,
            stage,
        )

    def images_kept(self) -> int:
        return len(self.exemplars)

    def state(self) -> State:
        exemplars = self.exemplars.state()
        return {**super().state(), "heads": list(self.heads), "exemplars": exemplars}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.heads = list(state["heads"])
        self.exemplars.restore(state["exemplars"], self.runtime.device)
