"""Views of images, a batch at a time on its own device, with one draw per image.

A view reads the batch's pixels straight out of the storage at computed positions, so cropping, scaling and flipping cost
one gather, and no image passes through Python. What is drawn and what is done with it are separate functions: the
latter are tested against one-image references.

n: images   s: side of the view, in pixels
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, DataError

RATIO = (3 / 4, 4 / 3)  # width to height of a random resized crop
TRIES = 10  # draws of a box before the fallback to a central one


@dataclass(frozen=True)
class Transform:
    """How a stored image becomes what the network sees, in training and in testing."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    crop: Literal["pad", "resized"] = (
        "pad"  # pad-crop keeps the scale; a resized crop draws scale and aspect
    )
    pad: int = 4
    scale: tuple[float, float] = (0.08, 1.0)  # share of the image's area
    flip: bool = True
    resize: int | None = (
        None  # testing: the short side becomes this, then the centre is taken; None: the image as it is
    )

    def __post_init__(self) -> None:
        wrong = []
        if self.size < 1:
            wrong.append(f"size must be at least 1, not {self.size}")
        if self.crop not in ("pad", "resized"):
            wrong.append(f"crop must be 'pad' or 'resized', not '{self.crop}'")
        if self.pad < 0:
            wrong.append(f"pad must not be negative, and is {self.pad}")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            wrong.append(
                f"scale must be two shares of the area, 0 < low <= high <= 1, not {self.scale}"
            )
        if self.resize is not None and self.resize < self.size:
            wrong.append(f"resize ({self.resize}) must not be smaller than size ({self.size})")
        if min(self.std) <= 0:
            wrong.append(f"std must be positive, not {self.std}")
        if wrong:
            raise ConfigError("transform: " + "; ".join(wrong))


def train_view(
    images: ImageSet, indices: Tensor, transform: Transform, generator: Generator
) -> Tensor:
    """A fresh random view of each image, normalised: (n, 3, s, s)."""
    n, device = len(indices), images.device
    flip = torch.rand(n, device=device, generator=generator) < (0.5 if transform.flip else 0.0)
    if transform.crop == "pad":
        shift = torch.randint(
            -transform.pad, transform.pad + 1, (2, n), device=device, generator=generator
        )
        pixels = shifted(images, indices, shift[0], shift[1], flip, transform.size)
    else:
        heights, widths = shapes(images, indices)
        box = draw_boxes(heights, widths, transform.scale, generator)
        pixels = resampled(images, indices, box, flip, transform.size)
    return normalise(pixels, transform)


def test_view(images: ImageSet, indices: Tensor, transform: Transform) -> Tensor:
    """The same view of an image every time, normalised: (n, 3, s, s)."""
    if transform.resize is None:
        return normalise(_of_size(images, transform.size)[images.rows[indices]], transform)
    no_flip = torch.zeros(len(indices), dtype=torch.bool, device=images.device)
    heights, widths = shapes(images, indices)
    scale = transform.resize / torch.minimum(heights, widths)
    top = ((heights * scale - transform.size) / 2).round() / scale
    left = ((widths * scale - transform.size) / 2).round() / scale
    side = transform.size / scale
    box = torch.stack([top, left, side, side])
    return normalise(resampled(images, indices, box, no_flip, transform.size, cut=False), transform)


def shapes(images: ImageSet, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Height and width of each image, (n,) each."""
    if isinstance(images.storage, Tensor):
        height, width = images.storage.shape[2:]
        return torch.full_like(indices, height), torch.full_like(indices, width)
    rows = images.rows[indices]
    return images.storage.heights[rows], images.storage.widths[rows]


def pixels_at(images: ImageSet, indices: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """The pixels in rows y (n, s) and columns x (n, s) of each image: (n, s, s, 3) uint8."""
    rows = images.rows[indices]
    if isinstance(images.storage, Tensor):
        return images.storage[rows[:, None, None], :, y[:, :, None], x[:, None, :]]
    start, height, width = (
        t[rows][:, None, None, None]
        for t in (images.storage.offsets, images.storage.heights, images.storage.widths)
    )
    channel = torch.arange(3, device=images.device)
    return images.storage.buffer[
        start + channel * height * width + y[:, :, None, None] * width + x[:, None, :, None]
    ]


def shifted(
    images: ImageSet, indices: Tensor, down: Tensor, right: Tensor, flip: Tensor, size: int
) -> Tensor:
    """Each image seen through a window moved by whole pixels, black beyond its edges, then mirrored where flip says so."""
    _of_size(images, size)
    line = torch.arange(size, device=images.device)
    y = line + down[:, None]
    x = torch.where(flip[:, None], size - 1 - line, line) + right[:, None]
    inside = ((y >= 0) & (y < size))[:, :, None] & ((x >= 0) & (x < size))[:, None, :]
    pixels = pixels_at(images, indices, y.clamp(0, size - 1), x.clamp(0, size - 1))
    return (pixels * inside[..., None]).permute(0, 3, 1, 2)


def _of_size(images: ImageSet, size: int) -> Tensor:
    """The storage, if its images are of that size."""
    if images.size != (size, size) or not isinstance(images.storage, Tensor):
        raise DataError(
            f"this transform takes images of {size}×{size}, and these are {images.size or 'of several sizes'}: "
            f"use crop 'resized' and set a resize"
        )
    return images.storage


def draw_boxes(
    heights: Tensor, widths: Tensor, scale: tuple[float, float], generator: Generator
) -> Tensor:
    """A random box in each image, of a share of its area and an aspect drawn at random: (4, n), top left height width.

    Up to ten draws, of which the first that fits is taken; where none fits, the largest central box of a permitted aspect.
    """
    height, width = heights[None].float(), widths[None].float()
    draws = torch.rand(2, TRIES, len(heights), device=heights.device, generator=generator)
    area = height * width * (scale[0] + draws[0] * (scale[1] - scale[0]))
    ratio = torch.exp(math.log(RATIO[0]) + draws[1] * (math.log(RATIO[1]) - math.log(RATIO[0])))
    w = (area * ratio).sqrt().round().clamp(min=1)
    h = (area / ratio).sqrt().round().clamp(min=1)
    fits = (w <= width) & (h <= height)
    first = fits.int().argmax(0, keepdim=True)
    whole_h = torch.minimum(height, (width / RATIO[0]).round())[0]
    whole_w = torch.minimum(width, (height * RATIO[1]).round())[0]
    any_fits = fits.any(0)
    h = torch.where(any_fits, h.gather(0, first)[0], whole_h)
    w = torch.where(any_fits, w.gather(0, first)[0], whole_w)
    place = torch.rand(2, len(heights), device=heights.device, generator=generator)
    top = torch.where(
        any_fits, (place[0] * (height[0] - h + 1)).floor(), ((height[0] - h) / 2).round()
    )
    left = torch.where(
        any_fits, (place[1] * (width[0] - w + 1)).floor(), ((width[0] - w) / 2).round()
    )
    return torch.stack([top, left, h, w])


def resampled(
    images: ImageSet, indices: Tensor, box: Tensor, flip: Tensor, size: int, cut: bool = True
) -> Tensor:
    """The box of each image, scaled to a square of `size` by bilinear interpolation, then mirrored where flip says so.

    The box is cut out and then scaled; without `cut`, the whole image is scaled and the box cut out of that, so that
    pixels just beyond it are seen. There is no smoothing where the box is larger than the view: data sets are stored
    near the size they are used at.
    """
    top, left, height, width = (b[:, None] for b in box)
    line = torch.arange(size, device=images.device) + 0.5
    heights, widths = shapes(images, indices)
    y0, y1, v = _between(top, height, line / size, heights[:, None], cut)
    x0, x1, u = _between(
        left, width, torch.where(flip[:, None], size - line, line) / size, widths[:, None], cut
    )
    u, v = u[:, None, :, None], v[:, :, None, None]
    upper = pixels_at(images, indices, y0, x0) * (1 - u) + pixels_at(images, indices, y0, x1) * u
    lower = pixels_at(images, indices, y1, x0) * (1 - u) + pixels_at(images, indices, y1, x1) * u
    return (upper * (1 - v) + lower * v).permute(0, 3, 1, 2)


def _between(
    start: Tensor, length: Tensor, share: Tensor, limit: Tensor, cut: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The two pixels around each position of a line, and the second one's weight; positions stay inside the image."""
    position = start + share * length - 0.5
    if cut:
        position = torch.minimum(torch.maximum(position, start), start + length - 1)
    position = torch.minimum(position, limit - 1.0).clamp(min=0)
    low = position.floor()
    high = torch.minimum(low + 1, limit - 1.0)
    return low.long(), high.long(), position - low


def normalise(pixels: Tensor, transform: Transform) -> Tensor:
    """Bytes to numbers of about zero mean and unit variance, laid out channels last."""
    mean, scale = _constants(transform.mean, transform.std, pixels.device)
    return ((pixels - mean) * scale).contiguous(memory_format=torch.channels_last)


@cache
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """What is taken away from bytes and what the rest is multiplied by, on the device: (3, 1, 1) each."""
    # Filled rather than copied from the host: a copy would make the step wait for the device.
    values = [255 * m for m in mean], [1 / (255 * s) for s in std]
    first, second = (
        torch.stack([torch.full((), value, device=device) for value in row])[:, None, None]
        for row in values
    )
    return first, second


def rotate90(batch: Tensor, turns: Tensor) -> Tensor:
    """Each image of a batch turned counter-clockwise by its own number of quarter turns, exactly."""
    every = torch.stack([torch.rot90(batch, k, (2, 3)) for k in range(4)])
    return every[turns % 4, torch.arange(len(batch), device=batch.device)]


def rotate(batch: Tensor, degrees: Tensor) -> Tensor:
    """Each image of a batch turned counter-clockwise by its own angle.

    Beyond the edges the image is continued by its mirror image: black corners would give the angle away.
    """
    angle = degrees.to(batch) * (math.pi / 180)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    matrix = torch.stack([torch.stack([cos, -sin, zero], -1), torch.stack([sin, cos, zero], -1)], 1)
    grid = F.affine_grid(matrix, list(batch.shape), align_corners=False)
    return F.grid_sample(
        batch, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )
