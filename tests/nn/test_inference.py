"""Test that a copy for inference computes the same features without batch norms."""

import pytest
import torch
from torch import nn

from fewmore.nn.backbones import build
from fewmore.nn.inference import _FoldedAct, _PointwiseConv, for_inference
from fewmore.nn.layers import BatchNormAct2d


@pytest.mark.parametrize("name", ["resnet8", "resnet12", "resnet18", "mobilenet_v2"])
def test_batch_norms_are_folded_away(name: str) -> None:
    backbone = build(name, 1).double()  # deep networks of random numbers round too much for less
    norms = [part for part in backbone.modules() if isinstance(part, BatchNormAct2d)]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for norm in norms:
            for tensor, low in (
                (norm.weight, 0.5),
                (norm.bias, -0.5),
                (norm.running_mean, -0.5),
                (norm.running_var, 0.5),
            ):
                assert tensor is not None
                tensor.uniform_(low, low + 1, generator=generator)
        before = {key: tensor.clone() for key, tensor in backbone.state_dict().items()}
        folded = for_inference(backbone)
        images = torch.randn(3, 3, 64, 64, generator=generator, dtype=torch.float64)
        backbone.eval()
        assert torch.allclose(folded(images), backbone(images), rtol=1e-9)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    activations = [part for part in folded.modules() if isinstance(part, _FoldedAct)]
    assert [act.relu for act in activations] == [norm.relu for norm in norms]
    assert not any(p.requires_grad for p in folded.parameters())
    assert all(torch.equal(before[key], tensor) for key, tensor in backbone.state_dict().items())


@pytest.mark.parametrize("images", [1, 3, 4, 9, 15, 16])
@pytest.mark.parametrize("stride", [1, 2])
def test_pointwise_convolutions_of_few_images_are_the_same(images: int, stride: int) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(8, 24, 1, stride).requires_grad_(False)
    x = torch.randn(images, 8, 7, 7).to(memory_format=torch.channels_last)
    assert torch.allclose(_PointwiseConv(convolution)(x), convolution(x), atol=1e-6)
    exact = convolution.double()
    assert torch.allclose(_PointwiseConv(exact)(x.double()), exact(x.double()))
