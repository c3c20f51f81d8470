"""Test that the fast convolution is nn.Conv2d, whatever computes it or its gradients."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fewmore.accel.conv import COLORS, FEW, FastConv2d
from fewmore.accel.side_streams import SideStreams, current_side_streams

SHAPES = {
    "3x3": (4, 6, 3, 1, 1, 1),
    "stride": (4, 6, 3, 2, 1, 1),
    "1x1": (4, 6, 1, 2, 0, 1),
    "depthwise": (4, 4, 3, 1, 1, 4),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("first", [True, False], ids=["images", "features"])
def test_gradients_are_those_of_conv2d(shape, first, at_once):
    before, after, kernel, stride, padding, groups = SHAPES[shape]
    torch.manual_seed(0)
    conv = FastConv2d(before, after, kernel, stride, padding, groups=groups, bias=False)
    plain = nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False)
    plain.load_state_dict(conv.state_dict())
    x = torch.randn(3, before, 8, 8)
    inputs = [x.clone().requires_grad_(not first) for _ in range(2)]
    with at_once.receive():
        out = conv(inputs[0])
    expected = plain(inputs[1])
    torch.testing.assert_close(out, expected)
    for value in (out, expected):
        value.square().sum().backward()
    assert conv.weight.grad is None, "it arrives when the side streams are joined"
    at_once.join()
    torch.testing.assert_close(conv.weight.grad, plain.weight.grad)
    assert (inputs[0].grad is None) == first
    if not first:
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


@pytest.mark.parametrize("other", [{"padding": "same"}, {"padding": 1, "padding_mode": "circular"}])
def test_other_paddings_are_left_to_conv2d(other, at_once):
    conv, plain = FastConv2d(2, 2, 3, bias=False, **other), nn.Conv2d(2, 2, 3, bias=False, **other)
    plain.load_state_dict(conv.state_dict())
    x = torch.randn(1, 2, 9, 9)
    with at_once.receive():
        assert torch.equal(conv(x), plain(x))


def test_a_weight_that_is_used_twice_gets_both_gradients(at_once):
    conv, plain = FastConv2d(2, 2, 3, bias=False), nn.Conv2d(2, 2, 3, bias=False)
    plain.load_state_dict(conv.state_dict())
    x = torch.randn(1, 2, 9, 9)
    with at_once.receive():
        loss = conv(conv(x)).square().sum()
    loss.backward()
    at_once.join()
    plain(plain(x)).square().sum().backward()
    torch.testing.assert_close(conv.weight.grad, plain.weight.grad)


def test_a_weight_is_cast_anew_in_every_step(at_once):
    """From the second step on it is cast with all others, before the first layer."""
    conv = FastConv2d(2, 2, 3, bias=False)
    x = torch.randn(1, 2, 9, 9).bfloat16()
    for _ in range(3):
        with at_once.receive():
            out = conv(x)
        assert torch.equal(out, F.conv2d(x, conv.weight.detach().bfloat16()))
        out.sum().backward()
        at_once.join()
        assert conv.weight.grad.dtype == torch.float32
        with torch.no_grad():
            conv.weight += 1
    assert list(at_once._casts) == [conv.weight]


def test_a_convolution_with_a_bias_is_left_to_pytorch(at_once):
    conv = FastConv2d(2, 2, 3)
    with at_once.receive():
        conv(torch.randn(1, 2, 9, 9)).sum().backward()
    assert not at_once.submitted
    assert conv.weight.grad is not None


def test_nothing_is_submitted_without_side_streams_or_a_need(at_once):
    conv = FastConv2d(2, 2, 3, bias=False)
    x = torch.randn(1, 2, 9, 9, requires_grad=True)
    with at_once.receive():
        with torch.no_grad():
            conv(x)
        conv.weight.requires_grad_(False)
        conv(x).sum().backward()
    assert current_side_streams() is None
    conv.weight.requires_grad_(True)
    conv(x).sum().backward()
    assert not at_once.submitted
    assert conv.weight.grad is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("size", [(128, 32, 32), (3, 7, 5), (1, 1, 1)], ids=str)
@pytest.mark.parametrize(
    ("given", "made"), [*((few, few) for few in FEW), (COLORS, FEW[0])], ids=str
)
@pytest.mark.parametrize("beside", [False, True], ids=["one stream", "side streams"])
def test_few_channels_on_a_gpu(size, given, made, beside):
    """Compare by norms: bfloat16 rounds to three digits, and sums are of many numbers."""
    n, height, width = size
    torch.manual_seed(0)
    conv = FastConv2d(given, made, 3, padding=1, bias=False)
    x = torch.randn(n, given, height, width)
    grad = torch.randn(n, made, height, width)
    expected_x = x.clone().requires_grad_()
    expected_weight = conv.weight.detach().clone().requires_grad_()
    expected = F.conv2d(expected_x, expected_weight, padding=1)
    expected.backward(grad)
    conv.to("cuda", memory_format=torch.channels_last)
    x, grad = (t.to("cuda", torch.bfloat16, memory_format=torch.channels_last) for t in (x, grad))
    x.requires_grad_()
    side_streams = SideStreams(torch.device("cuda")) if beside else None
    receiving = side_streams.receive() if side_streams else nullcontext()
    with torch.autocast("cuda", torch.bfloat16), receiving:
        out = conv(x)
    assert type(out.grad_fn).__name__ == "_ConvBackward"
    out.backward(grad)
    if side_streams is not None:
        side_streams.join()
    pairs = (
        (out, expected),
        (x.grad, expected_x.grad),
        (conv.weight.grad, expected_weight.grad),
    )
    for ours, theirs in pairs:
        strides = theirs.to(memory_format=torch.channels_last).stride()
        assert ours.stride() == strides or 1 in ours.shape
        difference = ours.detach().float().cpu() - theirs.detach()
        assert float(difference.norm() / theirs.detach().norm()) < 1e-2
