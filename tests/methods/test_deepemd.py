"""Test DeepEMD on frozen feature maps; test_every_method has the rest."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods import METHODS
from fewmore.methods.deepemd import Config, DeepEMD
from fewmore.nn.backbones import build
from fewmore.nn.similarity import earth_mover
from fewmore.training import embed as module
from fewmore.training.embed import embed, embed_maps
from fewmore.training.runtime import Runtime


def fitted(recipe, base, **settings) -> DeepEMD:
    method = DeepEMD(dataclasses.replace(recipe, method=Config(**settings)), Runtime(), 0)
    method.fit(base)
    return method


@pytest.fixture
def method(tiny_recipe, tiny_images) -> DeepEMD:
    return fitted(tiny_recipe, tiny_images(4, 6))


# ---- feature maps


@pytest.mark.parametrize(("side", "cells"), [(1, 1), (2, 4), (3, 9), (8, 64), (20, 64)])
def test_a_map_is_averaged_down_but_never_up(tiny_images, tiny_transform, side, cells):
    transform = dataclasses.replace(tiny_transform, size=32)  # whose last map has 8 × 8 cells
    maps = embed_maps(build("resnet8"), tiny_images(2, 2, size=32), transform, side)
    assert maps.shape == (4, cells, 64)
    assert maps.dtype == torch.float32
    assert not maps.requires_grad


def test_the_mean_of_the_cells_are_the_features(tiny_images, tiny_transform):
    backbone, images = build("resnet8"), tiny_images(2, 3)
    for side in (1, 2, 8):
        maps = embed_maps(backbone, images, tiny_transform, side)
        torch.testing.assert_close(
            maps.mean(1), embed(backbone, images, tiny_transform), atol=1e-5, rtol=1e-5
        )


def test_cells_lie_row_by_row(tiny_images, tiny_transform, monkeypatch):
    class Pixels(nn.Module):
        """Return the image as its feature map."""

        def maps(self, x: Tensor) -> Tensor:
            return x

    images = tiny_images(1, 3)
    monkeypatch.setattr(module, "BATCH", 2)
    maps = embed_maps(Pixels(), images, tiny_transform, 8)
    expected = (images.image(2)[:, 3, 5].float() / 255 - 0.5) / 0.25
    torch.testing.assert_close(maps[2, 3 * 8 + 5], expected, atol=1e-5, rtol=0)


def test_a_backbone_without_maps_is_refused(tiny_images, tiny_transform):
    class Tokens(nn.Module):
        def maps(self, x: Tensor) -> Tensor:
            return x.flatten(2)

    with pytest.raises(ConfigError, match="choose a convolutional one"):
        embed_maps(Tokens(), tiny_images(1, 3), tiny_transform, 4)


def test_test_views_are_refused_before_training(tiny_recipe, tiny_images, monkeypatch):
    """Feature maps of a mirrored or rotated image do not lie on those of the image."""
    transform = dataclasses.replace(tiny_recipe.transform, test_views=("plain", "flip"))
    monkeypatch.setattr("fewmore.methods.network.pretrain", lambda *_: pytest.fail("trained"))
    with pytest.raises(ConfigError, match=r"--set transform\.test_views=plain"):
        fitted(dataclasses.replace(tiny_recipe, transform=transform), tiny_images(4, 6))


def test_a_grid_has_at_least_one_cell():
    with pytest.raises(ConfigError, match="side"):
        Config(side=0)


# ---- the method


def test_a_class_is_the_mean_of_its_feature_maps(method, tiny_images):
    new = tiny_images(6, 3, seed=2).select_classes([4, 5])
    method.learn(new)
    assert method.means.shape == (6, 4 * 64)
    maps = method.embed(new)
    torch.testing.assert_close(method.means[4], maps[new.labels == 0].mean(0))
    torch.testing.assert_close(method.means[5], maps[new.labels == 1].mean(0))


def test_scores_are_the_earth_movers_similarity_to_the_means(method, tiny_images, tiny_recipe):
    images = tiny_images(4, 2, seed=3)
    maps = embed_maps(method.network.backbone, images, tiny_recipe.transform, 8)
    assert torch.equal(method.embed(images), maps.flatten(1))
    means = method.means.unflatten(1, (4, 64))
    assert torch.equal(method.scores(images), earth_mover(maps, means, centred=True))
    method.config = Config(centred=False)
    assert torch.equal(method.scores(images), earth_mover(maps, means, centred=False))


def test_one_cell_that_is_not_centred_is_the_cosine_of_class_means(tiny_recipe, tiny_images):
    base = tiny_images(4, 6)
    method = fitted(tiny_recipe, base, side=1, centred=False)
    features = embed(method.network.backbone, base, tiny_recipe.transform)
    cosines = torch.cosine_similarity(features[:, None], method.means[None], dim=2)
    torch.testing.assert_close(method.scores(base), 16 * cosines, atol=1e-4, rtol=0)


def test_stage_1_is_shared_with_the_cosine_classifier(tiny_recipe_for, tiny_images, tmp_path):
    stages: list[str] = []
    runtime = Runtime(stage1_cache=tmp_path, on_round=lambda r: stages.append(r.stage))
    base: ImageSet = tiny_images(4, 6)
    for method in ("decoupled-cosine", "decoupled-deepemd"):
        METHODS[method].build(tiny_recipe_for(method), runtime, 0).fit(base)
    assert stages[-1] == "pretrain (shared)"
