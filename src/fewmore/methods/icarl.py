"""Classify by means of exemplars on features trained with distillation (iCaRL).

Rebuffi, Kolesnikov, Sperl, Lampert: iCaRL: Incremental Classifier and Representation Learning,
CVPR 2017, https://arxiv.org/abs/1611.07725.

A few exemplars of each class are kept, chosen so that their mean is near the class mean. A new
session trains the whole network on its images and the exemplars, while distillation holds the
logits of old classes to what they were. The head serves for training only: an image gets the class
whose exemplars have the nearest mean, computed with the current network.

The paper trains sigmoid outputs; here they are a softmax, so that stage 1 can be shared with other
methods.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.methods.base import MethodConfig
from fewmore.methods.distillation import DistillationConfig, Teacher, distillation_loss
from fewmore.methods.exemplars import ExemplarConfig, NearestMean
from fewmore.training.learn_session import SessionConfig, new_prototypes, outputs, train_by_loss

# Epochs and milestones are the paper's for CIFAR100 and for ImageNet. Its rate and its weight of
# distillation are for hundreds of images of each new class; these were chosen on the validation
# split of the base classes of CIFAR100 (docs/tuning.md).
RATE, FROZEN_NORM, WEIGHT = 0.00003, True, 5.0
SESSION = SessionConfig(
    data_init=False, epochs=70, lr=RATE, milestones=(49, 63), decay=0.2, frozen_norm=FROZEN_NORM
)
IMAGENET = {"session": {"epochs": 60, "milestones": (20, 30, 40, 50)}}
DISTILLATION = DistillationConfig(weight=WEIGHT)


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the settings of a session: training, distillation and exemplars."""

    session: SessionConfig = SESSION
    exemplars: ExemplarConfig = field(default_factory=ExemplarConfig)
    distillation: DistillationConfig = DISTILLATION

    head = "linear"
    per_benchmark: ClassVar = {"miniimagenet": IMAGENET, "cub200": IMAGENET}
    per_recipe: ClassVar = {
        "quick": {
            "session": {
                "epochs": 4,
                "batch": 64,
                "lr": 0.001,
                "milestones": (),
                "frozen_norm": True,
            },
            "exemplars": {"per_class": 5},
            "distillation": {"weight": 1.0},
        }
    }


class ICaRL(NearestMean):
    """Classify by the nearest mean of exemplars, on features that are trained with distillation."""

    config_type = Config
    config: Config

    def learn(self, session: ImageSet) -> None:
        """Train the network on the session and the exemplars, and keep exemplars of the session."""
        network = self.network
        transform = self.recipe.transform
        config = self.config.session
        distillation = self.config.distillation
        backbone = network.backbone
        known = len(network.classifier)
        teacher = Teacher(backbone, network.classifier)
        backbone.train(not config.frozen_norm)
        prototypes = new_prototypes(backbone, session, transform, config, self.seed)
        classifier = network.classifier = network.classifier.grown(prototypes)

        def loss_of(view: Tensor, labels: Tensor) -> Tensor:
            _, logits = outputs(backbone, classifier, view)
            _, old = teacher(view)
            distilled = distillation_loss(logits[:, :known], old, distillation.temperature)
            return F.cross_entropy(logits, labels) + distillation.weight * distilled

        train_by_loss(
            loss_of,
            {"backbone": backbone, "classifier": classifier},
            self.exemplars.joined_by(session),
            transform,
            config,
            self.runtime,
            self.seed,
            f"session {self.sessions}",
        )
        self.keep(session)
