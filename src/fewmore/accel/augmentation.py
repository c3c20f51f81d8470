"""Apply the operations of AutoAugment and RandAugment by two kernels on a GPU.

In plain PyTorch (data/operations.py) every image goes through every operation, and keeps the result
of its own: some 200 small kernels for one operation of a batch, which take longer than the forward
pass of a ResNet20. Here a program reads which operation its image has, and does that one alone.
"""

from typing import Any

import torch
from torch import Tensor

from fewmore.accel.triton_import import MOST_NUMBERS, tl, triton
from fewmore.data import operations
from fewmore.data.operations import FILL, KINDS, LUMA, source_matrix

PIXELS = 1024  # that a program works on at a time


def apply_operations(
    pixels: Tensor, kinds: Tensor, strengths: Tensor, bilinear: bool = False
) -> Tensor:
    """Apply one operation to each image, as the function of this name in data/operations.py."""
    if triton is None or not pixels.is_cuda or pixels.numel() >= MOST_NUMBERS:
        return operations.apply_operations(pixels, kinds, strengths, bilinear)
    return launch(pixels, kinds, strengths, bilinear)


def launch(pixels: Tensor, kinds: Tensor, strengths: Tensor, bilinear: bool) -> Tensor:
    """Run the kernels: what each value becomes in each image, and then the images."""
    n, _, side, _ = pixels.shape
    images = pixels.contiguous()
    changed = torch.empty_like(images)
    tables = images.new_empty(n, 3, 256)
    given = (images, kinds.contiguous(), strengths.contiguous())
    # Results are cut off to whole numbers, which fused multiplications and additions would change.
    options: dict[str, Any] = {"PIXELS": PIXELS, "enable_fp_fusion": False}
    _tables[(n,)](*given, tables, side * side, **options)
    matrices = source_matrix(side, kinds, strengths)
    grid = (n, triton.cdiv(side * side, PIXELS))
    _apply[grid](*given, matrices, tables, changed, side, BILINEAR=bilinear, **options)
    return changed


if triton is not None:
    BRIGHTNESS, CONTRAST, POSTERIZE, SOLARIZE, INVERT, AUTO_CONTRAST, EQUALIZE, COLOR, SHARPNESS = (
        tl.constexpr(KINDS.index(kind))
        for kind in (
            *("brightness", "contrast", "posterize", "solarize", "invert", "auto-contrast"),
            *("equalize", "color", "sharpness"),
        )
    )
    RED, GREEN, BLUE = (tl.constexpr(share) for share in LUMA)
    GRAY = tl.constexpr(FILL)

    @triton.jit
    def _gray(image, place, plane, inside):
        """Return the gray of pixels as whole numbers."""
        red = tl.load(image + place, mask=inside, other=0).to(tl.int32)
        green = tl.load(image + plane + place, mask=inside, other=0).to(tl.int32)
        blue = tl.load(image + 2 * plane + place, mask=inside, other=0).to(tl.int32)
        return tl.where(inside, (RED * red + GREEN * green + BLUE * blue + 32768) // 65536, 0)

    @triton.jit
    def _blend(low, high, factor):
        """Go from `low` towards `high`, and beyond it where the factor is above 1."""
        start = low.to(tl.float32)
        blended = start + factor * (high.to(tl.float32) - start)
        return tl.minimum(tl.maximum(blended, 0.0), 255.0).to(tl.int32)

    @triton.jit
    def _tables(images, kinds, strengths, tables, plane, PIXELS: tl.constexpr):
        """Write the new value of each value, for the channels of an image."""
        image = tl.program_id(0)
        kind = tl.load(kinds + image)
        strength = tl.load(strengths + image)
        first = images + image * 3 * plane
        value = tl.arange(0, 256)
        zero = tl.zeros([256], tl.int32)
        mean = 0
        if kind == CONTRAST:
            total = tl.zeros([PIXELS], tl.int32)
            for start in range(0, plane, PIXELS):
                place = start + tl.arange(0, PIXELS)
                total += _gray(first, place, plane, place < plane)
            mean = (2 * tl.sum(total) + plane) // (2 * plane)
        for channel in tl.static_range(3):
            table = value
            if kind == BRIGHTNESS:
                table = _blend(zero, value, strength)
            elif kind == CONTRAST:
                table = _blend(zero + mean, value, strength)
            elif kind == POSTERIZE:
                step = tl.floor(tl.exp2(8 - strength) + 0.5)
                step = tl.minimum(tl.maximum(step, 1.0), 256.0).to(tl.int32)
                table = value - value % step
            elif kind == SOLARIZE:
                table = tl.where(value < strength, value, 255 - value)
            elif kind == INVERT:
                table = 255 - value
            elif (kind == AUTO_CONTRAST) | (kind == EQUALIZE):
                count = tl.zeros([256], tl.int32)
                for start in range(0, plane, PIXELS):
                    place = start + tl.arange(0, PIXELS)
                    inside = place < plane
                    found = tl.load(first + channel * plane + place, mask=inside, other=0)
                    count += tl.histogram(found.to(tl.int32), 256)
                    # Places beyond the image were counted as zeros.
                    count -= tl.where(value == 0, tl.sum((~inside).to(tl.int32)), 0)
                high = tl.max(tl.where(count > 0, value, 0))
                if kind == AUTO_CONTRAST:
                    low = tl.min(tl.where(count > 0, value, 255))
                    stretched = (value - low) * 255 // tl.maximum(high - low, 1)
                    stretched = tl.minimum(tl.maximum(stretched, 0), 255)
                    table = tl.where(high > low, stretched, value)
                else:
                    of_highest = tl.sum(tl.where(value == high, count, 0))
                    step = (plane - of_highest) // 255
                    below = tl.cumsum(count, 0) - count
                    equal = (below + step // 2) // tl.maximum(step, 1)
                    table = tl.where(step > 0, tl.minimum(equal, 255), value)
            tl.store(tables + (image * 3 + channel) * 256 + value, table.to(tl.uint8))

    @triton.jit
    def _lerp(start, end, weight):
        """Interpolate as torch.lerp does, from the nearer end."""
        change = end - start
        return tl.where(weight < 0.5, start + weight * change, end - change * (1 - weight))

    @triton.jit
    def _pixel(plane_of, x, y, side):
        """Load pixels at whole places, those beyond the edges from the edges."""
        column = tl.minimum(tl.maximum(x, 0.0), side - 1.0).to(tl.int32)
        row = tl.minimum(tl.maximum(y, 0.0), side - 1.0).to(tl.int32)
        return tl.load(plane_of + row * side + column)

    @triton.jit
    def _apply(
        images,
        kinds,
        strengths,
        matrices,
        tables,
        changed,
        side,
        BILINEAR: tl.constexpr,
        PIXELS: tl.constexpr,
    ):
        """Write a part of an image: blended, or moved with values out of the tables."""
        image = tl.program_id(0)
        plane = side * side
        kind = tl.load(kinds + image)
        strength = tl.load(strengths + image)
        first = images + image * 3 * plane
        written = changed + image * 3 * plane
        place = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
        inside = place < plane
        row, column = place // side, place % side
        if kind == COLOR:
            gray = _gray(first, place, plane, inside)
            for channel in tl.static_range(3):
                value = tl.load(first + channel * plane + place, mask=inside, other=0).to(tl.int32)
                blended = _blend(gray, value, strength)
                tl.store(written + channel * plane + place, blended.to(tl.uint8), mask=inside)
        elif kind == SHARPNESS:
            middle = (row > 0) & (row < side - 1) & (column > 0) & (column < side - 1) & inside
            for channel in tl.static_range(3):
                own = first + channel * plane + place
                value = tl.load(own, mask=inside, other=0).to(tl.int32)
                around = 4 * value
                for tap in tl.static_range(9):
                    beside = (tap // 3 - 1) * side + tap % 3 - 1
                    around += tl.load(own + beside, mask=middle, other=0).to(tl.int32)
                # The mean of 13, rounded to the nearest whole number.
                smooth = tl.where(middle, (2 * around + 13) // 26, value)
                blended = _blend(smooth, value, strength)
                tl.store(written + channel * plane + place, blended.to(tl.uint8), mask=inside)
        else:
            center_x, center_y = column + 0.5, row + 0.5
            matrix = matrices + image * 6
            x = tl.load(matrix) * center_x + tl.load(matrix + 1) * center_y + tl.load(matrix + 2)
            y = tl.load(matrix + 3) * center_x + tl.load(matrix + 4) * center_y
            y += tl.load(matrix + 5)
            seen = (x >= 0) & (x < side) & (y >= 0) & (y < side)
            for channel in tl.static_range(3):
                plane_of = first + channel * plane
                if BILINEAR:
                    left, top = tl.floor(x - 0.5), tl.floor(y - 0.5)
                    across, down = x - 0.5 - left, y - 0.5 - top
                    upper_left = _pixel(plane_of, left, top, side).to(tl.float32)
                    upper_right = _pixel(plane_of, left + 1, top, side).to(tl.float32)
                    lower_left = _pixel(plane_of, left, top + 1, side).to(tl.float32)
                    lower_right = _pixel(plane_of, left + 1, top + 1, side).to(tl.float32)
                    upper = _lerp(upper_left, upper_right, across)
                    lower = _lerp(lower_left, lower_right, across)
                    moved = tl.where(seen, _lerp(upper, lower, down).to(tl.int32), 0)
                else:
                    moved = _pixel(plane_of, tl.floor(x), tl.floor(y), side).to(tl.int32)
                    moved = tl.where(seen, moved, GRAY)
                new = tl.load(tables + (image * 3 + channel) * 256 + moved)
                tl.store(written + channel * plane + place, new, mask=inside)
