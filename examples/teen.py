"""Calibrate the prototypes of new classes by similar base classes (TEEN), without any training.

Wang, Zhou, Zhang, Zhan, Ye: Few-Shot Class-Incremental Learning via Training-Free Prototype
Calibration, NeurIPS 2023, https://arxiv.org/abs/2312.05229.
"""

from dataclasses import dataclass

import torch.nn.functional as F

from fewmore.methods.base import FrozenBackbone, MethodConfig
from fewmore.nn.prototypes import Classifier
from fewmore.training.learn_session import class_prototypes


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the settings of the calibration."""

    alpha: float = 0.5  # weight of the base classes in a new prototype; 0.1 for cifar100
    temperature: float = 16.0  # of the softmax over base classes, as a factor of cosines


class TEEN(FrozenBackbone):
    """TEEN: new class means are moved towards those base classes that they resemble."""

    config_type = Config
    name = "teen_example"  # fewmore has a teen of its own

    def fit(self, base):
        self.network.fit(base, self.config.head, self.seed)
        self.network.classifier = Classifier("cosine", self._means(base))
        self.base_classes = len(base.class_names)
        self.sessions = 1

    def learn(self, session):
        means = self._means(session)
        base = self.network.classifier.prototypes.detach()[: self.base_classes]
        weights = (self.config.temperature * means @ base.T).softmax(1)
        similar = F.normalize(weights @ base, dim=1)
        calibrated = (1 - self.config.alpha) * means + self.config.alpha * similar
        self.network.classifier = self.network.classifier.grown(calibrated)
        self.sessions += 1

    def embed(self, images):
        return self.network.embed(images)

    def scores_of(self, features):
        return self.network.scores_of(features)

    def state(self):
        network = self.network.state()
        return {"network": network, "sessions": self.sessions, "base_classes": self.base_classes}

    def restore(self, state):
        self.network.restore(state["network"])
        self.sessions, self.base_classes = state["sessions"], state["base_classes"]

    def _means(self, images):
        return F.normalize(class_prototypes(self.network.backbone, images, self.recipe.transform))
