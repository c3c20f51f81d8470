"""Batch norm, shortcut and ReLU as one operation.

On a GPU a small network's time is its number of kernels, not its arithmetic. Written as separate layers, a batch norm with the
ReLU behind it is about ten kernels a training step; here it is four: sums, apply, and the same two backwards. An image's
pixels are rows of channels (channels last), and partial sums are added in a fixed order, so results repeat. What may differ from layer
to layer is said when a kernel runs, not when it is compiled: a compilation takes longer than many steps.

M: pixels of a batch   C: channels   G: groups of pixels whose sums are kept apart
"""

from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmore.accel.compiler import tl, triton
from fewmore.accel.side_streams import SideStreams, current_side_streams

ROWS, CHANNELS = 256, 16  # pixels and channels that a program holds at a time
GROUPS = 128


class BatchNorm(nn.BatchNorm2d):
    """Batch norm, then a shortcut added, then a ReLU, each if asked for.

    It has no counter of batches: nothing reads it, and it costs a kernel a layer and step. `ghost` takes the statistics
    of a batch in training over parts of that many images, as a batch shared out over several GPUs does.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.num_batches_tracked = None
        self.ghost = 0  # 0: over the whole batch

    def forward(self, x: Tensor, shortcut: Tensor | None = None, relu: bool = False) -> Tensor:
        if self.training and 0 < self.ghost < len(x):
            shortcuts = repeat(None) if shortcut is None else torch.split(shortcut, self.ghost)
            return torch.cat(
                [
                    self._normed(*part, relu)
                    for part in zip(torch.split(x, self.ghost), shortcuts, strict=False)
                ]
            )
        return self._normed(x, shortcut, relu)

    def _normed(self, x: Tensor, shortcut: Tensor | None, relu: bool) -> Tensor:
        if (
            triton is not None
            and x.is_cuda
            and x.is_contiguous(memory_format=torch.channels_last)
            and x.shape[1] % CHANNELS == 0
        ):
            mean, variance = self.running_mean, self.running_var
            if shortcut is not None:
                shortcut = shortcut.to(x.dtype).contiguous(memory_format=torch.channels_last)
            out: Tensor = _Fused.apply(  # type: ignore[no-untyped-call]
                x,
                shortcut,
                self.weight,
                self.bias,
                mean,
                variance,
                self.training,
                relu,
                self.eps,
                self.momentum,
                current_side_streams(),
            )
            return out
        x = F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum or 0.0,
            self.eps,
        )
        if shortcut is not None:
            x = x + shortcut
        return F.relu(x, inplace=True) if relu else x


def set_ghost(module: nn.Module, images: int) -> None:
    """How many images the batch norms of a network take their statistics over; 0 for the whole batch."""
    for part in module.modules():
        if isinstance(part, BatchNorm):
            part.ghost = images


class _Fused(torch.autograd.Function):
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
        aside: SideStreams | None,
    ) -> Tensor:
        channels = x.shape[1]
        pixels = x.numel() // channels
        groups = min(GROUPS, triton.cdiv(pixels, ROWS))
        blocks = channels // CHANNELS
        sums = torch.empty(2, GROUPS, channels, device=x.device) if training else mean
        if training:
            _sums[(groups, blocks)](
                x, x, x, mean, mean, sums, pixels, channels, groups, 0, BACKWARD=False
            )
        # What the backward pass needs: the mean and the inverse deviation that were used.
        used = torch.empty(2, channels, device=x.device)
        y = torch.empty_like(x)
        _apply[(triton.cdiv(pixels, ROWS), blocks)](
            x, x if shortcut is None else shortcut, y, weight, bias, mean, variance, sums, used, pixels, channels, groups, eps, momentum,
            int(shortcut is not None), int(relu), TRAINING=training,
        )  # fmt: skip
        ctx.save_for_backward(x, y, weight, used)
        ctx.shape, ctx.training, ctx.relu, ctx.shortcut = (
            (pixels, channels, groups, blocks),
            training,
            relu,
            shortcut is not None,
        )
        ctx.parameters, ctx.aside = (bias, weight), aside
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, used = ctx.saved_tensors
        pixels, channels, groups, blocks = ctx.shape
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        programs = triton.cdiv(pixels, ROWS)
        sums = torch.empty(
            (2, GROUPS, channels) if ctx.training else (2, channels, programs), device=x.device
        )
        if ctx.training:
            _sums[(groups, blocks)](
                gradient,
                y,
                x,
                used[0],
                used[1],
                sums,
                pixels,
                channels,
                groups,
                int(ctx.relu),
                BACKWARD=True,
            )
        to_x = torch.empty_like(x)
        # Without a ReLU the shortcut's gradient is the gradient itself.
        to_shortcut = torch.empty_like(x) if ctx.shortcut and ctx.relu else gradient
        to_weight, to_bias = torch.empty_like(weight), torch.empty_like(weight)
        _apply_backward[(programs, blocks)](
            gradient, y, x, to_x, to_shortcut, weight, used, sums, to_weight, to_bias, pixels, channels, groups,
            int(ctx.shortcut and ctx.relu), int(ctx.relu), TRAINING=ctx.training,
        )  # fmt: skip
        others = (to_x, to_shortcut if ctx.shortcut else None)
        if ctx.training:
            return *others, to_weight, to_bias, *[None] * 7
        # Statistics that stand still: nothing waited for the sums, and they were taken on the way.
        if ctx.aside is None:
            to_bias, to_weight = sums.sum(2)
            return *others, to_weight, to_bias, *[None] * 7
        if any(ctx.needs_input_grad[2:4]):
            ctx.aside.give(ctx.parameters, lambda: sums.sum(2).unbind(), reads=[sums])
        return *others, *[None] * 9


if triton is not None:

    @triton.jit(do_not_specialize=["groups", "relu"])  # type: ignore[untyped-decorator]
    def _sums(a, y, x, mean, inverse, sums, pixels, channels, groups, relu, BACKWARD: tl.constexpr):  # type: ignore[no-untyped-def]
        """Of each group of pixels: Σ a and Σ a², or backwards Σ g and Σ g·x̂ of the gradient g that passes the ReLU."""
        group = tl.program_id(0)
        channel = tl.program_id(1) * CHANNELS_ + tl.arange(0, CHANNELS_)
        first = tl.zeros([CHANNELS_], tl.float32)
        second = tl.zeros([CHANNELS_], tl.float32)
        for start in range(group * ROWS_, pixels, groups * ROWS_):
            pixel = start + tl.arange(0, ROWS_)
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
        tl.store(sums + (GROUPS_ + group) * channels + channel, second)

    @triton.jit
    def _total(sums, groups, channels, channel):  # type: ignore[no-untyped-def]
        """Both sums over all groups, always in the same order."""
        group = tl.arange(0, GROUPS_)
        place = group[:, None] * channels + channel[None, :]
        there = (group < groups)[:, None]
        first = tl.sum(tl.load(sums + place, mask=there, other=0.0), 0)
        second = tl.sum(tl.load(sums + GROUPS_ * channels + place, mask=there, other=0.0), 0)
        return first, second

    @triton.jit(do_not_specialize=["groups", "has_shortcut", "relu"])  # type: ignore[untyped-decorator]
    def _apply(  # type: ignore[no-untyped-def]
        x, shortcut, y, weight, bias, mean, variance, sums, used, pixels, channels, groups, eps, momentum,
        has_shortcut, relu, TRAINING: tl.constexpr,
    ):  # fmt: skip
        channel = tl.program_id(1) * CHANNELS_ + tl.arange(0, CHANNELS_)
        if TRAINING:
            first, second = _total(sums, groups, channels, channel)
            centre = first / pixels
            spread = tl.maximum(second / pixels - centre * centre, 0.0)
        else:
            centre = tl.load(mean + channel)
            spread = tl.load(variance + channel)
        inverse = 1.0 / tl.sqrt(spread + eps)
        if tl.program_id(0) == 0:
            tl.store(used + channel, centre)
            tl.store(used + channels + channel, inverse)
            if TRAINING:
                tl.store(
                    mean + channel, (1 - momentum) * tl.load(mean + channel) + momentum * centre
                )
                unbiased = spread * pixels / (pixels - 1)
                tl.store(
                    variance + channel,
                    (1 - momentum) * tl.load(variance + channel) + momentum * unbiased,
                )
        scale = inverse * tl.load(weight + channel)
        shift = tl.load(bias + channel) - centre * scale
        pixel = tl.program_id(0) * ROWS_ + tl.arange(0, ROWS_)
        place = pixel[:, None] * channels + channel[None, :]
        inside = (pixel < pixels)[:, None]
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * scale + shift
        value += tl.load(
            shortcut + place, mask=(pixel < pixels * has_shortcut)[:, None], other=0.0
        ).to(tl.float32)
        value = tl.where(relu != 0, tl.maximum(value, 0.0), value)
        tl.store(y + place, value.to(y.dtype.element_ty), mask=inside)

    @triton.jit(do_not_specialize=["groups", "has_shortcut", "relu"])  # type: ignore[untyped-decorator]
    def _apply_backward(  # type: ignore[no-untyped-def]
        gradient, y, x, to_x, to_shortcut, weight, used, sums, to_weight, to_bias, pixels, channels, groups,
        has_shortcut, relu, TRAINING: tl.constexpr,
    ):  # fmt: skip
        channel = tl.program_id(1) * CHANNELS_ + tl.arange(0, CHANNELS_)
        inverse = tl.load(used + channels + channel)
        pixel = tl.program_id(0) * ROWS_ + tl.arange(0, ROWS_)
        place = pixel[:, None] * channels + channel[None, :]
        inside = (pixel < pixels)[:, None]
        value = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        value = tl.where(
            tl.load(y + place, mask=(pixel < pixels * relu)[:, None], other=1.0) > 0, value, 0.0
        )
        tl.store(
            to_shortcut + place,
            value.to(to_shortcut.dtype.element_ty),
            mask=(pixel < pixels * has_shortcut)[:, None],
        )
        normed = (
            tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - tl.load(used + channel)
        ) * inverse
        if TRAINING:
            first, second = _total(sums, groups, channels, channel)
            if tl.program_id(0) == 0:
                tl.store(to_bias + channel, first)
                tl.store(to_weight + channel, second)
            value -= first / pixels + normed * (second / pixels)
        else:
            part = sums + channel * tl.num_programs(0) + tl.program_id(0)
            tl.store(part, tl.sum(value, 0))
            tl.store(part + channels * tl.num_programs(0), tl.sum(value * normed, 0))
        value *= inverse * tl.load(weight + channel)
        tl.store(to_x + place, value.to(to_x.dtype.element_ty), mask=inside)

    ROWS_, CHANNELS_, GROUPS_ = tl.constexpr(ROWS), tl.constexpr(CHANNELS), tl.constexpr(GROUPS)
