"""Fit a classifier on a pretrained backbone that is not trained further.

Each image is decoded and embedded once. How features are whitened is chosen on simulated sessions
of held-out images (contest.py), which calibrate the classifier as well. In the end every image
counts in its class mean.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Generator, Tensor

from fewmore.classifier.calibration import Calibration
from fewmore.classifier.embedding import Progress
from fewmore.classifier.feature_cache import CachedEmbedder
from fewmore.classifier.fitting.base import (
    BaseFeatures,
    draw_folds,
    embed_base,
    held_out_counts,
)
from fewmore.classifier.fitting.calibrate import calibrate, typical_closeness
from fewmore.classifier.fitting.contest import Choice, choose
from fewmore.classifier.fitting.result import FitResult, hold_out_note
from fewmore.classifier.fitting.sessions import simulate_sessions
from fewmore.classifier.heads import Head
from fewmore.classifier.inputs import LabeledImages
from fewmore.classifier.whitening import Whitening
from fewmore.data.threads import one_core_each
from fewmore.nn.backbones import Backbone
from fewmore.random import derive_seed


def fit_frozen(
    embedder: CachedEmbedder,
    backbone: Backbone,
    images: LabeledImages,
    seed: int,
    progress: Progress,
) -> FitResult:
    """Embed the images, and fit whitening and class means on their features."""
    base, _ = embed_base(embedder, images, progress)
    embedder.prune()
    if embedder.device.type == "mps":  # which has no float64
        base = base.to(torch.device("cpu"))
    base, whitening, head, calibration = fit_features(base, seed, backbone.classifier)
    head = replace(head, device=embedder.device)
    return FitResult(backbone, base, head, calibration, base.notes, whitening)


def fit_features(
    base: BaseFeatures, seed: int, classifier: Tensor | None = None
) -> tuple[BaseFeatures, Whitening, Head, Calibration]:
    """Choose and fit whitening and head on features; return the whitened features with them.

    The classifier (k, d + 1) is the one that the backbone had when its weights were trained.
    """
    classifier = None if classifier is None else classifier.to(base.features)
    generator = Generator().manual_seed(derive_seed(seed, "sample"))
    base = replace(base, folds=draw_folds(base.labels, held_out_counts(base.counts), generator))
    sample = base.sample(generator)
    sessions = list(simulate_sessions(sample, generator))
    choice = choose(sample, sessions, classifier) if sessions else Choice()

    def fit(rest: Tensor) -> tuple[BaseFeatures, Head]:
        _, whitened, head = choice.fit(sample, classifier, rest)
        return whitened, head

    with one_core_each(), ThreadPoolExecutor(1) as pool:
        fitting = pool.submit(choice.fit, base, classifier)  # beside the folds of the calibration
        calibration = calibrate(sessions, fit) if sessions else Calibration()
        whitening, base, head = fitting.result()
    base = replace(base, notes=(*base.notes, *hold_out_note(base), choice.note()))
    if not sessions:
        return base, whitening, head, calibration
    calibration = replace(
        calibration,
        closeness=typical_closeness(base, head),
        sessions_plain=choice.plain_accuracy,
        sessions_chosen=choice.accuracy,
    )
    return base, whitening, head, calibration
