"""Hold the prototypes of all classes seen so far, one vector per class in the order of arrival."""

import math
import threading

import torch
from torch import Generator, Tensor, nn

from fewmore.nn.similarity import SIMILARITIES


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Average the raw features of each class: (classes, d)."""
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
    sums.index_add_(0, labels, features.double())
    return (sums / torch.bincount(labels, minlength=classes)[:, None]).to(features.dtype)


def random_prototypes(classes: int, dim: int, generator: Generator) -> Tensor:
    """Draw the weights of an untrained linear layer: (classes, d)."""
    bound = 1 / math.sqrt(dim)
    return torch.empty(classes, dim).uniform_(-bound, bound, generator=generator)


class Classifier(nn.Module):
    """Score features by their similarity to prototypes: the head of every method.

    The prototypes are trained, or they are class means.
    """

    def __init__(self, similarity: str, prototypes: Tensor) -> None:
        super().__init__()
        self.similarity = similarity
        self.prototypes = nn.Parameter(prototypes)

    def __len__(self) -> int:
        return len(self.prototypes)

    def forward(self, features: Tensor) -> Tensor:
        """Return scores (n, N) in the precision of the prototypes, also under autocast.

        Near 16, the largest score of a cosine, bfloat16 has steps of 1/16.
        """
        with torch.autocast(features.device.type, enabled=False):
            similarity = SIMILARITIES[self.similarity]
            return similarity(features.to(self.prototypes.dtype), self.prototypes)

    def grown(self, prototypes: Tensor) -> "Classifier":
        """Return a classifier with these prototypes appended."""
        known = self.prototypes.detach()
        return Classifier(self.similarity, torch.cat([known, prototypes.to(known)]))


_CLAIM = threading.Lock()  # held while an instance takes the free space of a shared buffer


class GrowingBuffer:
    """Hold vectors (…, n, d) with free space behind them, so that appending seldom copies.

    Instances that were grown from one another share a buffer. The first to append takes the free
    space; another one that appends to the same vectors copies them.
    """

    def __init__(self, vectors: Tensor) -> None:
        self.buffer = vectors
        self.length = vectors.shape[-2]
        self._used = [self.length]  # taken space; one list for all who share the buffer

    @property
    def filled(self) -> Tensor:
        """Return the vectors, as a view of the buffer."""
        return self.buffer[..., : self.length, :]

    def grown(self, vectors: Tensor) -> "GrowingBuffer":
        """Return a buffer with these vectors appended, of twice the size if this one is full."""
        length = self.length + vectors.shape[-2]
        with _CLAIM:
            free = self._used[0] == self.length and length <= self.buffer.shape[-2]
            if free:
                self._used[0] = length
        grown = GrowingBuffer.__new__(GrowingBuffer)
        if free:
            grown.buffer = self.buffer
            grown._used = self._used
        else:
            *outer, _, dim = self.buffer.shape
            grown.buffer = self.buffer.new_empty(*outer, 2 * length, dim)
            grown.buffer[..., : self.length, :] = self.filled
            grown._used = [length]
        grown.buffer[..., self.length : length, :] = vectors
        grown.length = length
        return grown
