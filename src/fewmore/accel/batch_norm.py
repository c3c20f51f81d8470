"""Fuse batch norm, shortcut and ReLU into one operation on a GPU.

A small network's time on a GPU is its number of kernels, not its arithmetic. As separate layers, a
batch norm with the ReLU behind it is about ten kernels a training step; here it is four: sums and
application, forward and backward. Feature maps are channels last, and partial sums are added in a
fixed order, so results repeat. What may differ from layer to layer is an argument of a kernel, not
a constant of its compilation, which takes longer than many steps.
"""

from typing import Any

import torch
from torch import Tensor

from fewmore.accel.side_streams import SideStreams, current_side_streams
from fewmore.accel.triton_import import tl, triton
from fewmore.nn.layers import BatchNormAct2d

PIXELS = 256  # in a program
CHANNELS = 16  # in a program
GROUPS = 128  # of pixels, whose sums are kept apart


class FusedBatchNormAct2d(BatchNormAct2d):
    """Compute `BatchNormAct2d` by the kernels of this file, where they are of use."""

    def normalize(self, x: Tensor, shortcut: Tensor | None) -> Tensor:
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        if triton is None or not (x.is_cuda and channels_last and x.shape[1] % CHANNELS == 0):
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
        channels = x.shape[1]
        pixels = x.numel() // channels
        groups = min(GROUPS, triton.cdiv(pixels, PIXELS))
        blocks = channels // CHANNELS
        sums = torch.empty(2, GROUPS, channels, device=x.device) if training else mean
        if training:
            _sums[(groups, blocks)](
                x, x, x, mean, mean, sums, pixels, channels, groups, 0, BACKWARD=False
            )
        # What the backward pass needs: the mean and the inverse deviation that were used.
        used = torch.empty(2, channels, device=x.device)
        y = torch.empty_like(x)
        _apply[(triton.cdiv(pixels, PIXELS), blocks)](
            *(x, x if shortcut is None else shortcut, y, weight, bias, mean, variance, sums, used),
            *(pixels, channels, groups, eps, momentum, int(shortcut is not None), int(relu)),
            TRAINING=training,
        )
        ctx.save_for_backward(x, y, weight, used)
        ctx.shape = (pixels, channels, groups, blocks)
        ctx.training = training
        ctx.relu = relu
        ctx.shortcut = shortcut is not None
        ctx.parameters = (bias, weight)
        ctx.side_streams = side_streams
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, used = ctx.saved_tensors
        pixels, channels, groups, blocks = ctx.shape
        grad = grad.contiguous(memory_format=torch.channels_last)
        programs = triton.cdiv(pixels, PIXELS)
        sums = torch.empty(
            (2, GROUPS, channels) if ctx.training else (2, channels, programs), device=x.device
        )
        if ctx.training:
            _sums[(groups, blocks)](
                grad,
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
        x_grad = torch.empty_like(x)
        # Without a ReLU the shortcut's grad is the grad itself.
        shortcut_grad = torch.empty_like(x) if ctx.shortcut and ctx.relu else grad
        weight_grad, bias_grad = torch.empty_like(weight), torch.empty_like(weight)
        tensors = (grad, y, x, x_grad, shortcut_grad, weight, used, sums, weight_grad, bias_grad)
        has_shortcut = int(ctx.shortcut and ctx.relu)
        _apply_backward[(programs, blocks)](
            *(*tensors, pixels, channels, groups, has_shortcut, int(ctx.relu)),
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


if triton is not None:

    @triton.jit(do_not_specialize=["groups", "relu"])
    def _sums(a, y, x, mean, inverse, sums, pixels, channels, groups, relu, BACKWARD: tl.constexpr):
        """Sum a and a² over each group of pixels; backward, g and g·x̂ of the ReLU's gradient g."""
        group = tl.program_id(0)
        channel = tl.program_id(1) * CHANNELS_ + tl.arange(0, CHANNELS_)
        first = tl.zeros([CHANNELS_], tl.float32)
        second = tl.zeros([CHANNELS_], tl.float32)
        for start in range(group * PIXELS_, pixels, groups * PIXELS_):
            pixel = start + tl.arange(0, PIXELS_)
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
    def _total(sums, groups, channels, channel):
        """Add up both sums over all groups, always in the same order."""
        group = tl.arange(0, GROUPS_)
        place = group[:, None] * channels + channel[None, :]
        there = (group < groups)[:, None]
        first = tl.sum(tl.load(sums + place, mask=there, other=0.0), 0)
        second = tl.sum(tl.load(sums + GROUPS_ * channels + place, mask=there, other=0.0), 0)
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
        TRAINING: tl.constexpr,
    ):
        """Normalize, add the shortcut and apply the ReLU; in training, update the statistics."""
        channel = tl.program_id(1) * CHANNELS_ + tl.arange(0, CHANNELS_)
        if TRAINING:
            first, second = _total(sums, groups, channels, channel)
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
        pixel = tl.program_id(0) * PIXELS_ + tl.arange(0, PIXELS_)
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
        TRAINING: tl.constexpr,
    ):
        """Compute the gradients of the input, the shortcut, the weight and the bias."""
        channel = tl.program_id(1) * CHANNELS_ + tl.arange(0, CHANNELS_)
        inverse = tl.load(used + channels + channel)
        pixel = tl.program_id(0) * PIXELS_ + tl.arange(0, PIXELS_)
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
            first, second = _total(sums, groups, channels, channel)
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

    PIXELS_, CHANNELS_, GROUPS_ = tl.constexpr(PIXELS), tl.constexpr(CHANNELS), tl.constexpr(GROUPS)
