"""Fit a classifier from scratch: train backbone and adapter by CEC's stages 1 and 2.

A tenth of the images is held out of training. In the end every image counts in its class mean.
"""

import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import IO

import numpy as np
import torch

from fewmore.classifier.calibration import Calibration
from fewmore.classifier.embedding import Embedder, Progress, decode_batches, square_size
from fewmore.classifier.engines import AUTO
from fewmore.classifier.fitting.base import (
    NEVER,
    BaseFeatures,
    draw_folds,
    embed_base,
    held_out_counts,
)
from fewmore.classifier.fitting.calibrate import calibrate, typical_closeness
from fewmore.classifier.fitting.result import FitResult, hold_out_note
from fewmore.classifier.fitting.sessions import Session, simulate_sessions
from fewmore.classifier.fitting.transform import transform_for
from fewmore.classifier.heads import Head
from fewmore.classifier.inputs import ImageSetSequence, LabeledImages
from fewmore.data.augment import Transform
from fewmore.data.decode import decode_image
from fewmore.data.images import ImageSet
from fewmore.data.paths import cache_folder
from fewmore.errors import ConfigError, DataError
from fewmore.methods.base import Recipe
from fewmore.methods.cec import CEC
from fewmore.methods.cec import Config as CECConfig
from fewmore.nn.backbones import plain_name
from fewmore.random import derive_seed
from fewmore.training.pretrain import PretrainConfig
from fewmore.training.pseudo_incremental import PseudoConfig
from fewmore.training.runtime import Round, Runtime

HELD_OUT_ONE_IN = 10  # one image in so many is held out
SMALL_IMAGE = 48  # pixels of the short side, up to which a network for 32 pixels is trained
SIZED_CLASSES = 20  # classes whose first images decide on the network


def fit_from_scratch(
    recipe: Recipe | None,
    backbone: str | None,
    images: LabeledImages,
    device: torch.device,
    seed: int,
    progress: Progress,
    engine: str = AUTO,
) -> tuple[FitResult, Recipe]:
    """Train by a recipe, or by one made for the images; return the result and the recipe used."""
    counts = images.counts()
    if int(counts.min()) < 2:
        raise DataError(
            f"class '{images.names[int(counts.argmin())]}' has one image, and training from "
            "scratch takes at least 2 a class: add images, or train with a pretrained backbone"
        )
    generator = torch.Generator().manual_seed(derive_seed(seed, "held out"))
    held_counts = held_out_counts(counts.tolist(), HELD_OUT_ONE_IN)
    folds = draw_folds(torch.tensor(images.labels), held_counts, generator)
    if recipe is None:
        trained = [n - out for n, out in zip(counts.tolist(), held_counts, strict=True)]
        recipe = recipe_for(backbone or _network_for(images), trained)
    with decoded_to_disk(images, recipe.transform, progress) as decoded:
        trained_on = (folds == NEVER).nonzero().squeeze(1)

        def on_round(report: Round) -> None:
            progress(report.stage, report.round, report.rounds)

        method = CEC(recipe, Runtime(device, on_round=on_round), seed)
        method.fit(decoded.select(trained_on).to(device))
        network = method.network.backbone
        embedder = Embedder(network, recipe.transform, device, engine=engine)
        squares = LabeledImages(
            images.names, images.labels, ImageSetSequence(decoded), images.titles
        )
        base, positions = embed_base(embedder, squares, progress)
        base = replace(base, folds=folds[positions].to(device)).with_trained()
    adapter = method.adapter.requires_grad_(False)
    head = Head(device, network.dim, _held_out_variance(base), adapter)
    sessions = list(simulate_sessions(base, generator))
    calibration = _calibrate(sessions, base, head) if sessions else Calibration()
    notes = (*base.notes, *hold_out_note(base))
    return FitResult(network, base, head, calibration, notes), recipe


def _network_for(images: LabeledImages) -> str:
    """Choose a network by the size of the images."""
    return "resnet20" if _typical_short_side(images) <= SMALL_IMAGE else "resnet18"


def _calibrate(sessions: Sequence[Session], base: BaseFeatures, head: Head) -> Calibration:
    """Calibrate on simulated sessions, in which features and head stay as they were trained."""
    calibration = calibrate(sessions, lambda kept: (base, head))
    return replace(calibration, closeness=typical_closeness(base, replace(head, adapter=None)))


def recipe_for(backbone: str, counts: Sequence[int]) -> Recipe:
    """Make a recipe for so many images of each class.

    Stage 2 sees about half as many images as stage 1.
    """
    images = sum(counts)
    batch = 128 if images >= 4000 else min(32, images)
    pretrain = PretrainConfig(epochs=100, batch=batch, lr=0.1 * batch / 128, milestones=(60, 80))
    way = min(15, len(counts))
    query = min(15, min(counts) - 1)
    is_small = plain_name(backbone) in ("resnet8", "resnet20")
    episodes = min(5000, max(50, images * pretrain.epochs // (4 * way * (1 + query))))
    pseudo = PseudoConfig(
        episodes=episodes,
        milestones=tuple(round(episodes / 50 * share) for share in (0.2, 0.4, 0.6, 0.8)),
        base_way=way,
        new_way=way,
        base_query=query,
        new_query=query,
        encoder_lr=0.002 if is_small else 0.0002,
    )
    return Recipe(
        name="practice",
        backbone=backbone,
        transform=transform_for(backbone, pretrained=False),
        pretrain=pretrain,
        method=CECConfig(pseudo),
    )


def _held_out_variance(base: BaseFeatures) -> float:
    """Return the mean squared distance of held-out features from the means of the others."""
    is_held = base.folds != NEVER
    trained = base.select(~is_held).classes()
    held = base.select(is_held)
    labels = held.labels.cpu()
    if not len(labels):
        return 0.0
    means = torch.stack([known.mean for known in trained])[labels]
    counts = torch.tensor([known.count for known in trained])[labels]
    distances = (held.features.cpu().double() - means).square().sum(1)
    return float((distances / (1 + 1 / counts)).mean())


def _typical_short_side(images: LabeledImages) -> int:
    """Return the median short side over the first image of each of up to twenty classes."""
    first = {label: position for position, label in reversed(list(enumerate(images.labels)))}
    positions = list(first.values())[:SIZED_CLASSES]
    sides = sorted(
        min(decode_image(images.images[position], images.titles[position]).shape[1:])
        for position in positions
    )
    return sides[len(sides) // 2]


@contextmanager
def decoded_to_disk(
    images: LabeledImages, transform: Transform, progress: Progress
) -> Iterator[ImageSet]:
    """Decode all images to squares in a temporary file, which is memory-mapped."""
    size = square_size(transform)
    shape = (len(images), 3, size, size)
    with _temporary_file(math.prod(shape)) as file:
        pixels = np.memmap(file, np.uint8, "r+", shape=shape)
        for batch in decode_batches(images.images, images.titles, transform, 64):
            pixels[batch.start : batch.start + len(batch)] = batch.images.numpy()
            progress("decoding images", batch.start + len(batch), len(images))
        yield ImageSet.from_images(torch.from_numpy(pixels), images.labels, images.names)


@contextmanager
def _temporary_file(size: int) -> Iterator[IO[bytes]]:
    """Make a file of so many bytes in the cache folder, for as long as it is used."""
    folder = cache_folder()
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
            if hasattr(os, "posix_fallocate"):  # or a full disk kills who writes to the mapping
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        except OSError as error:
            raise ConfigError(
                f"the decoded images take {size:,} bytes, which {folder} cannot hold "
                f"({error.strerror or error}): make room there, or set FEWMORE_CACHE to another "
                "folder"
            ) from error
        yield file
