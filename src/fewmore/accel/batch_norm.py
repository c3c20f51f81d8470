"""Fuse batch norm, shortcut and ReLU into one operation on a GPU.

A small network's time on a GPU is its number of kernels, not its arithmetic. As separate layers, a
batch norm with the ReLU behind it is about ten kernels a training step; here it is four: sums and
application, forward and backward. Feature maps are channels last, and partial sums are added in a
fixed order, so results repeat. What may differ from layer to layer is an argument of a kernel, not
a constant of its compilation, which takes longer than many steps. Maps of large images or batches
are bound by memory instead: there a program takes whole lines of it, and more of them add up sums.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewmore.accel.side_streams import SideStreams, current_side_streams
from fewmore.accel.triton_import import MOST_NUMBERS, tl, triton
from fewmore.nn.layers import BatchNormAct2d


@dataclass(frozen=True)
class Tile:
    """Hold what one program takes of a map."""

    pixels: int
    channels: int
    groups: int  # of pixels, whose sums are kept apart
    warps: int
    # Whether the sums of all groups are added up before they are used, or by each program anew.
    add_first: bool


SMALL = Tile(pixels=256, channels=16, groups=128, warps=4, add_first=False)
# The first whose channels divide those of a map.
LARGE = (
    Tile(pixels=128, channels=64, groups=256, warps=4, add_first=True),
    Tile(pixels=256, channels=32, groups=512, warps=4, add_first=True),
    Tile(pixels=256, channels=16, groups=512, warps=4, add_first=True),
)
LARGE_MAP = 2**22  # numbers, from which a map is large


def tile_of(x: Tensor) -> Tile:
    """Return what a program takes of a map."""
    if x.numel() < LARGE_MAP:
        return SMALL
    return next(tile for tile in LARGE if x.shape[1] % tile.channels == 0)


class FusedBatchNormAct2d(BatchNormAct2d):
    """Compute `BatchNormAct2d` by the kernels of this file, where they are of use."""

    def normalize(self, x: Tensor, shortcut: Tensor | None) -> Tensor:
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        fits = channels_last and x.shape[1] % SMALL.channels == 0 and x.numel() < MOST_NUMBERS
        several = x.numel() > x.shape[1]  # of one number a channel there is no variance: an error
        if triton is None or not (x.is_cuda and fits and several):
            return super().normalize(x, shortcut)
        if shortcut is not None:
            shortcut = shortcut.to(x.dtype).contiguous(memory_format=torch.channels_last)
        out: Tensor = _Fused.apply(
            x,
            shortcut,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            self.training,
            self.relu,
            self.eps,
            self.momentum,
            current_side_streams(),
        )
        return out


class _Fused(torch.autograd.Function):
    """Differentiate the fused operation."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shortcut: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        training: bool,
        relu: bool,
        eps: float,
        momentum: float,
        side_streams: SideStreams | None,
    ) -> Tensor:
        tile = tile_of(x)
        channels = x.shape[1]
        pixels = x.numel() // channels
        sums, groups = mean, 0
        if training:
            sums, groups = _summed(tile, x, x, x, mean, mean, relu=False, backward=False)
        # What the backward pass needs: the mean and the inverse deviation that were used.
        used = torch.empty(2, channels, device=x.device)
        y = torch.empty_like(x)
        _apply[(triton.cdiv(pixels, tile.pixels), channels // tile.channels)](
            *(x, x if shortcut is None else shortcut, y, weight, bias, mean, variance, sums, used),
            *(pixels, channels, groups, eps, momentum, int(shortcut is not None), int(relu)),
            **_constants(tile, 1 if tile.add_first else tile.groups),
            TRAINING=training,
        )
        ctx.save_for_backward(x, y, weight, used)
        ctx.tile = tile
        ctx.training = training
        ctx.relu = relu
        ctx.shortcut = shortcut is not None
        ctx.parameters = (bias, weight)
        ctx.side_streams = side_streams
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, used = ctx.saved_tensors
        tile = ctx.tile
        channels = x.shape[1]
        pixels = x.numel() // channels
        programs = triton.cdiv(pixels, tile.pixels)
        grad = grad.contiguous(memory_format=torch.channels_last)
        if ctx.training:
            sums, groups = _summed(tile, grad, y, x, used[0], used[1], relu=ctx.relu, backward=True)
        else:
            sums, groups = torch.empty(2, channels, programs, device=x.device), 0
        x_grad = torch.empty_like(x)
        # Without a ReLU the shortcut's grad is the grad itself.
        shortcut_grad = torch.empty_like(x) if ctx.shortcut and ctx.relu else grad
        weight_grad, bias_grad = torch.empty_like(weight), torch.empty_like(weight)
        tensors = (grad, y, x, x_grad, shortcut_grad, weight, used, sums, weight_grad, bias_grad)
        has_shortcut = int(ctx.shortcut and ctx.relu)
        _apply_backward[(programs, channels // tile.channels)](
            *(*tensors, pixels, channels, groups, has_shortcut, int(ctx.relu)),
            **_constants(tile, 1 if tile.add_first else tile.groups),
            TRAINING=ctx.training,
        )
        others = (x_grad, shortcut_grad if ctx.shortcut else None)
        if ctx.training:
            return *others, weight_grad, bias_grad, *[None] * 7
        # Statistics that stand still: nothing waited for the sums, and they were taken on the way.
        if ctx.side_streams is None:
            bias_grad, weight_grad = sums.sum(2)
            return *others, weight_grad, bias_grad, *[None] * 7
        if any(ctx.needs_input_grad[2:4]):
            ctx.side_streams.submit(ctx.parameters, lambda: sums.sum(2).unbind(), reads=[sums])
        return *others, *[None] * 9


def _summed(
    tile: Tile,
    a: Tensor,
    y: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    relu: bool,
    backward: bool,
) -> tuple[Tensor, int]:
    """Return both sums of each group of pixels, (2, groups, channels), and how many groups."""
    channels = x.shape[1]
    pixels = x.numel() // channels
    groups = min(tile.groups, triton.cdiv(pixels, tile.pixels))
    sums = torch.empty(2, tile.groups, channels, device=x.device)
    _sums[(groups, channels // tile.channels)](
        *(a, y, x, mean, inverse, sums, pixels, channels, groups, int(relu)),
        **_constants(tile, tile.groups),
        BACKWARD=backward,
    )
    return (sums[:, :groups].sum(1, keepdim=True), 1) if tile.add_first else (sums, groups)


def _constants(tile: Tile, groups: int) -> dict[str, int]:
    """Return the constants that the kernels of a map are compiled with."""
    return {
        "PIXELS": tile.pixels,
        "CHANNELS": tile.channels,
        "GROUPS": groups,
        "num_warps": tile.warps,
    }


if triton is not None:

    @triton.jit(do_not_specialize=["groups", "relu"])
    def _sums(
        a,
        y,
        x,
        mean,
        inverse,
        sums,
        pixels,
        channels,
        groups,
        relu,
        PIXELS: tl.constexpr,
        CHANNELS: tl.constexpr,
        GROUPS: tl.constexpr,
        BACKWARD: tl.constexpr,
    ):
        """Sum a and a² over each group of pixels; backward, g and g·x̂ of the ReLU's gradient g."""
        group = tl.program_id(0)
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        first = tl.zeros([CHANNELS], tl.float32)
        second = tl.zeros([CHANNELS], tl.float32)
        for start in range(group * PIXELS, pixels, groups * PIXELS):
            pixel = start + tl.arange(0, PIXELS)
            place = pixel[:, None] * channels + channel[None, :]
            inside = (pixel < pixels)[:, None]
            value = tl.load(a + place, mask=inside, other=0.0).to(tl.float32)
            if BACKWARD:
                value = tl.where(
                    tl.load(y + place, mask=(pixel < pixels * relu)[:, None], other=1.0) > 0,
                    value,
                    0.0,
                )
                other = (
                    tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
                    - tl.load(mean + channel)
                ) * tl.load(inverse + channel)
            else:
                other = value
            first += tl.sum(value, 0)
            second += tl.sum(value * other, 0)
        tl.store(sums + group * channels + channel, first)
        tl.store(sums + (GROUPS + group) * channels + channel, second)

    @triton.jit
    def _total(sums, groups, channels, channel, GROUPS: tl.constexpr):
        """Add up both sums over all groups, always in the same order."""
        group = tl.arange(0, GROUPS)
        place = group[:, None] * channels + channel[None, :]
        there = (group < groups)[:, None]
        first = tl.sum(tl.load(sums + place, mask=there, other=0.0), 0)
        second = tl.sum(tl.load(sums + GROUPS * channels + place, mask=there, other=0.0), 0)
        return first, second

    @triton.jit(do_not_specialize=["groups", "has_shortcut", "relu"])
    def _apply(
        x,
        shortcut,
        y,
        weight,
        bias,
        mean,
        variance,
        sums,
        used,
        pixels,
        channels,
        groups,
        eps,
        momentum,
        has_shortcut,
        relu,
        PIXELS: tl.constexpr,
        CHANNELS: tl.constexpr,
        GROUPS: tl.constexpr,
        TRAINING: tl.constexpr,
    ):
        """Normalize, add the shortcut and apply the ReLU; in training, update the statistics."""
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        if TRAINING:
            first, second = _total(sums, groups, channels, channel, GROUPS)
            mean_ = first / pixels
            variance_ = tl.maximum(second / pixels - mean_ * mean_, 0.0)
        else:
            mean_ = tl.load(mean + channel)
            variance_ = tl.load(variance + channel)
        inverse = 1.0 / tl.sqrt(variance_ + eps)
        if tl.program_id(0) == 0:
            tl.store(used + channel, mean_)
            tl.store(used + channels + channel, inverse)
            if TRAINING:
                tl.store(
                    mean + channel, (1 - momentum) * tl.load(mean + channel) + momentum * mean_
                )
                unbiased = variance_ * pixels / (pixels - 1)
                tl.store(
                    variance + channel,
                    (1 - momentum) * tl.load(variance + channel) + momentum * unbiased,
                )
        scale = inverse * tl.load(weight + channel)
        shift = tl.load(bias + channel) - mean_ * scale
        pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        place = pixel[:, None] * channels + channel[None, :]
        inside = (pixel < pixels)[:, None]
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * scale + shift
        value += tl.load(
            shortcut + place, mask=(pixel < pixels * has_shortcut)[:, None], other=0.0
        ).to(tl.float32)
        value = tl.where(relu != 0, tl.maximum(value, 0.0), value)
        tl.store(y + place, value.to(y.dtype.element_ty), mask=inside)

    @triton.jit(do_not_specialize=["groups", "has_shortcut", "relu"])
    def _apply_backward(
        grad,
        y,
        x,
        x_grad,
        shortcut_grad,
        weight,
        used,
        sums,
        weight_grad,
        bias_grad,
        pixels,
        channels,
        groups,
        has_shortcut,
        relu,
        PIXELS: tl.constexpr,
        CHANNELS: tl.constexpr,
        GROUPS: tl.constexpr,
        TRAINING: tl.constexpr,
    ):
        """Compute the gradients of the input, the shortcut, the weight and the bias."""
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        inverse = tl.load(used + channels + channel)
        pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
        place = pixel[:, None] * channels + channel[None, :]
        inside = (pixel < pixels)[:, None]
        value = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        value = tl.where(
            tl.load(y + place, mask=(pixel < pixels * relu)[:, None], other=1.0) > 0, value, 0.0
        )
        tl.store(
            shortcut_grad + place,
            value.to(shortcut_grad.dtype.element_ty),
            mask=(pixel < pixels * has_shortcut)[:, None],
        )
        normed = (
            tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - tl.load(used + channel)
        ) * inverse
        if TRAINING:
            first, second = _total(sums, groups, channels, channel, GROUPS)
            if tl.program_id(0) == 0:
                tl.store(bias_grad + channel, first)
                tl.store(weight_grad + channel, second)
            value -= first / pixels + normed * (second / pixels)
        else:
            part = sums + channel * tl.num_programs(0) + tl.program_id(0)
            tl.store(part, tl.sum(value, 0))
            tl.store(part + channels * tl.num_programs(0), tl.sum(value * normed, 0))
        value *= inverse * tl.load(weight + channel)
        tl.store(x_grad + place, value.to(x_grad.dtype.element_ty), mask=inside)
