"""Test the features of a whole set of images."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from fewmore.data import augment
from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, DataError
from fewmore.nn.backbones import Backbone
from fewmore.training import embed as module
from fewmore.training.embed import embed, embed_maps


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


@pytest.mark.parametrize("images", [torch.zeros(2, 3, 8, 8), np.zeros((2, 3, 8, 8)), [1, 2]])
def test_what_is_no_image_set_is_refused(
    backbone: Backbone, tiny_transform: Transform, images: object
) -> None:
    kind = type(images).__name__
    with pytest.raises(DataError, match=rf"an ImageSet, not of type {kind}: .*image_set\(images"):
        embed(backbone, images, tiny_transform)  # type: ignore[arg-type]


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


# Test-time views


def of_view(backbone: Backbone, view: torch.Tensor) -> torch.Tensor:
    backbone.eval()
    with torch.no_grad():
        return backbone(view)


@pytest.mark.parametrize("views", [("flip",), ("plain", "flip"), ("rot270", "rot180", "rot90")])
def test_features_are_the_mean_over_the_test_views(
    backbone: Backbone,
    tiny_images: Callable[..., ImageSet],
    tiny_transform: Transform,
    views: tuple[str, ...],
) -> None:
    images = tiny_images(2, 3)
    pixels = augment.test_view(images, torch.arange(6), tiny_transform)
    each = {
        "plain": pixels,
        "flip": torch.flip(pixels, [3]),
        "rot90": augment.rotate90(pixels, torch.full((6,), 1)),
        "rot180": augment.rotate90(pixels, torch.full((6,), 2)),
        "rot270": augment.rotate90(pixels, torch.full((6,), 3)),
    }
    expected = sum(of_view(backbone, each[name]) for name in views) / len(views)
    features = embed(backbone, images, replace(tiny_transform, test_views=views))  # type: ignore[arg-type]
    assert torch.allclose(features, expected, atol=1e-5)
    assert not torch.allclose(features, embed(backbone, images, tiny_transform), atol=1e-3)


def test_an_image_and_its_mirror_image_have_the_same_features_with_both_views(
    backbone: Backbone, tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    images = tiny_images(2, 3)
    mirrored = replace(images, storage=images.storage.flip(3))  # type: ignore[union-attr]
    both = replace(tiny_transform, test_views=("plain", "flip"))
    assert torch.allclose(embed(backbone, images, both), embed(backbone, mirrored, both), atol=1e-5)
    assert not torch.allclose(
        embed(backbone, images, tiny_transform),
        embed(backbone, mirrored, tiny_transform),
        atol=1e-3,
    )


@pytest.mark.parametrize("name", ["large", "flip-large", "rot180-large", "rot180-flip-large"])
def test_a_large_view_of_small_images_is_interpolated(
    backbone: Backbone,
    tiny_images: Callable[..., ImageSet],
    tiny_transform: Transform,
    name: str,
) -> None:
    images = tiny_images(2, 3)
    view = augment.test_view(images, torch.arange(6), tiny_transform)
    assert view.shape[2:] == (8, 8)
    large = torch.nn.functional.interpolate(view, (12, 12), mode="bilinear", align_corners=False)
    if "rot180" in name:
        large = large.flip(2, 3)
    if "flip" in name:
        large = large.flip(3)
    transform = replace(tiny_transform, test_views=(name,), large=1.5)  # type: ignore[arg-type]
    features = embed(backbone, images, transform)
    assert torch.allclose(features, of_view(backbone, large), atol=1e-5)


def test_a_large_view_of_a_large_image_shows_its_own_pixels(
    backbone: Backbone, tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    images = tiny_images(2, 3)
    small = replace(tiny_transform, size=4, crop="resized", resize=4)  # stored are 8 × 8 pixels
    large = replace(small, test_views=("plain", "large"), large=2.0, view_features="separate")
    features = embed(backbone, images, large)
    whole = augment.test_view(images, torch.arange(6), replace(small, size=8, resize=8))
    plain = augment.test_view(images, torch.arange(6), small)
    expected = torch.cat([of_view(backbone, plain), of_view(backbone, whole)], 1)
    assert torch.allclose(features, expected, atol=1e-5)
    blurred = torch.nn.functional.interpolate(plain, (8, 8), mode="bilinear", align_corners=False)
    assert not torch.allclose(features[:, 64:], of_view(backbone, blurred), atol=1e-3)


def test_the_plain_view_alone_gives_the_same_bits(
    backbone: Backbone, tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    images = tiny_images(2, 3)
    view = augment.test_view(images, torch.arange(6), tiny_transform)
    assert torch.equal(embed(backbone, images, tiny_transform), of_view(backbone, view))


def test_feature_maps_are_not_averaged(
    backbone: Backbone, tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    both = replace(tiny_transform, test_views=("plain", "flip"))
    with pytest.raises(ConfigError, match="test views plain, flip cannot be averaged"):
        embed_maps(backbone, tiny_images(), both, 2)
