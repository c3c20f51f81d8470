"""Decode images in a stream and embed them with a frozen backbone.

Threads decode images a few batches ahead; where an engine computes on one core, each of them also
embeds its batch. A batch is cropped to squares, embedded and released: however many images there
are, only those few batches are in memory. A content hash identifies an image, so that none counts
twice.
"""

import copy
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fewmore.classifier import engines
from fewmore.classifier.whitening import Whitening
from fewmore.data.augment import Transform
from fewmore.data.decode import ImageLike, decode_image
from fewmore.data.threads import threaded_map
from fewmore.errors import FewmoreError, ImageError
from fewmore.nn.backbones import Backbone
from fewmore.nn.inference import for_inference

BATCH_SIZE = {"cpu": 16, "cuda": 256}  # a larger batch of wide feature maps leaves a CPU's cache
# One core takes so few images at a time, unless they have up to so many pixels a side: a call then
# costs more than some images.
SMALL_BATCH = 4
SMALL_IMAGE = 64
MAX_NAMED = 5  # broken images that a message names

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[str, int, int], None]  # stage, steps done, steps in all


def no_progress(stage: str, done: int, total: int) -> None:
    """Take reports of progress where nobody wants them."""


# Decoding


@dataclass(frozen=True, eq=False)
class Batch:
    """Hold consecutive decoded images."""

    start: int  # position of the first one
    images: Tensor  # (n, 3, s, s) uint8
    hashes: tuple[int, ...]  # empty unless asked for

    def __len__(self) -> int:
        return len(self.images)


def decode_batches(
    images: Sequence[Any],
    titles: Sequence[str],
    transform: Transform,
    batch_size: int,
    hashes: bool = False,
) -> Iterator[Batch]:
    """Yield all images in order as batches of squares, decoded a few batches ahead.

    If some images cannot be read, one error at the end names them.
    """
    return map_decoded(lambda batch: batch, images, titles, transform, batch_size, hashes)


def map_decoded(
    function: Callable[[Batch], R],
    images: Sequence[Any],
    titles: Sequence[str],
    transform: Transform,
    batch_size: int,
    hashes: bool = False,
) -> Iterator[R]:
    """Yield what a function makes of each batch of squares, in order.

    The thread that decoded a batch calls the function, a few batches ahead. If some images cannot
    be read, one error at the end names them.
    """
    errors: list[FewmoreError] = []

    def work(start: int) -> R | list[FewmoreError]:
        squares: list[np.ndarray] = []
        digests: list[int] = []
        found: list[FewmoreError] = []
        for position in range(start, min(start + batch_size, len(images))):
            try:
                square = center_square(images[position], titles[position], transform)
            except FewmoreError as error:
                found.append(error)
                continue
            squares.append(square.numpy())
            if hashes:
                digests.append(image_hash(square))
        if found or errors:  # after the first error, only further errors are collected
            return found
        # NumPy: PyTorch would copy these by several threads, which wait for one another.
        return function(Batch(start, torch.from_numpy(np.stack(squares)), tuple(digests)))

    for result in threaded_map(work, range(0, len(images), batch_size)):
        if isinstance(result, list):
            errors += result
        else:
            yield result
    if errors:
        raise combine_errors(errors)


def combine_errors(errors: Sequence[FewmoreError]) -> FewmoreError:
    """Return one error for all images that cannot be used."""
    if len(errors) == 1:
        return errors[0]
    more = f" and {len(errors) - MAX_NAMED:,} more" if len(errors) > MAX_NAMED else ""
    return ImageError(
        f"{len(errors)} images cannot be used: {'; '.join(map(str, errors[:MAX_NAMED]))}{more}"
    )


def square_size(transform: Transform) -> int:
    """Return the side of the square that an image is cropped to, before its center crop."""
    return transform.resize or transform.size


def center_square(image: ImageLike, title: str, transform: Transform) -> Tensor:
    """Decode an image, resize its short side and crop its center, (3, s, s) uint8."""
    size = square_size(transform)
    return decode_image(image, title, size, crop=size)


def image_hash(pixels: Tensor) -> int:
    """Return a content hash of an image's pixels, a signed number of 64 bits."""
    digest = hashlib.blake2b(pixels.numpy().data, digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _center_crop(pixels: Tensor, size: int) -> Tensor:
    top = (pixels.shape[-2] - size) // 2
    left = (pixels.shape[-1] - size) // 2
    return pixels[..., top : top + size, left : left + size]


# Embedding


class Embedder:
    """Embed images with a frozen backbone. Several threads may use it at once.

    What computes the backbone's features is built when the first ones are needed: see
    `fewmore.classifier.engines`.
    """

    def __init__(
        self,
        backbone: Backbone,
        transform: Transform,
        device: torch.device,
        whitening: Whitening | None = None,
        engine: str = engines.AUTO,
    ) -> None:
        self.engine_name = engines.check_name(engine, device)
        self.backbone: Backbone = for_inference(backbone).to(device)
        self.whitening = whitening and whitening.to(device)
        self.transform = transform
        self.device = device
        self.batch_size = BATCH_SIZE.get(device.type, 64)
        self._engine: engines.Engine | None = None
        self._building = threading.Lock()

    @property
    def engine(self) -> engines.Engine:
        """Return what computes the backbone's features."""
        with self._building:
            if self._engine is None:
                self._engine = engines.build(self.engine_name, self.backbone, self.transform)
            return self._engine

    @property
    def dim(self) -> int:
        """Return the number of features of an image."""
        return self.whitening.dim if self.whitening else self.backbone.dim

    @property
    def core_batch(self) -> int:
        """Return how many images to embed at a time on one core of a CPU."""
        if self.device.type == "cpu" and self.transform.size > SMALL_IMAGE:
            return min(SMALL_BATCH, self.batch_size)
        return self.batch_size

    @property
    def stream_batch(self) -> int:
        """Return how many images of a stream to embed at a time."""
        return self.core_batch if self.engine.is_concurrent else self.batch_size

    def shared_with(self, other: "Embedder") -> "Embedder | None":
        """Return an embedder with this backbone and the whitening of another one.

        None where the other is on another device, or is computed by another engine.
        """
        if (self.device, self.engine_name) != (other.device, other.engine_name):
            return None
        self.engine  # noqa: B018 built now, so that both have the same
        shared = copy.copy(self)
        shared.whitening = other.whitening
        return shared

    def features(self, images: Tensor) -> Tensor:
        """Return the features of squares (n, 3, s, s), (n, d) float32."""
        return self.features_by(self.engine, images)

    def features_by(self, engine: engines.Engine, images: Tensor) -> Tensor:
        """Return the features that an engine computes of squares, (n, d) float32."""
        return self.whiten(self._unwhitened(engine, images))

    def features_of(self, batch: Batch) -> Tensor:
        """Return the features of decoded images before whitening, (n, d) float32."""
        return self._unwhitened(self.engine, batch.images)

    @torch.no_grad()
    def _unwhitened(self, engine: engines.Engine, images: Tensor) -> Tensor:
        return engine(_center_crop(images.to(self.device), self.transform.size))

    @torch.no_grad()
    def whiten(self, features: Tensor) -> Tensor:
        """Whiten features (…, d) of the backbone, if there is a whitening."""
        return features if self.whitening is None else self.whitening(features)

    def stream(
        self, images: Sequence[Any], titles: Sequence[str], hashes: bool = False
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Yield all images in order, as decoded batches with their features before whitening.

        If some images cannot be read, one error at the end names them.
        """

        def embed(batch: Batch) -> tuple[Batch, Tensor]:
            return batch, self.features_of(batch)

        decoding = (images, titles, self.transform, self.stream_batch, hashes)
        if self.engine.is_concurrent:  # a core decodes and embeds: the squares stay in its cache
            return map_decoded(embed, *decoding)
        return map(embed, decode_batches(*decoding))

    def map_batches(self, function: Callable[[T], R], batches: Iterable[T]) -> Iterator[R]:
        """Yield the results of a function that computes features, in the order of the batches.

        Where the engine computes on one core, as many calls run at once as there are cores.
        """
        return (threaded_map if self.engine.is_concurrent else map)(function, batches)

    def embed(
        self,
        images: Sequence[Any],
        titles: Sequence[str],
        hashes: bool = False,
        progress: Progress | None = None,
    ) -> tuple[Tensor, tuple[int, ...]]:
        """Return the features of images, (n, d), and their content hashes if asked for.

        All are whitened at the end: PyTorch's threads would wait for those that decode.
        """
        features: list[Tensor] = []
        digests: list[int] = []
        for batch, of_batch in self.stream(images, titles, hashes):
            features.append(of_batch)
            digests += batch.hashes
            if progress:
                progress("embedding images", batch.start + len(batch), len(images))
        if not features:
            return torch.empty(0, self.dim, device=self.device), ()
        return self.whiten(torch.cat(features)), tuple(digests)
