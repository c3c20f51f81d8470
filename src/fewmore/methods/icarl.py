"""iCaRL: incremental classifier and representation learning.

Rebuffi, Kolesnikov, Sperl, Lampert: iCaRL: Incremental Classifier and Representation Learning, CVPR 2017,
https://arxiv.org/abs/1611.07725.

A few exemplars of each class are kept, chosen so that their mean is near the class's. A new session trains the whole network on its
images and the exemplars, while the answers for old classes are held to what they were. The head that training needs is not
asked: an image belongs to the class whose exemplars' mean, taken with the network as it is now, lies nearest.

The paper trains sigmoid outputs; here they are a softmax, as stage 1 is the one that other methods share.
"""

from dataclasses import dataclass, field, replace

import torch.nn.functional as F
from torch import Tensor

from fewmore.data.benchmarks import Benchmark
from fewmore.data.images import ImageSet
from fewmore.methods.base import MethodConfig
from fewmore.methods.distillation import DistillationConfig, Teacher, distillation
from fewmore.methods.exemplars import ExemplarConfig, NearestMean
from fewmore.training.learn_session import SessionConfig, new_prototypes, outputs, train_by

# Epochs and milestones are the paper's. Its rate and weight are for hundreds of images of each
# new class; those here were chosen on base classes alone (results/bench-tuning-gpu.json).
SESSION = SessionConfig(
    data_init=False, epochs=70, lr=0.001, milestones=(49, 63), decay=0.2, frozen_norm=True
)


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold how a session is learnt, and what is kept of it."""

    session: SessionConfig = SESSION
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
            exemplars=ExemplarConfig(per_class=5),
            distillation=DistillationConfig(weight=1.0),
        )


class ICaRL(NearestMean):
    """Nearest mean of exemplars, on features that are trained with distillation."""

    config_type = Config
    config: Config

    def fit(self, base: ImageSet) -> None:
        self.network.fit(base, self.config.head, self.seed)
        self.keep(base)

    def learn(self, session: ImageSet) -> None:
        network, recipe, config = self.network, self.recipe, self.config
        backbone, known = network.backbone, network.classifier
        teacher = Teacher(backbone, known)
        backbone.train(not config.session.frozen_norm)
        classifier = network.classifier = known.grown(
            new_prototypes(backbone, session, recipe.transform, config.session, self.seed)
        )

        def loss_of(view: Tensor, labels: Tensor) -> Tensor:
            _, scores = outputs(backbone, classifier, view)
            _, before = teacher(view)
            kept = distillation(scores[:, : len(known)], before, config.distillation.temperature)
            return F.cross_entropy(scores, labels) + config.distillation.weight * kept

        modules = {"backbone": backbone, "classifier": classifier}
        images, stage = self.exemplars.joined_by(session), f"session {self.sessions}"
        train_by(
            loss_of,
            modules,
            images,
            recipe.transform,
            config.session,
            self.runtime,
            self.seed,
            stage,
        )
        self.keep(session)
