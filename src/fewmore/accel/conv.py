"""Speed up convolutions of small networks on a GPU.

Two things that cuDNN does not do for them. The gradient of a weight is computed on a side stream
where there is one (side_streams.py). And a 3×3 convolution to few channels is not worth a large
tile: as small matrix products it takes a third of the time. From as many channels there is one
product for each of the nine taps; from an image's three colors, one for all taps together.

Feature maps are channels last: a row of channels for each pixel. A weight's memory is (out, tap,
in).
"""

from typing import Any

import torch
from torch import Tensor, nn

from fewmore.accel.side_streams import SideStreams, current_side_streams
from fewmore.accel.triton_import import MOST_NUMBERS, tl, triton

FEW = (16, 32)  # channels
COLORS = 3
PIXELS = 128  # in a program
ELEMENTS = 2048  # pixels × channels in a program that computes a weight's gradient
# Groups of pixels, whose parts of a weight's gradient are added in a fixed order: so results
# repeat.
GROUPS = 128


class FastConv2d(nn.Conv2d):
    """Compute a convolution without a bias by the kernels of this file, where they are of use."""

    def forward(self, x: Tensor) -> Tensor:
        trains = torch.is_grad_enabled() and self.weight.requires_grad
        zeros = self.padding_mode == "zeros" and isinstance(self.padding, tuple)
        if self.bias is not None or not (trains and zeros):
            return super().forward(x)
        side_streams = current_side_streams()
        autocast = x.is_cuda and torch.is_autocast_enabled("cuda")
        dtype = torch.get_autocast_dtype("cuda") if autocast else x.dtype
        small = len(x) * self.out_channels * x.shape[2:].numel() < MOST_NUMBERS
        few = x.is_cuda and dtype == torch.bfloat16 and small and self._has_few_channels()
        if side_streams is None and not few:
            return super().forward(x)
        x = x.to(dtype, memory_format=torch.channels_last) if few else x.to(dtype)
        shape = (None, self.stride, self.padding, self.dilation, False, (0, 0), self.groups)
        out: Tensor = _Conv.apply(x, self.weight, shape, few, side_streams)
        return out

    def _has_few_channels(self) -> bool:
        """Say whether the Triton kernels compute this convolution."""
        ones = (1, 1)
        channels = (
            self.out_channels in FEW and self.in_channels in (self.out_channels, COLORS)
        ) and self.groups == 1
        window = (self.kernel_size, self.stride, self.padding, self.dilation)
        return channels and window == ((3, 3), ones, ones, ones) and triton is not None


class _Conv(torch.autograd.Function):
    """Differentiate a convolution, with the weight's gradient on a side stream."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: nn.Parameter,
        shape: tuple[Any, ...],
        few: bool,
        side_streams: SideStreams | None,
    ) -> Tensor:
        cast = weight.to(x.dtype) if side_streams is None else side_streams.cast(weight, x.dtype)
        ctx.save_for_backward(x, cast)
        ctx.weight = weight
        ctx.shape = shape
        ctx.few = few
        ctx.side_streams = side_streams
        out: Tensor = few_channels(x, cast) if few else torch.ops.aten.convolution(x, cast, *shape)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, cast = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)

        def library_grad(which: int) -> Tensor:
            """Compute the gradient of the input (0) or of the weight (1) by cuDNN."""
            mask = [which == 0, which == 1, False]
            grads = torch.ops.aten.convolution_backward(grad, x, cast, *ctx.shape, mask)
            found: Tensor = grads[which]
            return found

        def weight_grad() -> Tensor:
            own = few_channels_weight_grad(grad, x) if ctx.few else library_grad(1)
            return own.to(ctx.weight.dtype)

        if ctx.side_streams is not None:
            ctx.side_streams.submit([ctx.weight], lambda: [weight_grad()], reads=[grad, x, cast])
        input_grad = None
        if ctx.needs_input_grad[0]:
            own_kernel = ctx.few and x.shape[1] != COLORS
            input_grad = few_channels(grad, cast, backward=True) if own_kernel else library_grad(0)
        return input_grad, None if ctx.side_streams is not None else weight_grad(), None, None, None


def few_channels(x: Tensor, weight: Tensor, backward: bool = False) -> Tensor:
    """Compute a 3×3 convolution to few channels, or, backward, its input's gradient from `x`."""
    n, inputs, height, width = x.shape
    outputs = len(weight)
    pixels = x.numel() // inputs
    out = x.new_empty(n, height, width, outputs).permute(0, 3, 1, 2)
    weight = weight.contiguous(memory_format=torch.channels_last)
    grid = (triton.cdiv(pixels, PIXELS),)
    sizes = (pixels, height, width)
    constants = {"C": outputs, "PIXELS": PIXELS, "num_warps": outputs // 8}
    if inputs == COLORS:
        _conv_from_colors[grid](x, weight, out, *sizes, **constants)
    else:
        _conv[grid](x, weight, out, *sizes, BACKWARD=backward, **constants)
    return out


def few_channels_weight_grad(grad: Tensor, x: Tensor) -> Tensor:
    """Compute the gradient of such a convolution's weight, in float32 and channels last."""
    _, inputs, height, width = x.shape
    outputs = grad.shape[1]
    pixels = x.numel() // inputs
    at_once = ELEMENTS // outputs
    groups = min(GROUPS, triton.cdiv(pixels, at_once))
    parts = torch.empty(groups, outputs, 3, 3, inputs, device=x.device)
    sizes = (pixels, height, width, groups)
    constants = {"C": outputs, "PIXELS": at_once, "num_warps": 2}
    if inputs == COLORS:
        _weight_grad_from_colors[(groups,)](grad, x, parts, *sizes, **constants)
    else:
        _weight_grad[(groups, 3)](grad, x, parts, *sizes, **constants)
    return parts.sum(0).permute(0, 3, 1, 2)


if triton is not None:

    @triton.jit
    def _conv(
        x,
        weight,
        out,
        pixels,
        height,
        width,
        C: tl.constexpr,
        PIXELS: tl.constexpr,
        BACKWARD: tl.constexpr,
    ):
        """Sum (pixels, C) × (C, C) over the nine taps."""
        pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        row, column = pixel // width % height, pixel % width
        c_in, c_out = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
        total = tl.zeros([PIXELS, C], tl.float32)
        for tap in tl.static_range(9):
            down, right = tap // 3 - 1, tap % 3 - 1
            inside = (pixel < pixels) & (row + down >= 0) & (row + down < height)
            inside = inside & (column + right >= 0) & (column + right < width)
            place = x + (pixel + down * width + right)[:, None] * C + c_out
            value = tl.load(place, mask=inside[:, None], other=0.0)
            # Backward, what came from a tap goes to the opposite one.
            if BACKWARD:
                factor = tl.load(weight + (c_in * 9 + 8 - tap) * C + c_out)
            else:
                factor = tl.load(weight + (c_out * 9 + tap) * C + c_in)
            total = tl.dot(value, factor, total)
        inside = (pixel < pixels)[:, None]
        tl.store(out + pixel[:, None] * C + c_out, total.to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _weight_grad(
        grad, x, parts, pixels, height, width, groups, C: tl.constexpr, PIXELS: tl.constexpr
    ):
        """Sum (C, pixels) × (pixels, C) over a group of pixels, for a row of three taps."""
        group, down = tl.program_id(0), tl.program_id(1) - 1
        c_out, c_in = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
        left = tl.zeros([C, C], tl.float32)
        middle = tl.zeros([C, C], tl.float32)
        right = tl.zeros([C, C], tl.float32)
        for start in range(group * PIXELS, pixels, groups * PIXELS):
            pixel = start + tl.arange(0, PIXELS)
            row, column = pixel // width % height + down, pixel % width
            inside = (pixel < pixels) & (row >= 0) & (row < height)
            grad_place = grad + pixel[None, :] * C + c_out
            own = tl.load(grad_place, mask=(pixel < pixels)[None, :], other=0.0)
            place = x + (pixel[:, None] + down * width) * C + c_in
            has_left = (inside & (column > 0))[:, None]
            has_right = (inside & (column + 1 < width))[:, None]
            left = tl.dot(own, tl.load(place - C, mask=has_left, other=0.0), left)
            middle = tl.dot(own, tl.load(place, mask=inside[:, None], other=0.0), middle)
            right = tl.dot(own, tl.load(place + C, mask=has_right, other=0.0), right)
        part = parts + ((group * C + c_out) * 9 + (down + 1) * 3) * C + c_in
        tl.store(part, left)
        tl.store(part + C, middle)
        tl.store(part + 2 * C, right)

    @triton.jit
    def _load_color_taps(x, pixel, pixels, height, width):
        """Load the colors at all taps of each pixel, in the order of a weight: (pixels, 32)."""
        place = tl.arange(0, 32)[None, :]
        tap, color = place // COLORS_, place % COLORS_
        down, right = tap // 3 - 1, tap % 3 - 1
        row, column = (pixel // width % height)[:, None] + down, (pixel % width)[:, None] + right
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        inside = inside & (pixel < pixels)[:, None] & (tap < 9)
        address = x + (pixel[:, None] + down * width + right) * COLORS_ + color
        return tl.load(address, mask=inside, other=0.0)

    @triton.jit
    def _conv_from_colors(
        x, weight, out, pixels, height, width, C: tl.constexpr, PIXELS: tl.constexpr
    ):
        """Multiply (pixels, 27) by (27, C)."""
        pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        place, c_out = tl.arange(0, 32)[:, None], tl.arange(0, C)[None, :]
        address = weight + c_out * (9 * COLORS_) + place
        factor = tl.load(address, mask=place < 9 * COLORS_, other=0.0)
        total = tl.dot(_load_color_taps(x, pixel, pixels, height, width), factor)
        inside = (pixel < pixels)[:, None]
        tl.store(out + pixel[:, None] * C + c_out, total.to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _weight_grad_from_colors(
        grad, x, parts, pixels, height, width, groups, C: tl.constexpr, PIXELS: tl.constexpr
    ):
        """Sum (C, pixels) × (pixels, 27) over a group of pixels."""
        group = tl.program_id(0)
        c_out, place = tl.arange(0, C)[:, None], tl.arange(0, 32)[None, :]
        total = tl.zeros([C, 32], tl.float32)
        for start in range(group * PIXELS, pixels, groups * PIXELS):
            pixel = start + tl.arange(0, PIXELS)
            grad_place = grad + pixel[None, :] * C + c_out
            own = tl.load(grad_place, mask=(pixel < pixels)[None, :], other=0.0)
            taps = _load_color_taps(x, pixel, pixels, height, width)
            total = tl.dot(own, taps, total)
        address = parts + (group * C + c_out) * (9 * COLORS_) + place
        tl.store(address, total, mask=place < 9 * COLORS_)

    COLORS_ = tl.constexpr(COLORS)
