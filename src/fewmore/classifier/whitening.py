"""Whiten features by the covariance within the base classes.

A root may be taken of each feature first, as for counts, which vary the more the larger they are.
Features are then centered by the mean of the base images, drawn to the origin a little, and scaled
to unit length. Directions in which images of one class differ tell little about the class, and are
damped; then the length is one again. All of it is settled in training, so that later classes change
nothing for earlier ones.

A classifier that came with the backbone's weights, such as ImageNet's, says much of things that are
like its own classes. The square roots of its probabilities are a vector of unit length, too, and
may take a share of the cosine.

n: images   d: features   r: directions   C: classes   k: classes of the backbone's classifier
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.nn.covariance import raise_to

MAX_DIRECTIONS = 512  # which keeps a model file small


@dataclass(frozen=True, eq=False)
class Whitening:
    """Map features (…, d) of a backbone to whitened ones of unit length, (…, d) or (…, d + k)."""

    center: Tensor  # (d,)
    damping: Tensor  # (d, r): orthogonal directions, of length √(1 − what is left of them)
    power: float = 1.0  # each feature is raised to it, with its sign kept
    classifier: Tensor | None = None  # (k, d + 1), with the bias in the last column
    share: float = 0.0  # weight of the classifier's probabilities in a cosine

    @property
    def dim(self) -> int:
        """Return the number of whitened features."""
        return len(self.center) + (0 if self.classifier is None else len(self.classifier))

    def __call__(self, features: Tensor) -> Tensor:
        unit = F.normalize(raise_to(features, self.power) - self.center, dim=-1)
        if self.damping.shape[1]:
            unit = F.normalize(unit - (unit @ self.damping) @ self.damping.T, dim=-1)
        if self.classifier is None:
            return unit
        roots = class_roots(features, self.classifier)
        return torch.cat([math.sqrt(1 - self.share) * unit, math.sqrt(self.share) * roots], -1)

    def to(self, target: torch.device | torch.dtype) -> "Whitening":
        """Return the same on another device, or in another precision."""
        tensors = {name: tensor.to(target) for name, tensor in self.tensors().items()}
        return replace(self, **tensors)  # type: ignore[arg-type]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors, by name."""
        tensors = {"center": self.center, "damping": self.damping}
        return tensors if self.classifier is None else tensors | {"classifier": self.classifier}


def class_roots(features: Tensor, classifier: Tensor) -> Tensor:
    """Return the square roots of a classifier's probabilities, (…, k), whose squares add to one."""
    logits = features @ classifier[:, :-1].T + classifier[:, -1]
    return (logits.log_softmax(-1) / 2).exp()


@dataclass(frozen=True, eq=False)
class Covariance:
    """Hold the center of features, and the covariance within classes of their unit vectors."""

    center: Tensor  # (d,)
    directions: Tensor  # (d, r): eigenvectors of the largest eigenvalues
    eigenvalues: Tensor  # (r,) float64
    trace: float  # sum of all eigenvalues
    power: float = 1.0  # that features were raised to

    @classmethod
    def within(cls, features: Tensor, labels: Tensor, power: float = 1.0) -> "Covariance":
        """Pool the covariance of features (n, d) within their classes."""
        features = raise_to(features, power)
        counts = torch.bincount(labels)
        classes = int((counts > 0).sum())
        # As if one more class lay at the origin: the mean of few classes is itself like a class.
        center = (features.double().mean(0) * classes / (classes + 1)).float()
        unit = F.normalize(features - center, dim=1)
        means = torch.zeros(len(counts), unit.shape[1], device=unit.device)
        means = means.index_add(0, labels, unit) / counts.clamp(min=1)[:, None]
        residuals = unit - means[labels]
        freedom = max(1, len(unit) - classes)
        # The smaller of two matrices that have the same eigenvalues.
        is_wide = len(unit) < unit.shape[1]
        matrix = residuals @ residuals.T if is_wide else residuals.T @ residuals
        eigenvalues, vectors = torch.linalg.eigh(matrix.double())
        kept = eigenvalues > 1e-6 * eigenvalues.max().clamp(min=1e-12)
        trace = float(eigenvalues[kept].sum()) / freedom
        eigenvalues = eigenvalues[kept][-MAX_DIRECTIONS:]
        vectors = vectors[:, kept][:, -MAX_DIRECTIONS:]
        if is_wide:
            vectors = residuals.T @ (vectors / eigenvalues.sqrt()).float()
        return cls(center, vectors.float(), eigenvalues / freedom, trace, power)

    def whitening(self, shrinkage: float | None) -> Whitening:
        """Return the whitening by this covariance, shrunk towards a multiple of the identity.

        With None, features are scaled alone.
        """
        if shrinkage is None:
            return Whitening(torch.zeros_like(self.center), self.directions[:, :0], self.power)
        damping = (self.directions * (1 - self.left(shrinkage)).sqrt()).float()
        return Whitening(self.center, damping, self.power)

    def left(self, shrinkage: float) -> Tensor:
        """Return what is left of each direction, (r,) float64."""
        floor = shrinkage * self.trace / len(self.center)
        return (floor / ((1 - shrinkage) * self.eigenvalues + floor)).sqrt()
