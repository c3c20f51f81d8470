"""Test stage 2 on precomputed features: the same training as with a frozen backbone."""

from collections.abc import Callable

import pytest
import torch

from fewmore.data import augment
from fewmore.data.augment import Transform, rotate90
from fewmore.data.images import ImageSet
from fewmore.nn.adapter import Adapter
from fewmore.nn.backbones import build
from fewmore.training.pseudo_incremental import (
    PseudoConfig,
    pseudo_incremental,
    pseudo_incremental_on_features,
)
from fewmore.training.runtime import Runtime


@pytest.mark.parametrize("same_classes", [True, False])
def test_it_is_the_training_with_a_frozen_encoder(
    tiny_images: Callable[..., ImageSet],
    tiny_transform: Transform,
    monkeypatch: pytest.MonkeyPatch,
    same_classes: bool,
) -> None:
    monkeypatch.setattr("fewmore.training.pseudo_incremental.ROUND", 3)
    images = tiny_images(6, 5)
    config = PseudoConfig(
        lr=0.05,
        episodes=6,
        milestones=(1,),
        base_way=3,
        new_way=3,
        base_query=2,
        new_query=2,
        same_classes=same_classes,
        encoder="none",
        augmented_rounds=0,
    )
    backbone = build("resnet8", seed=1).eval()
    adapters = [Adapter(backbone.dim, generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    pseudo_incremental(backbone, adapters[0], images, tiny_transform, config, Runtime(), 7)
    with torch.no_grad():
        view = augment.test_view(images, torch.arange(len(images)), tiny_transform)
        views = torch.stack(
            [backbone(rotate90(view, torch.full((len(images),), quarter))) for quarter in range(4)]
        )
    pseudo_incremental_on_features(adapters[1], views, images, config, Runtime(), 7)
    started = Adapter(backbone.dim, generator=torch.Generator().manual_seed(0))
    for one, other, before in zip(
        *(adapter.parameters() for adapter in (*adapters, started)), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
        assert not torch.equal(one, before)
    assert not adapters[1].training
