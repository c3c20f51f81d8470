"""Augment images a batch at a time on their device, with random numbers per image.

A view reads the pixels of a batch straight out of the storage at computed positions, so cropping,
scaling and flipping cost one gather, and no image passes through Python. Sampling the parameters
and applying them are separate functions: the latter are tested against one-image references.

n: images   s: side of the view, in pixels   w: side of the window that a view is made of
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fewmore.data.constants import cache_tensor
from fewmore.data.images import ImageSet
from fewmore.data.operations import color_jitter, grayscale
from fewmore.data.policies import apply_policy
from fewmore.data.transform import ASPECT_RATIO
from fewmore.data.transform import Transform as Transform  # views and transforms go together
from fewmore.errors import DataError

MAX_TRIES = 10  # sampled boxes before the fallback to a central one
MIN_OVERLAP = 0.1  # of the area of a box with another one


def train_view(
    images: ImageSet,
    indices: Tensor,
    transform: Transform,
    generator: Generator,
    boxes: Tensor | None = None,
    jittered: float = 1.0,
) -> Tensor:
    """Return a new random view of each image, normalized: (n, 3, s, s).

    Resized crops are of `boxes`, (4, n), where they are given; else of sampled ones. Where the
    transform has jitter, `jittered` is the share of the views that have it.
    """
    pixels = _random_crop(images, indices, transform, generator, boxes)
    if transform.policy != "none":
        pixels = apply_policy(pixels.round().to(torch.uint8), transform, generator)
    if any(transform.jitter):
        changed = random_jitter(pixels, transform.jitter, generator)
        pixels = _for_some(changed, pixels, jittered, generator)
    if transform.grayscale:
        pixels = _for_some(grayscale(pixels), pixels, transform.grayscale, generator)
    if not transform.cutout:
        return normalize(pixels, transform)
    square = random_square(pixels, transform.cutout, generator)
    if transform.cutout_color == "black":
        return normalize(pixels.masked_fill(square, 0), transform)
    cut = normalize(pixels, transform).masked_fill(square, 0.0)
    return cut.contiguous(memory_format=torch.channels_last)


def _for_some(changed: Tensor, pixels: Tensor, share: float, generator: Generator) -> Tensor:
    """Return a random share of the images changed, and the others as they are."""
    if share == 1:
        return changed
    draw = torch.rand(len(pixels), 1, 1, 1, device=pixels.device, generator=generator)
    return torch.where(draw < share, changed, pixels)


def _random_crop(
    images: ImageSet,
    indices: Tensor,
    transform: Transform,
    generator: Generator,
    boxes: Tensor | None,
) -> Tensor:
    """Return a random part of each image, perhaps mirrored: (n, 3, s, s), 0 … 255."""
    n = len(indices)
    device = images.device
    crop = transform.crop
    flip = torch.rand(n, device=device, generator=generator) < (0.5 if transform.flip else 0.0)
    if crop != "resized":
        low, high = -transform.pad, transform.pad + 1
        shift = torch.randint(low, high, (2, n), device=device, generator=generator)
        moved = pad_crop(images, indices, shift[0], shift[1], flip, transform.size)
        if crop == "pad":
            return moved
    ratio = transform.ratio
    if boxes is None:
        heights, widths = image_shapes(images, indices)
        boxes = sample_crop_boxes(heights, widths, transform.scale, generator, ratio)
    longest = max(ratio[1], 1 / ratio[0])  # side of a box to the short side of its image
    longest_box = images.short_side * longest + 2  # with the rounding to whole pixels
    window = filter_window(images, longest_box, transform.size)
    resized = resized_crop(images, indices, boxes, flip, transform.size, window=window)
    if crop == "resized":
        return resized
    coin = torch.rand(n, 1, 1, 1, device=device, generator=generator) < 0.5
    return torch.where(coin, moved, resized)


def test_view(images: ImageSet, indices: Tensor, transform: Transform) -> Tensor:
    """Return the same view of an image every time, normalized: (n, 3, s, s)."""
    if transform.resize is None:
        storage = _require_size(images, transform.size)
        return normalize(storage[images.indices[indices]], transform)
    no_flip = torch.zeros(len(indices), dtype=torch.bool, device=images.device)
    heights, widths = image_shapes(images, indices)
    scale = transform.resize / torch.minimum(heights, widths)
    top = ((heights * scale - transform.size) / 2).round() / scale
    left = ((widths * scale - transform.size) / 2).round() / scale
    side = transform.size / scale
    boxes = torch.stack([top, left, side, side])
    longest_box = images.short_side * transform.size / transform.resize
    window = filter_window(images, longest_box, transform.size)
    pixels = resized_crop(images, indices, boxes, no_flip, transform.size, False, window)
    return normalize(pixels, transform)


def image_shapes(images: ImageSet, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return height and width of each image, (n,) each."""
    if isinstance(images.storage, Tensor):
        height, width = images.storage.shape[2:]
        return torch.full_like(indices, height), torch.full_like(indices, width)
    positions = images.indices[indices]
    return images.storage.heights[positions], images.storage.widths[positions]


def gather_pixels(images: ImageSet, indices: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Gather the pixels in rows y (n, s) and columns x (n, s) of each image: (n, s, s, 3) uint8."""
    positions = images.indices[indices]
    if isinstance(images.storage, Tensor):
        return images.storage[positions[:, None, None], :, y[:, :, None], x[:, None, :]]
    start, height, width = (
        t[positions][:, None, None, None]
        for t in (images.storage.offsets, images.storage.heights, images.storage.widths)
    )
    channel = torch.arange(3, device=images.device)
    return images.storage.buffer[
        start + channel * height * width + y[:, :, None, None] * width + x[:, None, :, None]
    ]


def pad_crop(
    images: ImageSet, indices: Tensor, down: Tensor, right: Tensor, flip: Tensor, size: int
) -> Tensor:
    """Crop each image with a window that is moved by whole pixels, black beyond the edges.

    Args:
        images: images of `size` × `size` pixels.
        indices: (n,) positions of the images.
        down: (n,) shift of the window, in pixels.
        right: (n,) shift of the window, in pixels.
        flip: (n,) bool: mirror the view horizontally.
        size: side of the window.
    """
    _require_size(images, size)
    line = torch.arange(size, device=images.device)
    y = line + down[:, None]
    x = torch.where(flip[:, None], size - 1 - line, line) + right[:, None]
    inside = ((y >= 0) & (y < size))[:, :, None] & ((x >= 0) & (x < size))[:, None, :]
    pixels = gather_pixels(images, indices, y.clamp(0, size - 1), x.clamp(0, size - 1))
    return (pixels * inside[..., None]).permute(0, 3, 1, 2)


def _require_size(images: ImageSet, size: int) -> Tensor:
    """Return the storage if its images are of that size."""
    if images.size != (size, size) or not isinstance(images.storage, Tensor):
        raise DataError(
            f"this transform takes images of {size}×{size}, "
            f"and these are {images.size or 'of several sizes'}: "
            f"use crop 'resized' and set a resize"
        )
    return images.storage


def sample_crop_boxes(
    heights: Tensor,
    widths: Tensor,
    scale: tuple[float, float],
    generator: Generator,
    ratios: tuple[float, float] = ASPECT_RATIO,
) -> Tensor:
    """Sample a box in each image by area and aspect ratio: (4, n), top, left, height, width.

    The first of ten sampled boxes that fits is taken; where none fits, the largest central box
    of a permitted aspect ratio.
    """
    image_h, image_w = heights.float(), widths.float()
    device = heights.device
    tries = torch.rand(2, MAX_TRIES, len(heights), device=device, generator=generator)
    low, high = (math.log(ratio) for ratio in ratios)
    area = image_h * image_w * (scale[0] + tries[0] * (scale[1] - scale[0]))
    ratio = torch.exp(low + tries[1] * (high - low))
    w = (area * ratio).sqrt().round().clamp(min=1)
    h = (area / ratio).sqrt().round().clamp(min=1)
    fits = (w <= image_w) & (h <= image_h)
    any_fits = fits.any(0)
    first_fit = fits.int().argmax(0, keepdim=True)
    fallback_h = torch.minimum(image_h, (image_w / ratios[0]).round())
    fallback_w = torch.minimum(image_w, (image_h * ratios[1]).round())
    h = torch.where(any_fits, h.gather(0, first_fit)[0], fallback_h)
    w = torch.where(any_fits, w.gather(0, first_fit)[0], fallback_w)
    place = torch.rand(2, len(heights), device=device, generator=generator)
    top = (place[0] * (image_h - h + 1)).floor()
    left = (place[1] * (image_w - w + 1)).floor()
    top = torch.where(any_fits, top, ((image_h - h) / 2).round())
    left = torch.where(any_fits, left, ((image_w - w) / 2).round())
    return torch.stack([top, left, h, w])


def sample_crop_boxes_on(
    others: Tensor,
    heights: Tensor,
    widths: Tensor,
    scale: tuple[float, float],
    generator: Generator,
) -> Tensor:
    """Sample a box in each image that shares a tenth or more of its area with another box.

    The first of ten sampled boxes that does is taken; where none does, any box.

    Args:
        others: (4, n) top, left, height, width.
        heights: (n,) of the images.
        widths: (n,) of the images.
        scale: smallest and largest area of a box, as a fraction of the image.
        generator: of the random numbers.
    """
    count, n = MAX_TRIES + 1, len(heights)
    sampled = sample_crop_boxes(heights.repeat(count), widths.repeat(count), scale, generator)
    boxes = sampled.view(4, count, n)
    corner = torch.maximum(boxes[:2], others[:2, None])
    opposite = torch.minimum(boxes[:2] + boxes[2:], (others[:2] + others[2:])[:, None])
    shared = (opposite - corner).clamp(min=0).prod(0)
    enough = shared >= MIN_OVERLAP * boxes[2] * boxes[3]
    enough[-1] = True
    first = enough.int().argmax(0).expand(4, 1, n)
    return boxes.gather(1, first)[:, 0]


def filter_window(images: ImageSet, longest_box: float, size: int) -> int | None:
    """Return the side of a square that holds all pixels that a view is made of.

    None where nothing is made smaller, so that plain interpolation does. The number is known on the
    host, so that a captured step has fixed shapes.

    Args:
        images: the images that boxes are cropped out of.
        longest_box: side of the largest box, in pixels of the image.
        size: side of the view.
    """
    if min(images.short_side, longest_box) <= size:
        return None
    reach = max(1.0, longest_box / size)
    return math.ceil(longest_box + 2 * reach) + 2


def resized_crop(
    images: ImageSet,
    indices: Tensor,
    boxes: Tensor,
    flip: Tensor,
    size: int,
    crop_first: bool = True,
    window: int | None = None,
) -> Tensor:
    """Resize a box of each image to a square by bilinear interpolation: (n, 3, s, s).

    With a window, boxes that are larger than the view are antialiased as Pillow does it, but for
    images whose short side is no longer than the view's.

    Args:
        images: images of any sizes.
        indices: (n,) positions of the images.
        boxes: (4, n) top, left, height, width.
        flip: (n,) bool: mirror the view horizontally.
        size: side of the square.
        crop_first: crop the box and then resize it. Otherwise the whole image is resized and the
            box cropped out of that, so that pixels just beyond the box contribute.
        window: side of a square that holds all pixels of a view: `filter_window`.
    """
    top, left, height, width = (b[:, None] for b in boxes)
    line = torch.arange(size, device=images.device) + 0.5
    mirrored = torch.where(flip[:, None], size - line, line)
    heights, widths = (side[:, None] for side in image_shapes(images, indices))
    pixels = partial(gather_pixels, images, indices)
    if window is not None:
        is_small = torch.minimum(heights, widths) <= size
        y, v = _filter(top, height, line / size, heights, crop_first, is_small, window)
        x, u = _filter(left, width, mirrored / size, widths, crop_first, is_small, window)
        with torch.autocast(images.device.type, enabled=False):  # colors need more than bfloat16
            rows = v @ pixels(y, x).float().flatten(2)
            by_channel = rows.view(-1, size, window, 3).transpose(2, 3)
            view = by_channel.flatten(1, 2) @ u.transpose(1, 2)
        return view.view(-1, size, 3, size).transpose(1, 2)
    y0, y1, v = _interpolate(top, height, line / size, heights, crop_first)
    x0, x1, u = _interpolate(left, width, mirrored / size, widths, crop_first)
    u = u[:, None, :, None]
    v = v[:, :, None, None]
    upper = pixels(y0, x0) * (1 - u) + pixels(y0, x1) * u
    lower = pixels(y1, x0) * (1 - u) + pixels(y1, x1) * u
    return (upper * (1 - v) + lower * v).permute(0, 3, 1, 2)


def _interpolate(
    start: Tensor, length: Tensor, fraction: Tensor, limit: Tensor, crop_first: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the two pixels around each position of a line, and the weight of the second one.

    Positions stay inside the image.
    """
    position = start + fraction * length - 0.5
    if crop_first:
        position = torch.minimum(torch.maximum(position, start), start + length - 1)
    position = torch.minimum(position, limit - 1.0).clamp(min=0)
    low = position.floor()
    high = torch.minimum(low + 1, limit - 1.0)
    return low.long(), high.long(), position - low


def _filter(
    start: Tensor,
    length: Tensor,
    fraction: Tensor,
    limit: Tensor,
    crop_first: bool,
    is_small: Tensor,
    window: int,
) -> tuple[Tensor, Tensor]:
    """Return the pixels of a line, (n, w), and their weights at each position, (n, s, w).

    Weights fall linearly to zero at the distance of a pixel of the view, or of the image where that
    is longer or the image is small; they sum to 1. Pixels beyond the image, or beyond the box if it
    is cropped first, have none.
    """
    reach = (length / fraction.shape[-1]).clamp(min=1).masked_fill(is_small, 1.0)
    position = start + fraction * length - 0.5
    low = start if crop_first else (start - reach).floor().clamp(min=0)
    high = start + length - 1 if crop_first else limit - 1.0
    pixel = low + torch.arange(window, device=low.device)
    distance = (pixel[:, None] - position[:, :, None]).abs() / reach[:, :, None]
    weight = (1 - distance).clamp(min=0) * (pixel <= high)[:, None]
    pixel = torch.minimum(pixel, limit - 1.0)
    return pixel.long(), weight / weight.sum(2, keepdim=True)


def random_jitter(
    pixels: Tensor, jitter: tuple[float, float, float, float], generator: Generator
) -> Tensor:
    """Change brightness, contrast, saturation and hue of each image by up to the given amounts."""
    draws = torch.rand(4, len(pixels), device=pixels.device, generator=generator)
    brightness, contrast, saturation = (
        max(0.0, 1 - amount) + (min(1.0, amount) + amount) * draw
        for amount, draw in zip(jitter[:3], draws[:3], strict=True)
    )
    return color_jitter(pixels, brightness, contrast, saturation, jitter[3] * (2 * draws[3] - 1))


def random_square(views: Tensor, side: int, generator: Generator) -> Tensor:
    """Sample a square of each view, which may reach beyond the edges: (n, 1, s, s) bool."""
    n, _, height, width = views.shape
    draws = torch.rand(2, n, device=views.device, generator=generator)

    def hidden(draw: Tensor, length: int) -> Tensor:
        first = (draw * length).floor()[:, None] - side // 2
        line = torch.arange(length, device=views.device)
        return (line >= first) & (line < first + side)

    return (hidden(draws[0], height)[:, :, None] & hidden(draws[1], width)[:, None, :])[:, None]


def normalize(pixels: Tensor, transform: Transform) -> Tensor:
    """Scale pixels to about zero mean and unit variance, in channels-last memory format."""
    mean, scale = _normalization(transform.mean, transform.std, pixels.device).unbind()
    return ((pixels - mean) * scale).contiguous(memory_format=torch.channels_last)


@cache_tensor
def _normalization(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> Tensor:
    """Return what to subtract from pixels in 0 … 255 and the factor after it: (2, 3, 1, 1)."""
    values = [*(255 * m for m in mean), *(1 / (255 * s) for s in std)]
    # Fill on the device: a copy from the host would make the step wait for the device.
    filled = [torch.full((), value, device=device) for value in values]
    return torch.stack(filled).view(2, -1, 1, 1)


def rotate90(batch: Tensor, k: Tensor) -> Tensor:
    """Rotate each image of a batch counter-clockwise by its own multiple of 90 degrees, exactly."""
    rotations = torch.stack([torch.rot90(batch, number, (2, 3)) for number in range(4)])
    return rotations[k % 4, torch.arange(len(batch), device=batch.device)]


def rotate(batch: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image of a batch counter-clockwise by its own angle.

    Beyond the edges the image is reflected: black corners would give the angle away.
    """
    angle = degrees.to(batch) * (math.pi / 180)
    cos = angle.cos()
    sin = angle.sin()
    zero = torch.zeros_like(angle)
    matrix = torch.stack([torch.stack([cos, -sin, zero], -1), torch.stack([sin, cos, zero], -1)], 1)
    with torch.autocast(batch.device.type, enabled=False):  # places need more than bfloat16
        grid = F.affine_grid(matrix, list(batch.shape), align_corners=False)
    return F.grid_sample(
        batch, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )
