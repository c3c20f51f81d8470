"""Classify by ridge regression on randomly projected features; sums are all that is kept.

After RanPAC (McDonnell et al., NeurIPS 2023), https://arxiv.org/abs/2307.02251.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from fewmore.methods.base import FrozenBackbone, MethodConfig
from fewmore.nn.prototypes import class_means
from fewmore.random import derive_seed


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the settings of projection and regression."""

    width: int = 512  # of the projected features
    penalty: float = 1.0  # on the squared weights of the regression


class Ridge(FrozenBackbone):
    """Ridge regression onto the classes, each with the same weight, after a random projection."""

    config_type = Config
    name = "ridge"

    def fit(self, base):
        self.network.fit(base, self.config.head, self.seed)
        empty = torch.zeros(0, self.config.width, dtype=torch.float64, device=base.device)
        self.gram, self.means = empty.T @ empty, empty
        self.learn(base)

    def learn(self, session):
        features, counts = self.embed(session).double(), session.class_counts()
        means = class_means(features, session.labels, len(counts))
        self.gram = self.gram + features.T @ (features / counts[session.labels, None])
        self.means = torch.cat([self.means, means])
        self.sessions += 1

    def embed(self, images):
        features = F.normalize(self.network.embed(images))
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "projection"))
        projection = torch.randn(features.shape[1], self.config.width, generator=generator)
        return F.relu(features @ projection.to(features))

    def scores_of(self, features):
        gram = self.gram + self.config.penalty * torch.eye(self.config.width).to(self.gram)
        return (features.double() @ torch.linalg.solve(gram, self.means.T)).float()

    def state(self):
        learnt = {"network": self.network.state(), "sessions": self.sessions}
        return learnt | {"gram": self.gram, "means": self.means}

    def restore(self, state):
        self.network.restore(state["network"])
        self.gram, self.means = (state[name].to(self.runtime.device) for name in ("gram", "means"))
        self.sessions = state["sessions"]
