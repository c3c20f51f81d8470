"""Test the kernels on a CPU by Triton's interpreter, which runs one program after the other.

test_kernels.py runs this file.
"""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmore.accel import augmentation, batch_norm, conv, max_pool
from fewmore.accel.conv import COLORS, FEW
from fewmore.accel.side_streams import SideStreams
from fewmore.data.operations import KINDS, apply_operations

assert os.environ.get("TRITON_INTERPRET") == "1", "test_kernels.py runs these tests"


def maps(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(memory_format=torch.channels_last)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """To the rounding of a sum, relative to its largest number."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


# Pixels that do not fill a program, that fill several, and one alone
SIZES = [(3, 7, 5), (2, 16, 16), (1, 1, 1)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    ("given", "made"), [*((few, few) for few in FEW), (COLORS, FEW[0])], ids=str
)
@pytest.mark.parametrize("groups", [128, 2])
def test_a_convolution_of_few_channels(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int, int], given: int, made: int, groups: int
) -> None:
    """With two groups of pixels, each takes several turns."""
    monkeypatch.setattr(conv, "GROUPS", groups)
    n, height, width = size
    x, weight, gradient = (
        maps(n, given, height, width),
        maps(made, given, 3, 3),
        maps(n, made, height, width),
    )
    x.requires_grad_()
    weight.requires_grad_()
    expected = F.conv2d(x, weight, padding=1)
    expected.backward(gradient)
    assert x.grad is not None
    assert weight.grad is not None
    with torch.no_grad():
        assert_close(conv.few_channels(x, weight), expected)
        assert_close(conv.few_channels_weight_grad(gradient, x), weight.grad)
        if given == made:
            assert_close(conv.few_channels(gradient, weight, backward=True), x.grad)


@pytest.mark.parametrize("training", [True, False], ids=["training", "testing"])
@pytest.mark.parametrize("relu", [True, False], ids=["relu", "no relu"])
@pytest.mark.parametrize("shortcut", [True, False], ids=["shortcut", "no shortcut"])
@pytest.mark.parametrize("aside", [True, False], ids=["aside", "at once"])
@pytest.mark.parametrize(
    ("channels", "tile"),
    [(32, batch_norm.SMALL), *((2 * tile.channels, tile) for tile in batch_norm.LARGE)],
    ids=lambda value: value if isinstance(value, int) else f"{value.pixels}x{value.channels}",
)
def test_batch_norm_shortcut_and_relu(
    monkeypatch: pytest.MonkeyPatch,
    training: bool,
    relu: bool,
    shortcut: bool,
    aside: bool,
    channels: int,
    tile: batch_norm.Tile,
    at_once: SideStreams,
) -> None:
    """Pixels for several programs, the last of them not full; two blocks of channels."""
    monkeypatch.setattr(batch_norm, "tile_of", lambda x: tile)
    shape = (9, channels, 8, 7)
    x, other, gradient = (
        maps(*shape[:3], width)[..., :7].contiguous(memory_format=torch.channels_last)
        for width in (7, 8, 9)
    )
    layers = [nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)]
    found = []
    for layer, ours in zip(layers, (True, False), strict=True):
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(0.5, 2, channels))
            layer.bias.copy_(torch.linspace(-1, 1, channels))
        layer.train(training)
        own, side = x.clone().requires_grad_(), other.clone().requires_grad_() if shortcut else None
        if ours:
            beside = at_once if aside else None
            statistics = (
                layer.running_mean,
                layer.running_var,
                training,
                relu,
                layer.eps,
                layer.momentum,
            )
            out = batch_norm._Fused.apply(own, side, layer.weight, layer.bias, *statistics, beside)
            out.backward(gradient)
            if beside is not None:
                beside.join()
        else:
            out = layer(own) if side is None else layer(own) + side
            out = F.relu(out) if relu else out
            out.backward(gradient)
        found.append(
            [
                out.detach(),
                own.grad,
                layer.weight.grad,
                layer.bias.grad,
                layer.running_mean,
                layer.running_var,
            ]
        )
        if side is not None:
            found[-1].append(side.grad)
    for mine, expected in zip(*found, strict=True):
        assert_close(mine, expected)


@pytest.mark.parametrize("size", [(3, 7, 5), (2, 16, 16), (1, 1, 1), (2, 8, 9)], ids=str)
@pytest.mark.parametrize("channels", [16, 64])
def test_max_pooling(size: tuple[int, int, int], channels: int) -> None:
    """Whole numbers have many equal maxima in a window: the first one gets the gradient."""
    n, height, width = size
    x = maps(n, channels, height, width).round()
    gradient = maps(n, channels, (height + 1) // 2, (width + 1) // 2)
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    found = []
    for pool in (max_pool._MaxPool.apply, nn.MaxPool2d(3, 2, 1)):
        own = x.clone().requires_grad_()
        out = pool(own)
        out.backward(gradient)
        found.append((out.detach(), own.grad))
    for mine, expected in zip(*found, strict=True):
        assert_close(mine, expected)


STRENGTHS = {
    "rotate": [29.7, -13.1, 141.0],
    "posterize": [4.0, 7.0, 8.0],
    "solarize": [100.0, 0.0, 255.0],
}  # of other operations: a shift, one to the other side, and a factor above 1


@pytest.mark.parametrize("bilinear", [False, True], ids=["nearest", "bilinear"])
@pytest.mark.parametrize("side", [2, 37])
def test_operations_on_images(side: int, bilinear: bool) -> None:
    """At 37 pixels an image is the work of two programs."""
    strengths = torch.tensor([STRENGTHS.get(kind, [0.29, -0.4, 1.9]) for kind in KINDS]).flatten()
    kinds = torch.arange(len(KINDS)).repeat_interleave(3)
    generator = torch.Generator().manual_seed(side)
    images = torch.randint(40, 200, (len(kinds), 3, side, side), generator=generator)
    images = images.to(torch.uint8)
    expected = apply_operations(images, kinds, strengths, bilinear)
    found = augmentation.launch(images, kinds, strengths, bilinear)
    difference = (found.int() - expected.int()).abs()
    if bilinear:  # PyTorch interpolates with fused multiplications and additions
        assert int(difference.max()) <= 1
        assert float((difference > 0).float().mean()) < 0.001
    else:
        assert int(difference.max()) == 0
    changed = (found != images).flatten(1).any(1).view(-1, 3).any(1)
    assert side == 2 or changed.tolist() == [kind != "identity" for kind in KINDS]


@pytest.mark.parametrize("value", [0, 77, 255])
def test_operations_on_images_of_one_color(value: int) -> None:
    kinds = torch.arange(len(KINDS))
    images = torch.full((len(kinds), 3, 6, 6), value, dtype=torch.uint8)
    strengths = torch.full((len(kinds),), 1.9)
    expected = apply_operations(images, kinds, strengths)
    assert torch.equal(augmentation.launch(images, kinds, strengths, False), expected)
