"""Embed the base images, and hold some of them out in turn.

n: images   d: features   C: classes
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from fewmore.classifier.classes import KnownClass
from fewmore.classifier.duplicates import SeenImages
from fewmore.classifier.embedding import Embedder, Progress
from fewmore.classifier.inputs import LabeledImages
from fewmore.classifier.whitening import Whitening

MIN_IMAGES = 4  # a class with fewer images has none of them held out
MIN_CLASSES = 2  # with fewer classes of MIN_IMAGES, nothing is held out
MAX_SAMPLE = 4_000  # images that are held out in turn, at most
MIN_SAMPLE = 20  # images of a class that class means need in order to be like those of all images
FOLDS = 5  # parts of the images, each of which is held out once
NEVER = -1  # fold of images that are not held out


@dataclass(frozen=True, eq=False)
class BaseFeatures:
    """Hold the features of all base images, and which of them are held out together."""

    names: tuple[str, ...]
    features: Tensor  # (n, d)
    labels: Tensor  # (n,)
    folds: Tensor  # (n,)
    hashes: tuple[int, ...] = ()  # of all images, or empty
    notes: tuple[str, ...] = ()

    @property
    def fold_numbers(self) -> list[int]:
        """Return the numbers of all folds."""
        return sorted(set(self.folds.tolist()) - {NEVER})

    @property
    def counts(self) -> list[int]:
        """Return the number of images of each class."""
        return torch.bincount(self.labels, minlength=len(self.names)).tolist()

    def to(self, device: torch.device) -> "BaseFeatures":
        """Return the same on another device."""
        return replace(
            self,
            features=self.features.to(device),
            labels=self.labels.to(device),
            folds=self.folds.to(device),
        )

    def whitened(self, whitening: Whitening) -> "BaseFeatures":
        """Return the same images with whitened features."""
        return replace(self, features=whitening(self.features))

    def sample(self, generator: Generator) -> "BaseFeatures":
        """Return the images that are held out in turn, and others of classes with few of these.

        Of many classes few images each are held out: means of these alone would be far worse than
        those of the classifier.
        """
        kept = self.folds != NEVER
        held = torch.bincount(self.labels[kept], minlength=len(self.names)).tolist()
        for label, count in enumerate(held):
            if (room := MIN_SAMPLE - count) <= 0:
                continue
            others = ((self.labels == label) & ~kept).nonzero().squeeze(1)
            if len(others) > room:
                order = torch.randperm(len(others), generator=generator)[:room]
                others = others[order.to(others.device)]
            kept[others] = True
        return self.select(kept)

    def with_trained(self) -> "BaseFeatures":
        """Hold no image out of a class that would be left without one.

        Folds are drawn before copies are dropped, and all images of a class may be copies.
        """
        trained = torch.bincount(self.labels[self.folds == NEVER], minlength=len(self.names)) > 0
        return replace(self, folds=self.folds.where(trained[self.labels], NEVER))

    def select(self, kept: Tensor) -> "BaseFeatures":
        """Return the images that a mask (n,) keeps, without their hashes."""
        return replace(
            self,
            features=self.features[kept],
            labels=self.labels[kept],
            folds=self.folds[kept],
            hashes=(),
        )

    def classes(self) -> list[KnownClass]:
        """Return the classes."""
        hashes: list[set[int]] = [set() for _ in self.names]
        for label, digest in zip(self.labels.tolist(), self.hashes, strict=False):
            hashes[label].add(digest)
        return [
            KnownClass(name, feature_sum.clone(), count, frozenset(of_class))
            for name, feature_sum, count, of_class in zip(
                self.names, self._sums(), self.counts, hashes, strict=True
            )
        ]

    def means(self) -> Tensor:
        """Return the class means, (C, d) float64 on the CPU; zeros for a class without images."""
        counts = torch.tensor(self.counts).clamp(min=1)
        return self._sums() / counts[:, None]

    def variance(self) -> float:
        """Return the mean squared distance of features from their class mean."""
        labels = self.labels.cpu()
        distances = (self.features.cpu().double() - self.means()[labels]).square().sum()
        return float(distances / max(1, len(labels) - len(set(labels.tolist()))))

    def _sums(self) -> Tensor:
        sums = torch.zeros(len(self.names), self.features.shape[1], dtype=torch.float64)
        return sums.index_add_(0, self.labels.cpu(), self.features.cpu().double())


def embed_base(
    embedder: Embedder, images: LabeledImages, progress: Progress
) -> tuple[BaseFeatures, list[int]]:
    """Embed every image once; return the features, and the positions of the images they are of.

    An image that its class has several times counts once.
    """
    seen = SeenImages(images)
    features: list[Tensor] = []
    positions: list[int] = []
    hashes: list[int] = []
    for batch, of_batch in embedder.stream(images.images, images.titles, hashes=True):
        new = [i for i in range(len(batch)) if seen.add(batch.start + i, batch.hashes[i])]
        features.append(of_batch)
        positions += [batch.start + i for i in new]
        hashes += [batch.hashes[i] for i in new]
        progress("embedding images", batch.start + len(batch), len(images))
    labels = torch.tensor([images.labels[i] for i in positions], device=embedder.device)
    folds = torch.full_like(labels, NEVER)
    # Once for all: tensor operations between the batches would wait for the threads that decode.
    kept = torch.cat(features)[positions]
    base = BaseFeatures(tuple(images.names), kept, labels, folds, tuple(hashes), seen.notes())
    return base, positions


def draw_folds(labels: Tensor, held_out: Sequence[int], generator: Generator) -> Tensor:
    """Hold out so many images of each class, in five folds that are even within each class."""
    folds = torch.full_like(labels, NEVER)
    for label, count in enumerate(held_out):
        of_class = (labels == label).nonzero().squeeze(1)
        order = torch.randperm(len(of_class), generator=generator)[:count].to(of_class.device)
        folds[of_class[order]] = torch.arange(len(order), device=of_class.device) % FOLDS
    return folds


def held_out_counts(counts: Sequence[int], one_in: int = 1) -> list[int]:
    """Return how many images of each class to hold out: one in so many, none of small classes."""
    most = max(1, MAX_SAMPLE // len(counts))
    if sum(count >= MIN_IMAGES for count in counts) < MIN_CLASSES:
        return [0] * len(counts)
    return [max(1, min(most, count // one_in)) if count >= MIN_IMAGES else 0 for count in counts]
