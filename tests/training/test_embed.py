"""Test the features of a whole set of images."""

from collections.abc import Callable

import pytest
import torch

from fewmore.data import augment
from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet
from fewmore.nn.backbones import Backbone
from fewmore.training import embed as module
from fewmore.training.embed import embed


def test_features_are_those_of_each_image_alone(
    backbone: Backbone,
    tiny_images: Callable[..., ImageSet],
    tiny_transform: Transform,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = tiny_images(3, 3)
    monkeypatch.setattr(module, "BATCH", 4)  # nine images: two batches and a rest
    features = embed(backbone, images, tiny_transform)
    assert features.shape == (9, 64)
    assert features.dtype == torch.float32
    assert not features.requires_grad
    backbone.eval()
    for index in range(9):
        alone = backbone(augment.test_view(images, torch.tensor([index]), tiny_transform))
        assert torch.allclose(features[index], alone[0], atol=1e-5)


def test_of_a_selection_only_its_images_are_embedded_in_its_order(
    backbone: Backbone, tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    images = tiny_images(3, 3)
    chosen = torch.tensor([7, 2, 2])
    assert torch.allclose(
        embed(backbone, images.select(chosen), tiny_transform),
        embed(backbone, images, tiny_transform)[chosen],
        atol=1e-5,
    )


@pytest.mark.parametrize("training", [True, False])
def test_the_network_stays_as_it_was(
    backbone: Backbone,
    tiny_images: Callable[..., ImageSet],
    tiny_transform: Transform,
    training: bool,
) -> None:
    backbone.train(training)
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    embed(backbone, tiny_images(), tiny_transform)
    assert all(part.training is training for part in backbone.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in backbone.state_dict().items())


def test_an_empty_set_has_no_features(
    backbone: Backbone, tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    empty = tiny_images().select(torch.empty(0, dtype=torch.int64))
    assert embed(backbone, empty, tiny_transform).shape == (0, 64)
