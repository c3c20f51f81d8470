"""Convolutions for small networks on a GPU.

Two things that a general library does not do for them. The gradient of a weight goes aside where there is a way (aside.py). And a 3×3
convolution of few channels is not worth a large tile: written as nine small matrix products, one for each neighbour of a pixel, it
takes a third of the time.

M: pixels of a batch, rows of channels (channels last)   C: channels
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cecil.nn.aside import Aside, way_aside

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of PyTorch
    if not TYPE_CHECKING:
        triton = None

FEW = 16  # channels
PIXELS = 128  # that a program holds


class Conv(nn.Conv2d):
    """A convolution without a bias."""

    def forward(self, x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and self.weight.requires_grad):
            return super().forward(x)
        aside = way_aside()
        dtype = torch.get_autocast_dtype("cuda") if x.is_cuda and torch.is_autocast_enabled("cuda") else x.dtype
        few = x.is_cuda and dtype == torch.bfloat16 and x.is_contiguous(memory_format=torch.channels_last) and self._is_of_few_channels()
        if not (aside or few):
            return super().forward(x)
        shape = (None, self.stride, self.padding, self.dilation, False, (0, 0), self.groups)
        out: Tensor = _Conv.apply(x.to(dtype), self.weight, shape, few, aside)  # type: ignore[no-untyped-call]
        return out

    def _is_of_few_channels(self) -> bool:
        ones = (1, 1)
        like = self.weight.shape == (FEW, FEW, 3, 3) and (self.stride, self.padding, self.dilation) == (ones, ones, ones)
        return like and triton is not None


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, shape: tuple[Any, ...], few: bool, aside: Aside | None) -> Tensor:
        used = weight.to(x.dtype)
        ctx.save_for_backward(x, used)
        ctx.weight, ctx.shape, ctx.few, ctx.aside = weight, shape, few, aside
        out: Tensor = neighbours(x, used) if few else torch.ops.aten.convolution(x, used, *shape)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, used = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)

        def to(which: int) -> Tensor:
            """The gradient of the input (0) or of the weight (1)."""
            found: Tensor = torch.ops.aten.convolution_backward(gradient, x, used, *ctx.shape, [which == 0, which == 1, False])[which]
            return found

        def to_weight() -> Tensor:
            return to(1).to(ctx.weight.dtype)

        if ctx.aside is not None:
            ctx.aside.give([ctx.weight], lambda: [to_weight()], reads=[gradient, x, used])
        to_input = None
        if ctx.needs_input_grad[0]:
            to_input = neighbours(gradient, used, backward=True) if ctx.few else to(0)
        return to_input, None if ctx.aside is not None else to_weight(), None, None, None


def neighbours(x: Tensor, weight: Tensor, backward: bool = False) -> Tensor:
    """A 3×3 convolution of FEW channels to as many, or the gradient of its input from that of its output."""
    out = torch.empty_like(x)
    pixels, (height, width) = x.numel() // FEW, x.shape[2:]
    weight = weight.contiguous(memory_format=torch.channels_last)
    _neighbours[(triton.cdiv(pixels, PIXELS),)](x, weight, out, pixels, height, width, BACKWARD=backward)
    return out


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _neighbours(x, weight, out, pixels, height, width, BACKWARD: tl.constexpr):  # type: ignore[no-untyped-def]
        """Σ over nine neighbours of (pixels, C) times the (C, C) that belongs to that neighbour."""
        pixel = tl.program_id(0) * PIXELS_ + tl.arange(0, PIXELS_)
        row, column = pixel // width % height, pixel % width
        given, made = tl.arange(0, FEW_)[:, None], tl.arange(0, FEW_)[None, :]
        total = tl.zeros([PIXELS_, FEW_], tl.float32)
        for neighbour in tl.static_range(9):
            down, right = neighbour // 3 - 1, neighbour % 3 - 1
            inside = (pixel < pixels) & (row + down >= 0) & (row + down < height) & (column + right >= 0) & (column + right < width)
            seen = tl.load(x + (pixel + down * width + right)[:, None] * FEW_ + made, mask=inside[:, None], other=0.0)
            # A weight's memory is (to, neighbour, from). Backwards, what came from a neighbour goes to the opposite one.
            if BACKWARD:
                factor = tl.load(weight + (given * 9 + 8 - neighbour) * FEW_ + made)
            else:
                factor = tl.load(weight + (made * 9 + neighbour) * FEW_ + given)
            total = tl.dot(seen, factor, total)
        tl.store(out + pixel[:, None] * FEW_ + made, total.to(out.dtype.element_ty), mask=(pixel < pixels)[:, None])

    PIXELS_, FEW_ = tl.constexpr(PIXELS), tl.constexpr(FEW)
