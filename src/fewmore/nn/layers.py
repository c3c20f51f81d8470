"""Define the layers that backbones are made of and PyTorch does not have."""

from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BatchNormAct2d(nn.BatchNorm2d):
    """Apply batch norm, then add a shortcut if one is given, then apply a ReLU.

    `ghost` takes the statistics of a training batch over parts of that many images, as a batch that
    is split over several GPUs does; 0 takes them over the whole batch. There is no counter of
    batches: with a fixed momentum nothing reads it.
    """

    def __init__(self, channels: int, relu: bool = True) -> None:
        super().__init__(channels)
        self.num_batches_tracked = None
        self.relu = relu
        self.ghost = 0

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        if self.training and 0 < self.ghost < len(x):
            shortcuts = repeat(None) if shortcut is None else torch.split(shortcut, self.ghost)
            parts = zip(torch.split(x, self.ghost), shortcuts, strict=False)
            return torch.cat([self.normalize(part, own) for part, own in parts])
        return self.normalize(x, shortcut)

    def normalize(self, x: Tensor, shortcut: Tensor | None) -> Tensor:
        """Apply all three operations to one group of images."""
        x = super().forward(x)
        if shortcut is not None:
            x = x + shortcut
        return F.relu(x, inplace=True) if self.relu else x

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Load without the counter of batches, which published weight files have."""
        state_dict.pop(f"{prefix}num_batches_tracked", None)
        nn.Module._load_from_state_dict(self, state_dict, prefix, *args, **kwargs)


def set_ghost_batch_size(module: nn.Module, images: int) -> None:
    """Set how many images the batch norms of a network take their statistics over; 0 for all."""
    for part in module.modules():
        if isinstance(part, BatchNormAct2d):
            part.ghost = images


def ghost_batch_size(module: nn.Module) -> int:
    """Return how many images the batch norms of a network take their statistics over; 0: all."""
    parts = [part.ghost for part in module.modules() if isinstance(part, BatchNormAct2d)]
    return max(parts, default=0)
