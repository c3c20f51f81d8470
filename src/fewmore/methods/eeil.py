"""EEIL: end-to-end incremental learning.

Castro, Marín-Jiménez, Guil, Schmid, Alahari: End-to-End Incremental Learning, ECCV 2018, https://arxiv.org/abs/1807.09536.

Features and classifier are trained together on the session's images and on exemplars of the old classes, by cross-entropy over all
classes and by distillation within the head of each earlier session. As the classes are unevenly many in that, the network is then
fine-tuned, more gently, on a subset with the same number of exemplars of each class. In this second part the new head is held
to what it has just learnt as well.

The paper's noise on the gradients is left out, and its augmentation is the one of stage 1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.methods.base import Method, Recipe
from fewmore.methods.distillation import Teacher, distillation
from fewmore.methods.exemplars import Exemplars
from fewmore.methods.network import Network
from fewmore.training.checkpoint import State
from fewmore.training.learn_session import new_prototypes, outputs, train_by
from fewmore.training.loop import Runtime


class EEIL(Method):
    """Cross-entropy and distillation per head, then balanced fine-tuning."""

    keeps = Exemplars.keeps

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.network = Network(recipe, runtime)
        self.exemplars = Exemplars(recipe.exemplars)
        self.heads: list[int] = []  # how many classes each session had

    def fit(self, base: ImageSet) -> None:
        self.network.fit(base, "linear", self.seed)
        self.exemplars.add(base, self.network.embed(base))
        self.heads = [len(base.class_names)]
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        network, recipe, held = self.network, self.recipe, self.recipe.distillation
        backbone, known = network.backbone, network.classifier
        before = Teacher(backbone, known)
        backbone.train(not recipe.session.frozen_norm)
        classifier = network.classifier = known.grown(
            new_prototypes(backbone, session, recipe.transform, recipe.session, self.seed)
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
            recipe.session,
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
            recipe.balanced,
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
