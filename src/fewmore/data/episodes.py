"""Sample episodes as index tensors, many at once.

An episode is a small classification task inside one set: some classes and, of each, some images,
without repetition. No image passes through Python.
"""

import torch
from torch import Generator, Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError


class EpisodeSampler:
    """Sample episodes from a set whose classes may differ in size."""

    def __init__(self, images: ImageSet) -> None:
        counts = images.class_counts()
        by_class = images.labels.argsort(stable=True)
        starts = counts.cumsum(0) - counts
        slot = torch.arange(int(counts.max()), device=images.device)
        self.counts = counts
        self.filled = slot < counts[:, None]  # (classes, largest class)
        self.indices = by_class[(starts[:, None] + slot).clamp(max=len(images) - 1)]

    def check(self, classes: int, images: int) -> None:
        """Raise ConfigError where an episode needs more classes or images than there are."""
        problems = []
        if classes > len(self.counts):
            problems.append(
                f"an episode of {classes} classes was asked for, "
                f"and there are {len(self.counts)} base classes: lower the ways"
            )
        smallest = int(self.counts.min())
        if images > smallest:
            problems.append(
                f"an episode takes {images} images a class, "
                f"and the smallest base class has {smallest}: lower shots and queries"
            )
        if problems:
            raise ConfigError("; ".join(problems))

    def sample_classes(self, episodes: int, classes: int, generator: Generator) -> Tensor:
        """Sample different classes for each episode: (episodes, classes)."""
        device = self.counts.device
        keys = torch.rand(episodes, len(self.counts), device=device, generator=generator)
        return keys.topk(classes, dim=1).indices

    def sample_images(self, classes: Tensor, images: int, generator: Generator) -> Tensor:
        """Sample different images of each class: (…, images), positions in the set."""
        shape = (*classes.shape, self.filled.shape[1])
        keys = torch.rand(*shape, device=self.counts.device, generator=generator)
        keys = keys.masked_fill(~self.filled[classes], -1.0)
        return self.indices[classes].gather(-1, keys.topk(images, dim=-1).indices)
