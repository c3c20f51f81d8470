"""Nearest class mean after a power transform."""

import torch

from fewmore.methods.base import FrozenBackbone
from fewmore.methods.network import Network
from fewmore.nn.prototypes import class_means
from fewmore.nn.similarity import cosine


class PowerMeans(FrozenBackbone):
    """Square roots of the features, seen from their mean over the base session, and the cosine to class means."""

    def __init__(self, recipe, runtime, seed):
        super().__init__(recipe, runtime, seed)
        self.network = Network(recipe, runtime)

    def fit(self, base):
        self.network.fit(
            base, "cosine", self.seed
        )  # stage 1, shared with all methods that have a cosine head
        self.centre = self.network.embed(base).sqrt().mean(0)
        self.means = self._means(base)
        self.sessions = 1

    def learn(self, session):
        new = self._means(session)
        self.means = torch.cat([self.means, new])
        self.sessions += 1

    def embed(self, images):
        return self.network.embed(images).sqrt() - self.centre

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
        self.centre, self.means, self.sessions = (
            state[name] for name in ("centre", "means", "sessions")
        )

    def _means(self, images):
        return class_means(self.embed(images), images.labels, len(images.class_names))
