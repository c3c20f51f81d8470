"""Embed the base images: class sums over all of them, and the features of a sample.

n: images of the sample   d: features   C: classes
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from fewmore.classifier.classes import KnownClass
from fewmore.classifier.duplicates import SeenImages
from fewmore.classifier.embedding import Embedder, Progress, decode_batches
from fewmore.classifier.inputs import LabeledImages

MIN_IMAGES = 4  # of each class, or nothing is held out
MAX_SAMPLE = 10_000  # images of the sample
FOLDS = 5  # parts of the sample that are held out in turn


@dataclass(frozen=True, eq=False)
class BaseFeatures:
    """Hold the base classes with all their images, and the features of a sample of these."""

    classes: tuple[KnownClass, ...]
    views: Tensor  # (rotations, n, d)
    labels: Tensor  # (n,)
    folds: Tensor  # (n,): images of the same fold are held out together
    notes: tuple[str, ...] = ()

    def without_sample(self) -> "BaseFeatures":
        """Return the same with an empty sample, so that nothing is held out."""
        return replace(self, views=self.views[:, :0], labels=self.labels[:0], folds=self.folds[:0])

    @property
    def fold_numbers(self) -> range:
        """Return the numbers of all folds."""
        return range(int(self.folds.max()) + 1 if len(self.folds) else 0)

    def without_fold(self, fold: int) -> list[KnownClass]:
        """Return the classes without the images of a fold."""
        held = self.folds == fold
        sums = torch.zeros(len(self.classes), self.views.shape[2], dtype=torch.float64)
        sums.index_add_(0, self.labels[held].cpu(), self.views[0, held].cpu().double())
        counts = torch.bincount(self.labels[held], minlength=len(self.classes)).tolist()
        return [
            KnownClass(known.name, known.feature_sum - sums[i], known.count - counts[i])
            for i, known in enumerate(self.classes)
        ]


def embed_base(
    embedder: Embedder,
    images: LabeledImages,
    sample: frozenset[int],
    rotations: Sequence[int],
    generator: Generator,
    progress: Progress,
) -> BaseFeatures:
    """Embed every image once, and those of the sample in all rotations.

    An image that its class has several times counts once. `sample` holds positions of images.
    """
    sums = torch.zeros(len(images.names), embedder.dim, dtype=torch.float64)
    seen = SeenImages(images)
    views = torch.empty(len(rotations), len(sample), embedder.dim, device=embedder.device)
    labels: list[int] = []
    batches = decode_batches(
        images.images, images.titles, embedder.transform, embedder.batch_size, hashes=True
    )
    for batch in batches:
        new = [i for i in range(len(batch)) if seen.add(batch.start + i, batch.hashes[i])]
        upright = embedder.features(batch.images)
        for i, features in zip(new, upright[0, new].cpu().double(), strict=True):
            sums[images.labels[batch.start + i]] += features
        sampled = [i for i in new if batch.start + i in sample]
        if sampled:
            place = slice(len(labels), len(labels) + len(sampled))
            views[0, place] = upright[0, sampled]
            if len(rotations) > 1:
                views[1:, place] = embedder.features(batch.images[sampled], rotations[1:])
            labels += [images.labels[batch.start + i] for i in sampled]
        progress("embedding images", batch.start + len(batch), len(images))
    classes = tuple(
        KnownClass(name, feature_sum.clone(), len(hashes), frozenset(hashes))
        for name, feature_sum, hashes in zip(images.names, sums, seen.hashes, strict=True)
    )
    label = torch.tensor(labels, dtype=torch.int64, device=embedder.device)
    folds = _draw_folds(label, generator)
    return BaseFeatures(classes, views[:, : len(labels)], label, folds, seen.notes())


def draw_positions(
    images: LabeledImages, counts: Sequence[int], generator: Generator
) -> frozenset[int]:
    """Draw the positions of so many images of each class."""
    sizes = images.counts()
    drawn: list[int] = []
    for count, size, end in zip(counts, sizes.tolist(), sizes.cumsum(0).tolist(), strict=True):
        drawn += (end - size + torch.randperm(size, generator=generator)[:count]).tolist()
    return frozenset(drawn)


def within_class_variance(base: BaseFeatures) -> float:
    """Return the mean squared distance of held-out features from their class mean."""
    squares = 0.0
    images = 0
    for fold in base.fold_numbers:
        held = base.folds == fold
        classes = base.without_fold(fold)
        labels = base.labels[held].cpu()
        means = torch.stack([known.mean for known in classes])[labels]
        counts = torch.tensor([known.count for known in classes])[labels]
        distances = (base.views[0, held].cpu().double() - means).square().sum(1)
        squares += float((distances / (1 + 1 / counts)).sum())
        images += len(labels)
    return squares / max(1, images)


def _draw_folds(labels: Tensor, generator: Generator) -> Tensor:
    """Draw a fold from 0 to 4 for each image of the sample, evenly within each class."""
    folds = torch.zeros_like(labels)
    for label in set(labels.tolist()):
        of_class = (labels == label).nonzero().squeeze(1)
        order = torch.randperm(len(of_class), generator=generator)
        folds[of_class] = (order % FOLDS).to(labels.device)
    return folds
