"""EEIL: end-to-end incremental learning.

Castro, Marín-Jiménez, Guil, Schmid, Alahari: End-to-End Incremental Learning, ECCV 2018, https://arxiv.org/abs/1807.09536.

Features and classifier are trained together on the session's images and on exemplars of the old classes, by cross-entropy over all
classes and by distillation within the head of each earlier session. As the classes are unevenly many in that, the network is then
fine-tuned, more gently, on a subset with the same number of exemplars of each class. In this second part the new head is held
to what it has just learnt as well.

The paper's noise on the gradients is left out, and its augmentation is the one of stage 1.
"""

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.benchmarks import Benchmark
from fewmore.data.images import ImageSet
from fewmore.methods.base import Method, MethodConfig, Recipe
from fewmore.methods.distillation import DistillationConfig, Teacher, distillation
from fewmore.methods.exemplars import ExemplarConfig, Exemplars
from fewmore.methods.network import Network
from fewmore.training.checkpoint import State
from fewmore.training.learn_session import SessionConfig, new_prototypes, outputs, train_by
from fewmore.training.optimizer import EpochsConfig
from fewmore.training.runtime import Runtime

# Epochs and milestones are the paper's. Its rates and weights are for hundreds of images of each
# new class; those here were chosen on base classes alone (results/bench-tuning-gpu.json). The
# second part has a tenth of the first one's rate.
SESSION = SessionConfig(
    data_init=False, epochs=40, lr=0.001, milestones=(10, 20, 30), frozen_norm=True
)
BALANCED = EpochsConfig(epochs=30, lr=0.0001, milestones=(10, 20))


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the settings of both parts of a session."""

    session: SessionConfig = SESSION
    balanced: EpochsConfig = BALANCED  # the second part of a session
    exemplars: ExemplarConfig = field(default_factory=ExemplarConfig)
    distillation: DistillationConfig = field(default_factory=lambda: DistillationConfig(weight=5.0))

    @property
    def head(self) -> str:
        return "linear"

    @classmethod
    def for_recipe(cls, recipe: str, benchmark: Benchmark) -> "Config":
        if recipe != "quick":
            return cls()
        return cls(
            session=replace(SESSION, epochs=4, batch=64, milestones=()),
            balanced=replace(BALANCED, epochs=2, batch=64, milestones=()),
            exemplars=ExemplarConfig(per_class=5),
            distillation=DistillationConfig(weight=1.0),
        )


class EEIL(Method):
    """Cross-entropy and distillation per head, then balanced fine-tuning."""

    config_type = Config
    config: Config
    keeps = Exemplars.keeps

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.network = Network(recipe, runtime)
        self.exemplars = Exemplars(self.config.exemplars)
        self.heads: list[int] = []  # how many classes each session had

    def fit(self, base: ImageSet) -> None:
        self.network.fit(base, self.config.head, self.seed)
        self.exemplars.add(base, self.network.embed(base))
        self.heads = [len(base.class_names)]
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        network, recipe, config = self.network, self.recipe, self.config
        held = config.distillation
        backbone, known = network.backbone, network.classifier
        before = Teacher(backbone, known)
        backbone.train(not config.session.frozen_norm)
        classifier = network.classifier = known.grown(
            new_prototypes(backbone, session, recipe.transform, config.session, self.seed)
        )
        modules = {"backbone": backbone, "classifier": classifier}
        images, stage = self.exemplars.joined_by(session), f"session {self.sessions}"

        def unbalanced(view: Tensor, labels: Tensor) -> Tensor:
            _, scores = outputs(backbone, classifier, view)
            _, old = before(view)
            return F.cross_entropy(scores, labels) + held.weight * distillation(
                scores[:, : len(known)], old, held.temperature, self.heads
            )

        train_by(
            unbalanced,
            modules,
            images,
            recipe.transform,
            config.session,
            self.runtime,
            self.seed,
            stage,
        )
        self.exemplars.add(session, network.embed(session))
        trained = Teacher(backbone, classifier)
        heads = [*self.heads, len(session.class_names)]

        def balanced(view: Tensor, labels: Tensor) -> Tensor:
            _, scores = outputs(backbone, classifier, view)
            (_, old), (_, new) = before(view), trained(view)
            wanted = torch.cat([old, new[:, len(known) :]], 1)
            return F.cross_entropy(scores, labels) + held.weight * distillation(
                scores, wanted, held.temperature, heads
            )

        images, stage = self.exemplars.balanced(), f"{stage}, balanced"
        train_by(
            balanced,
            modules,
            images,
            recipe.transform,
            config.balanced,
            self.runtime,
            self.seed,
            stage,
        )
        self.heads = heads
        self.sessions += 1

    def scores(self, images: ImageSet) -> Tensor:
        return self.network.scores_of(self.network.embed(images))

    def images_kept(self) -> int:
        return len(self.exemplars)

    def state(self) -> State:
        network = self.network.state()  # says so where nothing was learnt
        return {
            "sessions": self.sessions,
            "heads": list(self.heads),
            "network": network,
            "exemplars": self.exemplars.state(),
        }

    def restore(self, state: State) -> None:
        self.sessions, self.heads = state["sessions"], list(state["heads"])
        self.network.restore(state["network"])
        self.exemplars.restore(state["exemplars"], self.runtime.device)
