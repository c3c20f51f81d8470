"""The class-weight matrix that grows: one row a class, in the order the classes came."""

import math
import threading

import torch
from torch import Generator, Tensor, nn

from fewmore.nn.similarity import SIMILARITIES


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The plain mean of each class's raw features: (classes, d)."""
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
    sums.index_add_(0, labels, features.double())
    return (sums / torch.bincount(labels, minlength=classes)[:, None]).to(features.dtype)


def random_prototypes(rows: int, dim: int, generator: Generator) -> Tensor:
    """Rows of an untrained linear layer: (rows, d)."""
    return torch.empty(rows, dim).uniform_(
        -1 / math.sqrt(dim), 1 / math.sqrt(dim), generator=generator
    )


class GrowingBuffer:
    """Vectors of classes, (…, n, d), with room for more behind them. The room belongs to whoever grows them first; others copy."""

    def __init__(self, vectors: Tensor) -> None:
        self.buffer, self.length = vectors, vectors.shape[-2]
        self._taken = [
            self.length
        ]  # places of the buffer that are in use, shared by all who share the buffer

    @property
    def filled(self) -> Tensor:
        return self.buffer[..., : self.length, :]

    def grown(self, vectors: Tensor) -> "GrowingBuffer":
        """These with others behind them; a buffer that is full is copied to one of twice the size."""
        length = self.length + vectors.shape[-2]
        grown = GrowingBuffer.__new__(GrowingBuffer)
        with _claiming:
            free = self._taken[0] == self.length and length <= self.buffer.shape[-2]
            if free:
                self._taken[0] = length
        if free:
            grown.buffer, grown._taken = self.buffer, self._taken
        else:
            *outer, _, dim = self.buffer.shape
            grown.buffer, grown._taken = self.buffer.new_empty(*outer, 2 * length, dim), [length]
            grown.buffer[..., : self.length, :] = self.filled
        grown.buffer[..., self.length : length, :] = vectors
        grown.length = length
        return grown


_claiming = threading.Lock()


class Classifier(nn.Module):
    """Scores by a similarity to rows: the head of every method here. Rows are trained, or are class means."""

    def __init__(self, similarity: str, rows: Tensor) -> None:
        super().__init__()
        self.similarity = similarity
        self.prototypes = nn.Parameter(rows)

    def __len__(self) -> int:
        return len(self.prototypes)

    def forward(self, features: Tensor) -> Tensor:
        """Scores, in the rows' own precision whatever the network's: bfloat16 has steps of 1/16 where the scores of a cosine end."""
        with torch.autocast(features.device.type, enabled=False):
            return SIMILARITIES[self.similarity](
                features.to(self.prototypes.dtype), self.prototypes
            )

    def grown(self, rows: Tensor) -> "Classifier":
        """The classifier with these rows below its own."""
        return Classifier(
            self.similarity, torch.cat([self.prototypes.detach(), rows.to(self.prototypes)])
        )
