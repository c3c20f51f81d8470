"""Convolutions for small networks on a GPU.

Two things that a general library does not do for them. The gradient of a weight goes aside where there is a way (aside.py). And a 3×3
convolution to few channels is not worth a large tile: written as small matrix products, it takes a third of the time. From as many
channels there is a product for each neighbour of a pixel; from an image's three colours, one for all neighbours together.

M: pixels of a batch, rows of channels (channels last)   C: channels
"""

from typing import Any

import torch
from torch import Tensor, nn

from fewmore.accel.compiler import tl, triton
from fewmore.accel.side_streams import SideStreams, current_side_streams

FEW, COLOURS = (16, 32), 3  # channels
PIXELS = 128  # that a program holds
NUMBERS = 2048  # of pixels and channels that a program holds for a weight's gradient
GROUPS = 128  # of pixels, whose parts of a weight's gradient are kept apart and added in a fixed order: so results repeat


class Conv(nn.Conv2d):
    """A convolution without a bias."""

    def forward(self, x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and self.weight.requires_grad):
            return super().forward(x)
        aside = current_side_streams()
        dtype = (
            torch.get_autocast_dtype("cuda")
            if x.is_cuda and torch.is_autocast_enabled("cuda")
            else x.dtype
        )
        few = x.is_cuda and dtype == torch.bfloat16 and self._is_of_few_channels()
        if not (aside or few):
            return super().forward(x)
        x = x.to(dtype, memory_format=torch.channels_last) if few else x.to(dtype)
        shape = (None, self.stride, self.padding, self.dilation, False, (0, 0), self.groups)
        out: Tensor = _Conv.apply(x, self.weight, shape, few, aside)  # type: ignore[no-untyped-call]
        return out

    def _is_of_few_channels(self) -> bool:
        few = (
            self.out_channels in FEW
            and self.in_channels in (self.out_channels, COLOURS)
            and self.groups == 1
        )
        ones = (1, 1)
        near = self.kernel_size == (3, 3) and (self.stride, self.padding, self.dilation) == (
            ones,
            ones,
            ones,
        )
        return few and near and triton is not None


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: nn.Parameter,
        shape: tuple[Any, ...],
        few: bool,
        aside: SideStreams | None,
    ) -> Tensor:
        used = weight.to(x.dtype) if aside is None else aside.cast(weight, x.dtype)
        ctx.save_for_backward(x, used)
        ctx.weight, ctx.shape, ctx.few, ctx.aside = weight, shape, few, aside
        out: Tensor = few_channels(x, used) if few else torch.ops.aten.convolution(x, used, *shape)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, used = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)

        def to(which: int) -> Tensor:
            """The gradient of the input (0) or of the weight (1)."""
            found: Tensor = torch.ops.aten.convolution_backward(
                gradient, x, used, *ctx.shape, [which == 0, which == 1, False]
            )[which]
            return found

        def to_weight() -> Tensor:
            return (few_channels_to_weight(gradient, x) if ctx.few else to(1)).to(ctx.weight.dtype)

        if ctx.aside is not None:
            ctx.aside.give([ctx.weight], lambda: [to_weight()], reads=[gradient, x, used])
        to_input = None
        if ctx.needs_input_grad[0]:
            to_input = (
                few_channels(gradient, used, backward=True)
                if ctx.few and x.shape[1] != COLOURS
                else to(0)
            )
        return to_input, None if ctx.aside is not None else to_weight(), None, None, None


def few_channels(x: Tensor, weight: Tensor, backward: bool = False) -> Tensor:
    """A 3×3 convolution to few channels; or, from as many, the gradient of its input from that of its output."""
    (n, given, height, width), made, pixels = x.shape, len(weight), x.numel() // x.shape[1]
    out = x.new_empty(n, height, width, made).permute(0, 3, 1, 2)
    weight = weight.contiguous(memory_format=torch.channels_last)
    grid = (triton.cdiv(pixels, PIXELS),)
    if given == COLOURS:
        _colours[grid](
            x, weight, out, pixels, height, width, C=made, PIXELS=PIXELS, num_warps=made // 8
        )
    else:
        _neighbours[grid](
            x,
            weight,
            out,
            pixels,
            height,
            width,
            C=made,
            PIXELS=PIXELS,
            BACKWARD=backward,
            num_warps=made // 8,
        )
    return out


def few_channels_to_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of such a convolution's weight, from that of its output and from its input: in float32, channels last."""
    (_, given, height, width), made, pixels = x.shape, gradient.shape[1], x.numel() // x.shape[1]
    at_once = NUMBERS // made
    groups = min(GROUPS, triton.cdiv(pixels, at_once))
    parts = torch.empty(groups, made, 3, 3, given, device=x.device)
    if given == COLOURS:
        _colours_weight[(groups,)](
            gradient, x, parts, pixels, height, width, groups, C=made, PIXELS=at_once, num_warps=2
        )
    else:
        _neighbours_weight[(groups, 3)](
            gradient, x, parts, pixels, height, width, groups, C=made, PIXELS=at_once, num_warps=2
        )
    return parts.sum(0).permute(0, 3, 1, 2)


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _neighbours(
        x,
        weight,
        out,
        pixels,
        height,
        width,
        C: tl.constexpr,
        PIXELS: tl.constexpr,
        BACKWARD: tl.constexpr,
    ):  # type: ignore[no-untyped-def]
        """Σ over nine neighbours of (pixels, C) times the (C, C) that belongs to that neighbour."""
        pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        row, column = pixel // width % height, pixel % width
        given, made = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
        total = tl.zeros([PIXELS, C], tl.float32)
        for neighbour in tl.static_range(9):
            down, right = neighbour // 3 - 1, neighbour % 3 - 1
            inside = (
                (pixel < pixels)
                & (row + down >= 0)
                & (row + down < height)
                & (column + right >= 0)
                & (column + right < width)
            )
            seen = tl.load(
                x + (pixel + down * width + right)[:, None] * C + made,
                mask=inside[:, None],
                other=0.0,
            )
            # A weight's memory is (to, neighbour, from). Backwards, what came from a neighbour goes to the opposite one.
            if BACKWARD:
                factor = tl.load(weight + (given * 9 + 8 - neighbour) * C + made)
            else:
                factor = tl.load(weight + (made * 9 + neighbour) * C + given)
            total = tl.dot(seen, factor, total)
        tl.store(
            out + pixel[:, None] * C + made,
            total.to(out.dtype.element_ty),
            mask=(pixel < pixels)[:, None],
        )

    @triton.jit  # type: ignore[untyped-decorator]
    def _neighbours_weight(
        gradient, x, parts, pixels, height, width, groups, C: tl.constexpr, PIXELS: tl.constexpr
    ):  # type: ignore[no-untyped-def]
        """Of a group of pixels and a row of three neighbours: Σ (C, pixels) of the gradient times (pixels, C) of each neighbour."""
        group, down = tl.program_id(0), tl.program_id(1) - 1
        made, given = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
        left = tl.zeros([C, C], tl.float32)
        middle = tl.zeros([C, C], tl.float32)
        right = tl.zeros([C, C], tl.float32)
        for start in range(group * PIXELS, pixels, groups * PIXELS):
            pixel = start + tl.arange(0, PIXELS)
            row, column = pixel // width % height + down, pixel % width
            inside = (pixel < pixels) & (row >= 0) & (row < height)
            came = tl.load(
                gradient + pixel[None, :] * C + made, mask=(pixel < pixels)[None, :], other=0.0
            )
            place = x + (pixel[:, None] + down * width) * C + given
            left = tl.dot(
                came, tl.load(place - C, mask=(inside & (column > 0))[:, None], other=0.0), left
            )
            middle = tl.dot(came, tl.load(place, mask=inside[:, None], other=0.0), middle)
            right = tl.dot(
                came,
                tl.load(place + C, mask=(inside & (column + 1 < width))[:, None], other=0.0),
                right,
            )
        part = parts + ((group * C + made) * 9 + (down + 1) * 3) * C + given
        tl.store(part, left)
        tl.store(part + C, middle)
        tl.store(part + 2 * C, right)

    @triton.jit
    def _seen_colours(x, pixel, pixels, height, width):  # type: ignore[no-untyped-def]
        """The colours of all neighbours of each pixel, in the order of a weight's memory, and zeros behind them: (pixels, 32)."""
        place = tl.arange(0, 32)[None, :]
        neighbour, colour = place // COLOURS_, place % COLOURS_
        down, right = neighbour // 3 - 1, neighbour % 3 - 1
        row, column = (pixel // width % height)[:, None] + down, (pixel % width)[:, None] + right
        inside = (
            (row >= 0)
            & (row < height)
            & (column >= 0)
            & (column < width)
            & (pixel < pixels)[:, None]
            & (neighbour < 9)
        )
        return tl.load(
            x + (pixel[:, None] + down * width + right) * COLOURS_ + colour, mask=inside, other=0.0
        )

    @triton.jit  # type: ignore[untyped-decorator]
    def _colours(x, weight, out, pixels, height, width, C: tl.constexpr, PIXELS: tl.constexpr):  # type: ignore[no-untyped-def]
        """(pixels, 27) of a pixel's neighbours and their colours times (27, C)."""
        pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        place, made = tl.arange(0, 32)[:, None], tl.arange(0, C)[None, :]
        factor = tl.load(
            weight + made * (9 * COLOURS_) + place, mask=place < 9 * COLOURS_, other=0.0
        )
        total = tl.dot(_seen_colours(x, pixel, pixels, height, width), factor)
        tl.store(
            out + pixel[:, None] * C + made,
            total.to(out.dtype.element_ty),
            mask=(pixel < pixels)[:, None],
        )

    @triton.jit  # type: ignore[untyped-decorator]
    def _colours_weight(
        gradient, x, parts, pixels, height, width, groups, C: tl.constexpr, PIXELS: tl.constexpr
    ):  # type: ignore[no-untyped-def]
        """Of a group of pixels: Σ (C, pixels) of the gradient times (pixels, 27)."""
        group, made, place = tl.program_id(0), tl.arange(0, C)[:, None], tl.arange(0, 32)[None, :]
        total = tl.zeros([C, 32], tl.float32)
        for start in range(group * PIXELS, pixels, groups * PIXELS):
            pixel = start + tl.arange(0, PIXELS)
            came = tl.load(
                gradient + pixel[None, :] * C + made, mask=(pixel < pixels)[None, :], other=0.0
            )
            total = tl.dot(came, _seen_colours(x, pixel, pixels, height, width), total)
        tl.store(
            parts + (group * C + made) * (9 * COLOURS_) + place, total, mask=place < 9 * COLOURS_
        )

    COLOURS_ = tl.constexpr(COLOURS)
