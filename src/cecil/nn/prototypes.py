"""The class-weight matrix that grows: one row a class, in the order the classes came."""

import math

import torch
from torch import Generator, Tensor, nn

from cecil.nn.similarity import SIMILARITIES


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The plain mean of each class's raw features: (classes, d)."""
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64, device=features.device)
    sums.index_add_(0, labels, features.double())
    return (sums / torch.bincount(labels, minlength=classes)[:, None]).to(features.dtype)


def random_rows(rows: int, dim: int, generator: Generator) -> Tensor:
    """Rows of an untrained linear layer: (rows, d)."""
    return torch.empty(rows, dim).uniform_(-1 / math.sqrt(dim), 1 / math.sqrt(dim), generator=generator)


class Classifier(nn.Module):
    """Scores by a similarity to rows: the head of every method here. Rows are trained, or are class means."""

    def __init__(self, similarity: str, rows: Tensor) -> None:
        super().__init__()
        self.similarity = similarity
        self.rows = nn.Parameter(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def forward(self, features: Tensor) -> Tensor:
        return SIMILARITIES[self.similarity](features, self.rows)

    def grown(self, rows: Tensor) -> "Classifier":
        """The classifier with these rows below its own."""
        return Classifier(self.similarity, torch.cat([self.rows.detach(), rows.to(self.rows)]))
