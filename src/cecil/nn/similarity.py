"""Similarities: features (n, d) and prototypes (N, d) to scores (n, N). The largest score is the answer."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 16.0  # of the cosine classifier, in training and in testing

Similarity = Callable[[Tensor, Tensor], Tensor]


def dot(features: Tensor, prototypes: Tensor) -> Tensor:
    """The linear classifier without a bias."""
    return features @ prototypes.T


def cosine(features: Tensor, prototypes: Tensor) -> Tensor:
    """The cosine classifier, 16 times the cosine of the angle."""
    return TEMPERATURE * F.normalize(features, dim=-1) @ F.normalize(prototypes, dim=-1).T


def negative_l2(features: Tensor, prototypes: Tensor) -> Tensor:
    """Minus the squared distance."""
    return 2 * features @ prototypes.T - features.square().sum(-1, keepdim=True) - prototypes.square().sum(-1)


SIMILARITIES: dict[str, Similarity] = {"linear": dot, "cosine": cosine, "l2": negative_l2}
