"""Measure each image once: its features, content hash, thumbnail, size and sharpness.

Images are decoded a few batches ahead and released; about 8 kB an image stay in memory.
"""

import copy
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from fewmore.classifier.embedding import Embedder, Progress, center_square, image_hash
from fewmore.classifier.inputs import LabeledImages
from fewmore.data.augment import Transform
from fewmore.data.decode import suppress_warnings
from fewmore.data.folders import from_printable
from fewmore.data.threads import threaded_map
from fewmore.errors import FewmoreError, ImageError

THUMBNAIL = 16  # pixels a side, by which copies are compared


@dataclass(frozen=True, eq=False)
class Measured:
    """Hold what was measured of the images that can be read, n of them."""

    source: LabeledImages
    positions: tuple[int, ...]  # of the images in the source
    labels: Tensor  # (n,)
    features: Tensor  # (n, d) float32 on the CPU, as the backbone gives them
    hashes: tuple[int, ...]
    thumbnails: Tensor  # (n, 3 · 16 · 16) float16: each channel of zero mean, all of unit length
    contrast: Tensor  # (n,): standard deviation of the thumbnail, in levels of 0 … 255
    short_sides: Tensor  # (n,) pixels of the file
    sharpness: Tensor  # (n,): variance of the Laplacian of the square that is embedded
    broken: dict[int, str]  # what is wrong with the others, by their positions

    def __len__(self) -> int:
        return len(self.positions)

    def counts(self) -> Tensor:
        """Return the number of readable images of each class, (C,)."""
        return torch.bincount(self.labels, minlength=len(self.source.names))

    def title(self, index: int) -> str:
        """Return what a readable image is called."""
        return self.source.titles[self.positions[index]]

    def name(self, index: int) -> str:
        """Return the class of a readable image."""
        return self.source.names[int(self.labels[index])]


@dataclass(frozen=True, eq=False)
class _Image:
    digest: int
    thumbnail: Tensor
    contrast: float
    short_side: int
    sharpness: float


_Decoded = tuple[Tensor, _Image] | FewmoreError  # the square to embed, or why there is none


def measure(images: LabeledImages, embedder: Embedder, progress: Progress) -> Measured:
    """Decode, measure and embed all images in a stream; those that cannot be read are noted.

    Features are not whitened: that was learnt from these images, if they were learnt.
    """
    _ = embedder.engine  # built once for both
    embedder = copy.copy(embedder)
    embedder.whitening = None

    def decode(start: int) -> list[_Decoded]:
        stop = min(start + embedder.batch_size, len(images))
        return [
            _measure_one(images.images[i], images.titles[i], embedder.transform)
            for i in range(start, stop)
        ]

    def embed(results: list[_Decoded]) -> tuple[list[_Decoded], Tensor]:
        squares = [result[0] for result in results if not isinstance(result, FewmoreError)]
        if not squares:
            return results, torch.empty(0, embedder.dim)
        return results, embedder.features(torch.stack(squares)).cpu()

    features = [torch.empty(0, embedder.dim)]
    measured: list[_Image] = []
    positions: list[int] = []
    broken: dict[int, str] = {}
    starts = range(0, len(images), embedder.batch_size)
    batches = embedder.map_batches(embed, threaded_map(decode, starts))
    for start, (results, of_batch) in zip(starts, batches, strict=True):
        features.append(of_batch)
        for position, result in enumerate(results, start):
            if isinstance(result, FewmoreError):
                broken[position] = str(result).removeprefix(f"{images.titles[position]} ")
                continue
            measured.append(result[1])
            positions.append(position)
        progress("checking images", start + len(results), len(images))
    return Measured(
        source=images,
        positions=tuple(positions),
        labels=torch.tensor([images.labels[i] for i in positions], dtype=torch.int64),
        features=torch.cat(features),
        hashes=tuple(one.digest for one in measured),
        thumbnails=_stack([one.thumbnail for one in measured]),
        contrast=torch.tensor([one.contrast for one in measured]),
        short_sides=torch.tensor([one.short_side for one in measured]),
        sharpness=torch.tensor([one.sharpness for one in measured]),
        broken=broken,
    )


def _measure_one(image: Any, title: str, transform: Transform) -> _Decoded:
    try:
        square = center_square(image, title, transform)
        short_side = _short_side(image)
    except FewmoreError as error:
        return error
    except OSError as error:  # the file was there a moment ago
        reason = error.strerror or error
        return ImageError(
            f"{title} cannot be read as an image ({reason}): replace it, or leave it out"
        )
    thumbnail = F.interpolate(square[None].float(), size=(THUMBNAIL, THUMBNAIL), mode="area")
    # Each channel by itself: photos of one tint, as under water, are no copies of each other.
    flat = (thumbnail - thumbnail.mean((-2, -1), keepdim=True)).flatten()
    unit = flat / flat.norm().clamp(min=1e-6)
    gray = square.float().mean(0)
    laplacian = (
        gray[:-2, 1:-1] + gray[2:, 1:-1] + gray[1:-1, :-2] + gray[1:-1, 2:] - 4 * gray[1:-1, 1:-1]
    )
    return square, _Image(
        image_hash(square),
        unit.half(),
        float(flat.std()),
        short_side,
        float(laplacian.var()),
    )


def _short_side(image: Any) -> int:
    """Return the short side of an image that can be decoded, from its header alone."""
    if isinstance(image, (str, Path)):
        image = from_printable(Path(image).expanduser())
    if isinstance(image, (Path, bytes, bytearray)):
        file = image if isinstance(image, Path) else io.BytesIO(image)
        try:
            with suppress_warnings(), Image.open(file) as opened:
                return min(opened.size)
        except Image.DecompressionBombError:  # decoded at a fraction of its size, which is large
            return int((Image.MAX_IMAGE_PIXELS or 1) ** 0.5)
    if isinstance(image, Image.Image):
        return min(image.size)
    return int(sorted(image.shape)[-2])  # (h, w), (h, w, channels) or (channels, h, w)


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)) if tensors else torch.empty(0, 3 * THUMBNAIL**2)
