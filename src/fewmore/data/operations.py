"""Change the pixels of a batch, each image by its own operation and strength.

The operations are those of AutoAugment and RandAugment, on bytes and as Pillow computes them, and
those of a color jitter. Each image of a batch has one of KINDS: all that move pixels are one
gather with a matrix for each image, all that change a pixel by its value alone are one look-up in
a table for each image and channel. There are no branches on values, so a step of training that is
captured as a CUDA graph may contain them.

n: images   s: side of an image, in pixels
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

KINDS = (
    "identity",
    # These move pixels.
    "shear-x",  # strength: shift of a row to the left, for each pixel down
    "shear-y",  # the same of columns
    "translate-x",  # share of the side, to the right
    "translate-y",  # share of the side, down
    "rotate",  # degrees, counter-clockwise
    # These change pixels by their values alone.
    "brightness",  # factor: 0 is black, 1 the image itself
    "contrast",  # factor: 0 is the mean gray everywhere
    "posterize",  # number of bits that are kept
    "solarize",  # value from which on pixels are inverted
    "invert",  # no strength
    "auto-contrast",  # no strength
    "equalize",  # no strength
    # These blend images.
    "color",  # factor: 0 is gray
    "sharpness",  # factor: 0 is blurred
)
FILL = 128  # gray, beyond the edges of the image where the nearest pixels are taken
LUMA = (19595, 38470, 7471)  # shares of red, green and blue in gray, in 65536ths


Apply = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


def apply_operations(
    pixels: Tensor, kinds: Tensor, strengths: Tensor, bilinear: bool = False
) -> Tensor:
    """Apply one operation to each image.

    Args:
        pixels: (n, 3, s, s) uint8.
        kinds: (n,) positions in KINDS.
        strengths: (n,) float; what they mean is said at KINDS.
        bilinear: interpolate moved pixels, and fill in black beyond the edges; else take the
            nearest ones, and fill in gray.
    """
    move = _move_bilinear if bilinear else _move
    moved = move(pixels, source_matrix(pixels.shape[-1], kinds, strengths))
    tables = _tables(moved, kinds, strengths)
    changed = tables.gather(2, moved.flatten(2).long()).view_as(moved)
    sharper, colored = (
        (kinds == KINDS.index(kind))[:, None, None, None] for kind in ("sharpness", "color")
    )
    start = torch.where(sharper, _smooth(changed), _gray(changed)[:, None])
    blended = _blend_bytes(start, changed, strengths[:, None, None, None])
    return torch.where(sharper | colored, blended.to(torch.uint8), changed)


_current: ContextVar[Apply] = ContextVar("apply_operations", default=apply_operations)


def current_apply() -> Apply:
    """Return `apply_operations`, or what stands in for it."""
    return _current.get()


@contextmanager
def replaced_by(apply: Apply) -> Iterator[None]:
    """Let a faster function stand in for `apply_operations` meanwhile, in this thread."""
    token = _current.set(apply)
    try:
        yield
    finally:
        _current.reset(token)


def _choose(values: Mapping[str, Tensor], kinds: Tensor, otherwise: Tensor) -> Tensor:
    """Take the values of each image's kind, or else the others.

    The values are those of neighbors in KINDS. They are put into one tensor, because on a GPU a
    few large kernels are faster than many small ones.
    """
    first = KINDS.index(next(iter(values)))
    rows = torch.stack([otherwise, *(value.expand_as(otherwise) for value in values.values())])
    inside = (kinds >= first) & (kinds < first + len(values))
    position = torch.where(inside, kinds - first + 1, 0)
    return rows[position, torch.arange(len(kinds), device=kinds.device)]


# Moving pixels


def source_matrix(side: int, kinds: Tensor, strengths: Tensor) -> Tensor:
    """Return the matrices (n, 2, 3) that take places in the result to places in the image."""
    moving = torch.arange(KINDS.index("shear-x"), KINDS.index("brightness"), device=kinds.device)
    own = torch.where(kinds[:, None] == moving, strengths[:, None], 0.0)
    shear_x, shear_y, right, down, degrees = own.unbind(1)
    angle = degrees * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    middle = side / 2
    right, down = (right * side).trunc(), (down * side).trunc()  # by whole pixels
    x = (cos, shear_x - sin, middle * (1 - cos + sin) - right)
    y = (shear_y + sin, cos, middle * (1 - cos - sin) - down)
    return torch.stack([*x, *y], 1).view(-1, 2, 3)


def _move(pixels: Tensor, matrix: Tensor) -> Tensor:
    """Take each pixel from its place in the image: the nearest one, and gray beyond the edges."""
    x, y = _places(pixels.shape[-1], matrix)
    moved = _take(pixels, x.floor(), y.floor())
    return torch.where(_inside(x, y), moved, FILL)


def _move_bilinear(pixels: Tensor, matrix: Tensor) -> Tensor:
    """Interpolate each pixel at its place in the image; it is black beyond the edges.

    As Pillow does it, neighbors beyond the edges are those at the edges, and results are cut off
    to whole numbers.
    """
    x, y = _places(pixels.shape[-1], matrix)
    left, top = (x - 0.5).floor(), (y - 0.5).floor()
    across, down = (x - 0.5 - left)[:, None], (y - 0.5 - top)[:, None]
    upper, lower = (
        _take(pixels, left, row).float().lerp(_take(pixels, left + 1, row).float(), across)
        for row in (top, top + 1)
    )
    moved = upper.lerp(lower, down).to(torch.uint8)
    return torch.where(_inside(x, y), moved, 0)


def _places(side: int, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places that the pixels of the result come from, x and y: (n, s, s) each."""
    center = torch.arange(side, device=matrix.device) + 0.5
    (a, b, c), (d, e, f) = (
        (value[:, None, None] for value in row.unbind(1)) for row in matrix.unbind(1)
    )
    return a * center + b * center[:, None] + c, d * center + e * center[:, None] + f


def _inside(x: Tensor, y: Tensor) -> Tensor:
    """Return which places lie in the image: (n, 1, s, s)."""
    side = x.shape[-1]
    return ((x >= 0) & (x < side) & (y >= 0) & (y < side))[:, None]


def _take(pixels: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Take the pixels at whole places, those beyond the edges from the edges: (n, 3, s, s)."""
    last = pixels.shape[-1] - 1
    source = (y.clamp(0, last) * (last + 1) + x.clamp(0, last)).long().flatten(1)
    taken = pixels.flatten(2).gather(2, source[:, None].expand(-1, 3, -1))
    return taken.view_as(pixels)


# Changing pixels by their values


def _tables(pixels: Tensor, kinds: Tensor, strengths: Tensor) -> Tensor:
    """Return the new value of each value, image and channel: (n, 3, 256) uint8."""
    value = torch.arange(256, device=pixels.device)
    strength = strengths[:, None, None]
    step = torch.exp2(8 - strength).round().clamp(1, 256)  # values that posterizing makes one
    tables = {
        "brightness": _blend_bytes(torch.zeros_like(value), value, strength),
        "contrast": _blend_bytes(_mean_gray(pixels), value, strength),
        "posterize": value - value % step,
        "solarize": torch.where(value < strength, value, 255 - value),
        "invert": 255 - value,
        "auto-contrast": _auto_contrast(pixels, value),
        "equalize": _equalize(pixels, value),
    }
    as_bytes = {name: table.to(torch.uint8) for name, table in tables.items()}
    same = value.to(torch.uint8).expand(len(pixels), 3, 256)
    return _choose(as_bytes, kinds, same)


def _auto_contrast(pixels: Tensor, value: Tensor) -> Tensor:
    """Stretch the values of each image and channel to 0 … 255."""
    low, high = (limit.long()[..., None] for limit in torch.aminmax(pixels.flatten(2), dim=2))
    stretched = (value - low) * 255 // (high - low).clamp(min=1)
    return torch.where(high > low, stretched.clamp(0, 255), value)


def _equalize(pixels: Tensor, value: Tensor) -> Tensor:
    """Make the values of each image and channel about equally frequent."""
    flat = pixels.flatten(2).long()
    counts = flat.new_zeros(*flat.shape[:2], 256)
    counts.scatter_add_(2, flat, flat.new_ones(()).expand_as(flat))
    of_largest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - of_largest) // 255
    below = counts.cumsum(2) - counts
    equal = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, equal, value)


# Blending


def _blend_bytes(low: Tensor, high: Tensor, factor: Tensor) -> Tensor:
    """Go from `low` towards `high`, and beyond it where the factor is above 1: whole numbers."""
    return blend(low, high, factor).floor()


def blend(low: Tensor, high: Tensor, factor: Tensor) -> Tensor:
    """Go from `low` towards `high`, and beyond it where the factor is above 1."""
    start = low.float()
    return (start + factor * (high - start)).clamp(0, 255)


def _gray(pixels: Tensor) -> Tensor:
    """Return the gray of each pixel as a whole number: (n, s, s) int32."""
    red, green, blue = pixels.int().unbind(1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue + 32768) // 65536


def _mean_gray(pixels: Tensor) -> Tensor:
    """Return the mean gray of each image as a whole number: (n, 1, 1)."""
    gray = _gray(pixels).flatten(1)
    return ((2 * gray.sum(1) + gray.shape[1]) // (2 * gray.shape[1]))[:, None, None]


def _smooth(pixels: Tensor) -> Tensor:
    """Blur each image by the mean of 3 × 3 pixels, the middle one five times; edges stay."""
    values = pixels.float()
    if pixels.shape[-1] < 3:
        return values
    rows = values[..., :-2, :] + values[..., 1:-1, :] + values[..., 2:, :]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * values[..., 1:-1, 1:-1]
    smooth = values.clone()
    smooth[..., 1:-1, 1:-1] = (around / 13 + 0.5).floor()
    return smooth


# Color jitter


def grayscale(pixels: Tensor) -> Tensor:
    """Return the gray of each pixel: (n, 1, s, s) float."""
    red, green, blue = pixels.float().unbind(1)
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue)[:, None] / 65536


def color_jitter(
    pixels: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor
) -> Tensor:
    """Change brightness, contrast, saturation and hue of each image, in this order.

    Args:
        pixels: (n, 3, s, s), 0 … 255.
        brightness: (n,) factors; 1 changes nothing, as of contrast and saturation.
        contrast: (n,) factors.
        saturation: (n,) factors.
        hue: (n,) parts of the color circle; 0 changes nothing.
    """
    factor = [f[:, None, None, None] for f in (brightness, contrast, saturation)]
    black = pixels.new_zeros((), dtype=torch.float32)
    pixels = blend(black, pixels, factor[0])
    pixels = blend(grayscale(pixels).mean((2, 3), keepdim=True), pixels, factor[1])
    pixels = blend(grayscale(pixels), pixels, factor[2])
    return shift_hue(pixels, hue)


def shift_hue(pixels: Tensor, hue: Tensor) -> Tensor:
    """Turn each image's colors by a part of the color circle; value and saturation stay."""
    red, green, blue = pixels.unbind(1)
    high, low = pixels.amax(1), pixels.amin(1)
    chroma = high - low
    color = chroma > 0
    unit = torch.where(color, chroma, 1.0)
    sixths = torch.where(
        high == red,
        (green - blue) / unit,
        torch.where(high == green, (blue - red) / unit + 2, (red - green) / unit + 4),
    )
    turned = sixths + 6 * hue[:, None, None]
    channels = [
        high - chroma * torch.minimum(k, 4 - k).clamp(0, 1)
        for k in ((turned + start) % 6 for start in (5, 3, 1))
    ]
    return torch.where(color[:, None], torch.stack(channels, 1), pixels)
