"""Speed up the max pooling behind the first convolution of a large ResNet on a GPU.

PyTorch keeps the place of each maximum as a number of 64 bits, four times what the maps take, and
its backward pass searches all windows. Here a place is one of nine taps, in one byte, and the
backward pass asks the at most four windows that a pixel lies in. Feature maps are channels last.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fewmore.accel.triton_import import MOST_NUMBERS, tl, triton

CHANNELS = (64, 16)  # in a program: the first that divides a map's
ELEMENTS = 4096  # pixels × channels in a program


class FastMaxPool2d(nn.MaxPool2d):
    """Pool windows of 3×3 at a stride of 2 by the kernels of this file, where they are of use."""

    def forward(self, x: Tensor) -> Tensor:
        window = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        usable = (
            triton is not None
            and x.is_cuda
            and x.requires_grad
            and window == (3, 2, 1, 1, False)
            and not self.return_indices
            and x.is_contiguous(memory_format=torch.channels_last)
            and x.shape[1] % CHANNELS[-1] == 0
            and x.numel() < MOST_NUMBERS
        )
        if not usable:
            out: Tensor = super().forward(x)
            return out
        pooled: Tensor = _MaxPool.apply(x)
        return pooled


class _MaxPool(torch.autograd.Function):
    """Differentiate the pooling."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        shape = (n, (height + 1) // 2, (width + 1) // 2, channels)
        y = x.new_empty(shape).permute(0, 3, 1, 2)
        taps = torch.empty(shape, dtype=torch.uint8, device=x.device)
        ctx.save_for_backward(taps)
        ctx.size = (height, width)
        _launch(_pool, y, (x, y, taps), ctx.size)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (taps,) = ctx.saved_tensors
        height, width = ctx.size
        grad = grad.contiguous(memory_format=torch.channels_last)
        n, channels = grad.shape[:2]
        x_grad = grad.new_empty(n, height, width, channels).permute(0, 3, 1, 2)
        _launch(_pool_backward, x_grad, (grad, taps, x_grad), ctx.size)
        return x_grad


def _launch(
    kernel: Any, written: Tensor, tensors: tuple[Tensor, ...], size: tuple[int, int]
) -> None:
    """Run a kernel over the pixels and channels of the map that it writes."""
    channels = written.shape[1]
    pixels = written.numel() // channels
    at_once = next(count for count in CHANNELS if channels % count == 0)
    pixels_at_once = ELEMENTS // at_once
    grid = (triton.cdiv(pixels, pixels_at_once), channels // at_once)
    kernel[grid](*tensors, pixels, *size, channels, CHANNELS=at_once, PIXELS=pixels_at_once)


if triton is not None:

    @triton.jit
    def _pool(
        x, y, taps, pixels, height, width, channels, CHANNELS: tl.constexpr, PIXELS: tl.constexpr
    ):
        """Take the maximum of each window, and the tap where it lies; the first one of several."""
        out_height, out_width = (height + 1) // 2, (width + 1) // 2
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
        pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        image = pixel // (out_height * out_width)
        row, column = pixel // out_width % out_height * 2 - 1, pixel % out_width * 2 - 1
        best = tl.full([PIXELS, CHANNELS], float("-inf"), tl.float32)
        found = tl.zeros([PIXELS, CHANNELS], tl.int32)
        for tap in tl.static_range(9):
            down, right = row + tap // 3, column + tap % 3
            inside = (pixel < pixels) & (down >= 0) & (down < height)
            inside = (inside & (right >= 0) & (right < width))[:, None]
            place = ((image * height + down) * width + right)[:, None] * channels + channel
            value = tl.load(x + place, mask=inside, other=float("-inf")).to(tl.float32)
            better = (value > best) | (value != value)
            best = tl.where(better, value, best)
            found = tl.where(better, tap, found)
        place = pixel[:, None] * channels + channel
        inside = (pixel < pixels)[:, None]
        tl.store(y + place, best.to(y.dtype.element_ty), mask=inside)
        tl.store(taps + place, found.to(tl.uint8), mask=inside)

    @triton.jit
    def _pool_backward(
        grad,
        taps,
        x_grad,
        pixels,
        height,
        width,
        channels,
        CHANNELS: tl.constexpr,
        PIXELS: tl.constexpr,
    ):
        """Sum the gradients of the windows whose maximum a pixel is."""
        out_height, out_width = (height + 1) // 2, (width + 1) // 2
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
        pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        image = pixel // (height * width)
        row, column = pixel // width % height, pixel % width
        total = tl.zeros([PIXELS, CHANNELS], tl.float32)
        for window in tl.static_range(4):
            # An even row lies in the middle of one window, an odd one in the last row of one and
            # in the first row of the next.
            down, right = row // 2 + window // 2, column // 2 + window % 2
            tap_row, tap_column = row - 2 * down + 1, column - 2 * right + 1
            inside = (pixel < pixels) & (tap_row >= 0) & (tap_column >= 0)
            inside = (inside & (down < out_height) & (right < out_width))[:, None]
            place = ((image * out_height + down) * out_width + right)[:, None] * channels + channel
            tap = tl.load(taps + place, mask=inside, other=9).to(tl.int32)
            mine = inside & (tap == (tap_row * 3 + tap_column)[:, None])
            total += tl.load(grad + place, mask=mine, other=0.0).to(tl.float32)
        place = pixel[:, None] * channels + channel
        tl.store(x_grad + place, total.to(x_grad.dtype.element_ty), mask=(pixel < pixels)[:, None])
