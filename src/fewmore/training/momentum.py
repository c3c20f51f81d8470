"""Compare features with those of earlier steps: a momentum encoder and a queue of its features.

He, Fan, Wu, Xie, Girshick: Momentum Contrast for Unsupervised Visual Representation Learning
(MoCo), CVPR 2020, https://arxiv.org/abs/1911.05722.

Both are modules whose buffers change in place within a step, so that they can be part of a captured
step and of a checkpoint: put them into the `modules` of an objective.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn


class MomentumEncoder(nn.Module):
    """Follow a network slowly: each weight is a moving average of the network's.

    It is a copy of the network, without gradients. Its batch norms take their own statistics of
    each batch, as the network's do.
    """

    def __init__(self, network: nn.Module, momentum: float = 0.999) -> None:
        super().__init__()
        self.copy = copy.deepcopy(network).requires_grad_(False)
        self.momentum = momentum
        self._network = (network,)  # in a tuple, as it is no part of this module

    @torch.no_grad()
    def update(self) -> None:
        """Move the weights towards the network's, by a share of 1 − momentum."""
        own: list[Tensor] = list(self.copy.parameters())
        network: list[Tensor] = list(self._network[0].parameters())
        torch._foreach_lerp_(own, network, 1 - self.momentum)

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Any:
        """Return what the copy computes, without gradients."""
        return self.copy(*inputs)


class Queue(nn.Module):
    """Hold the newest features of earlier steps, with their labels, as unit vectors.

    At first it holds random unit vectors with the label −1.
    """

    features: Tensor  # (size, d)
    labels: Tensor  # (size,)
    place: Tensor  # () where the next features go

    def __init__(self, size: int, dim: int, generator: Generator) -> None:
        super().__init__()
        random = torch.randn(size, dim, generator=generator, device=generator.device)
        self.register_buffer("features", F.normalize(random, dim=1))
        self.register_buffer("labels", torch.full((size,), -1))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    def read(self) -> tuple[Tensor, Tensor]:
        """Return a copy of all features and labels, which a later `add` does not change.

        What the loss is computed from must stay as it is until its gradients are known.
        """
        return self.features.clone(), self.labels.clone()

    @torch.no_grad()
    def add(self, features: Tensor, labels: Tensor) -> None:
        """Put features in place of the oldest ones; of more than the queue holds, the last stay."""
        size = len(self.features)
        features, labels = features[-size:], labels[-size:]
        places = torch.arange(len(features), device=features.device).add(self.place) % size
        self.features.index_copy_(0, places, F.normalize(features.float(), dim=1))
        self.labels.index_copy_(0, places, labels)
        self.place.add_(len(features)).remainder_(size)


def momentum_problems(queue: int, momentum: float, temperature: float) -> list[str]:
    """Say what is wrong with the settings of a contrast with momentum features."""
    wrong = []
    if queue < 1:
        wrong.append(f"queue must be at least 1, not {queue}")
    if not 0 <= momentum <= 1:
        wrong.append(f"encoder_momentum must lie in [0, 1], not {momentum}")
    if temperature <= 0:
        wrong.append(f"temperature must be a positive number, not {temperature}")
    return wrong
