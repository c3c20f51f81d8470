"""A convolution whose weight's gradient goes aside is an ordinary convolution; the streams themselves are tested on a GPU."""

import pytest
import torch
from torch import nn

from cecil.nn.aside import Aside, Conv, gradients_go, way_aside


class AtOnce(Aside):
    """Without streams: computes what it is given."""

    def __init__(self) -> None:
        self._used, self._pending, self.given = set(), [], []

    def give(self, parameters, gradients, reads):
        self.given += parameters
        self._pending += zip(parameters, gradients(), strict=True)


SHAPES = {"3x3": (4, 6, 3, 1, 1, 1), "stride": (4, 6, 3, 2, 1, 1), "1x1": (4, 6, 1, 2, 0, 1), "channel by channel": (4, 4, 3, 1, 1, 4)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("first", [True, False], ids=["pictures", "features"])
def test_the_gradients_are_those_of_an_ordinary_convolution(shape, first):
    before, after, kernel, stride, padding, groups = SHAPES[shape]
    torch.manual_seed(0)
    conv = Conv(before, after, kernel, stride, padding, groups=groups, bias=False)
    plain = nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False)
    plain.load_state_dict(conv.state_dict())
    x = torch.randn(3, before, 8, 8)
    inputs = [x.clone().requires_grad_(not first) for _ in range(2)]
    aside = AtOnce()
    with gradients_go(aside):
        out = conv(inputs[0])
    expected = plain(inputs[1])
    torch.testing.assert_close(out, expected)
    for value in (out, expected):
        value.square().sum().backward()
    assert conv.weight.grad is None, "it arrives where the streams meet"
    aside.join()
    torch.testing.assert_close(conv.weight.grad, plain.weight.grad)
    assert (inputs[0].grad is None) == first
    if not first:
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


def test_a_weight_that_is_used_twice_gets_both_gradients():
    conv, plain = Conv(2, 2, 3, bias=False), nn.Conv2d(2, 2, 3, bias=False)
    plain.load_state_dict(conv.state_dict())
    x = torch.randn(1, 2, 9, 9)
    aside = AtOnce()
    with gradients_go(aside):
        loss = conv(conv(x)).square().sum()
    loss.backward()
    aside.join()
    plain(plain(x)).square().sum().backward()
    torch.testing.assert_close(conv.weight.grad, plain.weight.grad)


def test_nothing_goes_aside_without_a_way_or_a_need():
    conv = Conv(2, 2, 3, bias=False)
    x = torch.randn(1, 2, 9, 9, requires_grad=True)
    aside = AtOnce()
    with gradients_go(aside):
        with torch.no_grad():
            conv(x)
        conv.weight.requires_grad_(False)
        conv(x).sum().backward()
    assert way_aside() is None
    conv.weight.requires_grad_(True)
    conv(x).sum().backward()
    assert not aside.given
    assert conv.weight.grad is not None
