"""Classify by the nearest class mean after a power transform of the features."""

from dataclasses import dataclass

import torch

from fewmore.methods.base import FrozenBackbone, MethodConfig
from fewmore.nn.prototypes import class_means
from fewmore.nn.similarity import cosine


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the settings: `--set power=0.3` changes one of them."""

    power: float = 0.5  # of each feature; 1 leaves the features as they are


class PowerMeans(FrozenBackbone):
    """Take powers of the features, centre them, and compare them with class means by cosines."""

    config_type = Config

    def fit(self, base):
        # Stage 1; it is shared with all methods that train a cosine head.
        self.network.fit(base, self.config.head, self.seed)
        self.centre = self._powers(base).mean(0)
        self.means = self._means(base)
        self.sessions = 1

    def learn(self, session):
        new = self._means(session)
        self.means = torch.cat([self.means, new])
        self.sessions += 1

    def embed(self, images):
        return self._powers(images) - self.centre

    def scores_of(self, features):
        return cosine(features, self.means)

    def state(self):
        return {
            "network": self.network.state(),
            "centre": self.centre,
            "means": self.means,
            "sessions": self.sessions,
        }

    def restore(self, state):
        self.network.restore(state["network"])
        self.centre = state["centre"]
        self.means = state["means"]
        self.sessions = state["sessions"]

    def _powers(self, images):
        return self.network.embed(images) ** self.config.power

    def _means(self, images):
        return class_means(self.embed(images), images.labels, len(images.class_names))
