"""Classify by linear discriminants with the covariance of the base classes (LDA).

Hayes, Kanan: Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis, CVPR
Workshops 2020, https://arxiv.org/abs/1909.01520 (the variant whose covariance stays as it is after
the base session).

Within a class, features vary more in some directions than in others, and much alike in all classes.
The base session has enough images to estimate that covariance; a few images of a new class only
give its mean. With Gaussian classes of one covariance Σ, the log probability of a class is
x·Σ⁻¹μ − μ·Σ⁻¹μ / 2, but for a constant.

Features are scaled to length 1 first, as the cosine head of stage 1 does. Σ is blended with a
multiple of the identity that has the same trace, so that it can be inverted.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, fitted
from fewmore.methods.base import MethodConfig, Recipe, ScoresPerView
from fewmore.nn.covariance import shrink, within_class_covariance
from fewmore.nn.prototypes import Classifier, class_means
from fewmore.training.checkpoint import State
from fewmore.training.runtime import Runtime


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold how the covariance is estimated."""

    shrinkage: float = 0.3  # share of the identity in the covariance

    def __post_init__(self) -> None:
        if not 0 < self.shrinkage <= 1:
            raise ConfigError(f"shrinkage must lie in (0, 1], not {self.shrinkage}")


class Discriminant(ScoresPerView):
    """Classify by class means and the base classes' covariance, on a frozen backbone."""

    config_type = Config
    config: Config

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self._covariances: Tensor | None = None  # (views, d, d), float64

    def fit(self, base: ImageSet) -> None:
        """Train the backbone (stage 1), and take means and covariance of the base classes."""
        self.network.fit(base, self.config.head, self.seed)
        features = self._unit_features(base)
        means = class_means(features, base.labels, len(base.class_names))
        views = zip(self.split_views(features), self.split_views(means), strict=True)
        self._covariances = torch.stack(
            [within_class_covariance(part, base.labels, of_view) for part, of_view in views]
        )
        self.network.classifier = Classifier("linear", means)
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        """Append the means of the new classes."""
        features = self._unit_features(session)
        means = class_means(features, session.labels, len(session.class_names))
        self.network.classifier = self.network.classifier.grown(means)
        self.sessions += 1

    def _unit_features(self, images: ImageSet) -> Tensor:
        """Return features with a length of 1 in each test view."""
        parts = self.split_views(self.embed(images))
        return torch.cat([F.normalize(part, dim=1) for part in parts], 1)

    def view_scores(self, features: Tensor, view: int) -> Tensor:
        """Return the log probability of each class, but for a constant of the image."""
        means = self.split_views(self.network.classifier.prototypes.detach())[view].double()
        covariance = shrink(self.covariances[view], self.config.shrinkage)
        weights = torch.linalg.solve(covariance, means.T)  # (d, classes)
        offsets = (means.T * weights).sum(0) / 2
        scores: Tensor = F.normalize(features, dim=1).double() @ weights - offsets
        return scores.to(features.dtype)

    @property
    def covariances(self) -> Tensor:
        """Return the covariance of the base classes in each test view."""
        return fitted(self._covariances)

    def state(self) -> State:
        return {**super().state(), "covariances": self.covariances}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._covariances = state["covariances"].to(self.runtime.device)
