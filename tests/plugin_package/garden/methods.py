"""Classify by the nearest class mean, drawn towards the mean of all base images."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.methods.base import FrozenBackbone, MethodConfig
from fewmore.nn.prototypes import class_means
from fewmore.nn.similarity import cosine


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the settings."""

    shrink: float = 0.1  # how far class means are drawn towards the common mean


class DrawnMeans(FrozenBackbone):
    """Draw class means towards their common mean, and compare by cosines."""

    config_type = Config

    def fit(self, base: ImageSet) -> None:
        self.network.fit(base, self.config.head, self.seed)
        self.common = self.embed(base).mean(0)
        self.means = self._means(base)
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        new = self._means(session)
        self.means = torch.cat([self.means, new])
        self.sessions += 1

    def embed(self, images: ImageSet) -> Tensor:
        return self.network.embed(images)

    def scores_of(self, features: Tensor) -> Tensor:
        return cosine(features, self.means)

    def state(self) -> dict[str, Any]:
        return {
            "network": self.network.state(),
            "common": self.common,
            "means": self.means,
            "sessions": self.sessions,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.network.restore(state["network"])
        self.common, self.means = state["common"], state["means"]
        self.sessions = state["sessions"]

    def _means(self, images: ImageSet) -> Tensor:
        means = class_means(self.embed(images), images.labels, len(images.class_names))
        return torch.lerp(means, self.common, self.config.shrink)
