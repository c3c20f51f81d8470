"""Episodes: small classification tasks inside one set, drawn as index tensors, many at once.

An episode is a choice of classes and, of each, of images that do not repeat. No image passes through Python.
"""

import torch
from torch import Generator, Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError


class EpisodeSampler:
    """Draws episodes from a set whose classes may differ in size."""

    def __init__(self, images: ImageSet) -> None:
        counts = images.counts()
        order = images.labels.argsort(stable=True)
        starts = counts.cumsum(0) - counts
        place = torch.arange(int(counts.max()), device=images.device)
        self.counts = counts
        self.filled = place < counts[:, None]  # (classes, largest class)
        self.images = order[(starts[:, None] + place).clamp(max=len(images) - 1)]

    def check(self, classes: int, images: int) -> None:
        """Say what does not fit before anything is drawn."""
        wrong = []
        if classes > len(self.counts):
            wrong.append(
                f"an episode of {classes} classes was asked for, and there are {len(self.counts)} base classes: lower the ways"
            )
        smallest = int(self.counts.min())
        if images > smallest:
            wrong.append(
                f"an episode takes {images} images a class, and the smallest base class has {smallest}: lower shots and queries"
            )
        if wrong:
            raise ConfigError("; ".join(wrong))

    def classes(self, episodes: int, classes: int, generator: Generator) -> Tensor:
        """Different classes for each episode: (episodes, classes)."""
        keys = torch.rand(
            episodes, len(self.counts), device=self.counts.device, generator=generator
        )
        return keys.topk(classes, dim=1).indices

    def of(self, classes: Tensor, images: int, generator: Generator) -> Tensor:
        """Different images of each class: (…, images), positions in the set."""
        keys = torch.rand(
            *classes.shape, self.filled.shape[1], device=self.counts.device, generator=generator
        )
        keys = keys.masked_fill(~self.filled[classes], -1.0)
        return self.images[classes].gather(-1, keys.topk(images, dim=-1).indices)
