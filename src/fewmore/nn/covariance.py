"""Estimate how features vary within a class, pooled over the classes of the base session."""

import torch
from torch import Tensor

LEAST_VARIANCE = 1e-8  # of a feature; a base session with one image a class has none


def within_class_covariance(features: Tensor, labels: Tensor, means: Tensor) -> Tensor:
    """Pool the covariance of features (n, d) around the means of their classes: (d, d) float64."""
    rest = (features - means[labels]).double()
    return rest.T @ rest / max(1, len(rest) - len(means))


def shrink(covariance: Tensor, share: float) -> Tensor:
    """Blend a covariance with a multiple of the identity of the same trace: it can be inverted."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    variance = covariance.diagonal().mean().clamp(min=LEAST_VARIANCE)
    return (1 - share) * covariance + share * variance * identity


def inverse_root(covariance: Tensor) -> Tensor:
    """Return the symmetric matrix that whitens features of a covariance: Σ^(−1/2)."""
    variances, directions = torch.linalg.eigh(covariance)
    root: Tensor = directions * variances.rsqrt() @ directions.T
    return root


def raise_to(features: Tensor, power: float) -> Tensor:
    """Raise the absolute value of each feature to a power, and keep its sign."""
    return features if power == 1 else features.sign() * features.abs().pow(power)
