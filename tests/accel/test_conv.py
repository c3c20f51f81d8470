"""Whatever way its gradients go and whatever kernel computes it, a convolution is an ordinary convolution."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fewmore.accel.conv import COLOURS, FEW, Conv
from fewmore.accel.side_streams import SideStreams, current_side_streams, gradients_on

SHAPES = {
    "3x3": (4, 6, 3, 1, 1, 1),
    "stride": (4, 6, 3, 2, 1, 1),
    "1x1": (4, 6, 1, 2, 0, 1),
    "channel by channel": (4, 4, 3, 1, 1, 4),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("first", [True, False], ids=["images", "features"])
def test_the_gradients_are_those_of_an_ordinary_convolution(shape, first, at_once):
    before, after, kernel, stride, padding, groups = SHAPES[shape]
    torch.manual_seed(0)
    conv = Conv(before, after, kernel, stride, padding, groups=groups, bias=False)
    plain = nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False)
    plain.load_state_dict(conv.state_dict())
    x = torch.randn(3, before, 8, 8)
    inputs = [x.clone().requires_grad_(not first) for _ in range(2)]
    with gradients_on(at_once):
        out = conv(inputs[0])
    expected = plain(inputs[1])
    torch.testing.assert_close(out, expected)
    for value in (out, expected):
        value.square().sum().backward()
    assert conv.weight.grad is None, "it arrives where the streams meet"
    at_once.join()
    torch.testing.assert_close(conv.weight.grad, plain.weight.grad)
    assert (inputs[0].grad is None) == first
    if not first:
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


def test_a_weight_that_is_used_twice_gets_both_gradients(at_once):
    conv, plain = Conv(2, 2, 3, bias=False), nn.Conv2d(2, 2, 3, bias=False)
    plain.load_state_dict(conv.state_dict())
    x = torch.randn(1, 2, 9, 9)
    with gradients_on(at_once):
        loss = conv(conv(x)).square().sum()
    loss.backward()
    at_once.join()
    plain(plain(x)).square().sum().backward()
    torch.testing.assert_close(conv.weight.grad, plain.weight.grad)


def test_a_weight_is_cast_anew_in_every_step(at_once):
    """By the second step it is known, and cast with all others before the first layer."""
    conv = Conv(2, 2, 3, bias=False)
    x = torch.randn(1, 2, 9, 9).bfloat16()
    for _ in range(3):
        with gradients_on(at_once):
            out = conv(x)
        assert torch.equal(out, F.conv2d(x, conv.weight.detach().bfloat16()))
        out.sum().backward()
        at_once.join()
        assert conv.weight.grad.dtype == torch.float32
        with torch.no_grad():
            conv.weight += 1
    assert list(at_once._casts) == [conv.weight]


def test_nothing_goes_aside_without_a_way_or_a_need(at_once):
    conv = Conv(2, 2, 3, bias=False)
    x = torch.randn(1, 2, 9, 9, requires_grad=True)
    with gradients_on(at_once):
        with torch.no_grad():
            conv(x)
        conv.weight.requires_grad_(False)
        conv(x).sum().backward()
    assert current_side_streams() is None
    conv.weight.requires_grad_(True)
    conv(x).sum().backward()
    assert not at_once.given
    assert conv.weight.grad is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("size", [(128, 32, 32), (3, 7, 5), (1, 1, 1)], ids=str)
@pytest.mark.parametrize(
    ("given", "made"), [*((few, few) for few in FEW), (COLOURS, FEW[0])], ids=str
)
@pytest.mark.parametrize("goes_aside", [False, True])
def test_few_channels_on_a_gpu(size, given, made, goes_aside):
    """bfloat16 rounds to three digits; sums of many are compared by their norm."""
    n, height, width = size
    torch.manual_seed(0)
    conv = Conv(given, made, 3, padding=1, bias=False)
    x, gradient = torch.randn(n, given, height, width), torch.randn(n, made, height, width)
    wanted_x, wanted_weight = (
        x.clone().requires_grad_(),
        conv.weight.detach().clone().requires_grad_(),
    )
    wanted = F.conv2d(wanted_x, wanted_weight, padding=1)
    wanted.backward(gradient)
    conv.to("cuda", memory_format=torch.channels_last)
    x, gradient = (
        t.to("cuda", torch.bfloat16, memory_format=torch.channels_last) for t in (x, gradient)
    )
    x.requires_grad_()
    aside = SideStreams(torch.device("cuda")) if goes_aside else None
    with torch.autocast("cuda", torch.bfloat16), gradients_on(aside):
        out = conv(x)
    assert type(out.grad_fn).__name__ == "_ConvBackward"
    out.backward(gradient)
    if aside is not None:
        aside.join()
    for found, expected in (
        (out, wanted),
        (x.grad, wanted_x.grad),
        (conv.weight.grad, wanted_weight.grad),
    ):
        assert (
            found.stride() == expected.to(memory_format=torch.channels_last).stride()
            or 1 in found.shape
        )
        assert (
            float(
                (found.detach().float().cpu() - expected.detach()).norm() / expected.detach().norm()
            )
            < 1e-2
        )
