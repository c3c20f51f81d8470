"""Whiten features by the covariance within the base classes.

A root may be taken of each feature first, as for counts, which vary the more the larger they are.
Features are then centered by the mean of the base images and scaled to unit length. Directions in
which images of one class differ tell little about the class, and are damped; then the length is one
again. All of it is settled in training, so that later classes change nothing for earlier ones.

n: images   d: features   r: directions   C: classes
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_DIRECTIONS = 512  # which keeps a model file small


@dataclass(frozen=True, eq=False)
class Whitening:
    """Map features (…, d) of a backbone to whitened ones of unit length, (…, d)."""

    center: Tensor  # (d,)
    damping: Tensor  # (d, r): orthogonal directions, of length √(1 − what is left of them)
    power: float = 1.0  # that each feature is raised to, with its sign kept

    def __call__(self, features: Tensor) -> Tensor:
        unit = F.normalize(raise_to(features, self.power) - self.center, dim=-1)
        if self.damping.shape[1]:
            unit = F.normalize(unit - (unit @ self.damping) @ self.damping.T, dim=-1)
        return unit

    def to(self, device: torch.device) -> "Whitening":
        """Return the same on another device."""
        return replace(self, center=self.center.to(device), damping=self.damping.to(device))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors, by name."""
        return {"center": self.center, "damping": self.damping}

    def double(self) -> "Whitening":
        """Return the same in float64."""
        return replace(self, center=self.center.double(), damping=self.damping.double())


def raise_to(features: Tensor, power: float) -> Tensor:
    """Raise the absolute value of each feature to a power, and keep its sign."""
    return features if power == 1 else features.sign() * features.abs().pow(power)


@dataclass(frozen=True, eq=False)
class Covariance:
    """Hold the mean of features, and the covariance within classes of their unit vectors."""

    center: Tensor  # (d,)
    directions: Tensor  # (d, r): eigenvectors, those of the largest eigenvalues last
    eigenvalues: Tensor  # (r,) float64
    power: float = 1.0  # that features were raised to

    @classmethod
    def within(cls, features: Tensor, labels: Tensor, power: float = 1.0) -> "Covariance":
        """Pool the covariance of features (n, d) within their classes."""
        features = raise_to(features, power)
        center = features.double().mean(0).float()
        unit = F.normalize(features - center, dim=1)
        counts = torch.bincount(labels)
        means = torch.zeros(len(counts), unit.shape[1], device=unit.device)
        means = means.index_add(0, labels, unit) / counts.clamp(min=1)[:, None]
        residuals = (unit - means[labels]).double()
        freedom = max(1, len(unit) - int((counts > 0).sum()))
        # The smaller of two matrices that have the same eigenvalues.
        is_wide = len(unit) < unit.shape[1]
        matrix = residuals @ residuals.T if is_wide else residuals.T @ residuals
        eigenvalues, vectors = torch.linalg.eigh(matrix)
        kept = eigenvalues > 1e-6 * eigenvalues.max().clamp(min=1e-12)
        eigenvalues, vectors = eigenvalues[kept], vectors[:, kept]
        if is_wide:
            vectors = residuals.T @ vectors / eigenvalues.sqrt()
        return cls(center, vectors.float(), eigenvalues / freedom, power)

    def whitening(self, shrinkage: float | None) -> Whitening:
        """Return the whitening by this covariance, shrunk towards a multiple of the identity.

        With a shrinkage of one, features are centered and scaled alone; with None, scaled alone.
        """
        directions = self.directions[:, -MAX_DIRECTIONS:]
        if shrinkage is None:
            return Whitening(torch.zeros_like(self.center), directions[:, :0], self.power)
        if shrinkage == 1.0:
            return Whitening(self.center, directions[:, :0], self.power)
        floor = shrinkage * self.eigenvalues.sum() / len(self.center)
        shrunk = (1 - shrinkage) * self.eigenvalues[-MAX_DIRECTIONS:] + floor
        damped = 1 - (floor / shrunk).sqrt()
        return Whitening(self.center, (directions * damped.sqrt()).float(), self.power)
