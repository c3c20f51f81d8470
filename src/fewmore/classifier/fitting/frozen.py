"""Fit a classifier on a pretrained backbone that is not trained further.

Each image is decoded once, and each view of it that is used is embedded once. An adapter learns on
the features of a sample of the images, and is kept only if it beats the plain cosine on
pseudo-sessions of held-out images. In the end every image counts in its class mean.
"""

import math
from dataclasses import replace

import torch
from torch import Generator, Tensor

from fewmore.classifier.embedding import Embedder, Progress
from fewmore.classifier.feature_cache import CachedEmbedder
from fewmore.classifier.fitting.adapter import train_adapter
from fewmore.classifier.fitting.base import (
    MAX_SAMPLE,
    MIN_IMAGES,
    BaseFeatures,
    draw_positions,
    embed_base,
    within_class_variance,
)
from fewmore.classifier.fitting.calibrate import calibrate
from fewmore.classifier.fitting.pseudo_sessions import compare_heads
from fewmore.classifier.fitting.result import FitResult, uncalibrated
from fewmore.classifier.heads import Head
from fewmore.classifier.inputs import LabeledImages
from fewmore.data.augment import Transform
from fewmore.nn.backbones import Backbone
from fewmore.random import derive_seed

MAX_SAMPLE_PER_CLASS = 40
ROTATIONS = (0, 1, 2, 3)  # quarter turns


def fit_frozen(
    backbone: Backbone,
    transform: Transform,
    images: LabeledImages,
    device: torch.device,
    seed: int,
    progress: Progress,
) -> FitResult:
    """Compute class means on frozen features, and train an adapter where it helps."""
    embedder = CachedEmbedder(backbone, transform, device)
    generator = torch.Generator().manual_seed(derive_seed(seed, "sample"))
    base = _embed_with_sample(embedder, images, generator, progress)
    embedder.prune()
    plain = Head(device, embedder.dim, within_class_variance(base))
    if not len(base.labels):
        return uncalibrated(backbone, base, plain)
    adapted = train_adapter(base, plain, seed, progress)
    plain_accuracy, adapter_accuracy = compare_heads(base, (plain, adapted), generator)
    is_used = _is_better(adapter_accuracy, plain_accuracy)
    head = adapted if is_used else plain
    # The adapter has seen all folds but the first.
    calibration = replace(
        calibrate(base, head, [0] if is_used else base.fold_numbers, generator),
        sessions_plain=float(plain_accuracy.mean()),
        sessions_adapted=float(adapter_accuracy.mean()),
    )
    note = (
        f"the adapter is {'used' if is_used else 'not used'}: on pseudo-sessions of held-out "
        f"images {100 * float(adapter_accuracy.mean()):.1f} % are right with it, "
        f"{100 * float(plain_accuracy.mean()):.1f} % by the plain cosine"
    )
    return FitResult(backbone, base, head, calibration, (*base.notes, note))


def _embed_with_sample(
    embedder: Embedder, images: LabeledImages, generator: Generator, progress: Progress
) -> BaseFeatures:
    """Embed all images, with a sample where each class has enough different ones."""
    counts = images.counts()
    sample: frozenset[int] = frozenset()
    if int(counts.min()) >= MIN_IMAGES:
        most = max(MIN_IMAGES, min(MAX_SAMPLE_PER_CLASS, MAX_SAMPLE // len(images.names)))
        sample = draw_positions(images, [min(most, n) for n in counts.tolist()], generator)
    base = embed_base(embedder, images, sample, ROTATIONS, generator, progress)
    # Without duplicates a class may have fewer images than its files made it look.
    if min(known.count for known in base.classes) < MIN_IMAGES:
        return base.without_sample()
    return base


def _is_better(accuracy: Tensor, baseline: Tensor) -> bool:
    """Say whether accuracies of the same images are better by more than one standard error."""
    gain = accuracy - baseline
    return float(gain.mean()) > float(gain.std(correction=0)) / math.sqrt(len(gain))
