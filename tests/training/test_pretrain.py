"""Test stage 1, which learns the base session."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet, Ragged
from fewmore.nn.backbones import Backbone, build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.training.embed import embed
from fewmore.training.pretrain import PretrainConfig, pretrain
from fewmore.training.runtime import Round, Runtime

CONFIG = PretrainConfig(epochs=4, batch=16, lr=0.01, milestones=())


def untrained(classes: int, similarity: str = "cosine") -> tuple[Backbone, Classifier]:
    """Build a backbone and a classifier, the same ones each time."""
    backbone = build("resnet8", 0)
    generator = torch.Generator().manual_seed(1)
    prototypes = random_prototypes(classes, backbone.dim, generator)
    return backbone, Classifier(similarity, prototypes)


def learnt(
    images: ImageSet, transform: Transform, config: PretrainConfig = CONFIG, seed: int = 0
) -> dict[str, Tensor]:
    """Train stage 1 and return its parameters and buffers."""
    backbone, classifier = untrained(len(images.class_names))
    pretrain(backbone, classifier, images, transform, config, Runtime(), seed)
    return {**backbone.state_dict(), **classifier.state_dict()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Say whether tensors are the same, bit for bit."""
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("similarity", ["cosine", "linear"])
def test_it_learns_to_tell_classes_apart(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform, similarity: str
) -> None:
    train = tiny_images(6, 24)
    test = tiny_images(6, 10, seed=1)
    backbone, classifier = untrained(6, similarity)
    reports: list[Round] = []
    pretrain(
        backbone, classifier, train, tiny_transform, CONFIG, Runtime(on_round=reports.append), 0
    )
    assert [r.stage for r in reports] == ["pretrain"] * 4
    assert reports[-1].loss < 0.7 * reports[0].loss
    with torch.no_grad():
        predicted = classifier(embed(backbone, test, tiny_transform)).argmax(1)
    assert float((predicted == test.labels).float().mean()) > 0.8  # chance is a sixth


def test_backbone_classifier_and_statistics_change(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    backbone, classifier = untrained(4)
    before = {
        name: tensor.clone()
        for name, tensor in {**backbone.state_dict(), **classifier.state_dict()}.items()
    }
    after = learnt(tiny_images(), tiny_transform)
    assert all(not torch.equal(before[name], after[name]) for name in before)


def test_the_seed_decides_the_outcome(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    images = tiny_images()
    one = learnt(images, tiny_transform, replace(CONFIG, epochs=1))
    assert same(one, learnt(images, tiny_transform, replace(CONFIG, epochs=1)))
    assert not same(one, learnt(images, tiny_transform, replace(CONFIG, epochs=1), seed=1))


def test_without_augmentation_images_are_seen_in_the_test_view(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    """Check that settings of augmentation make no difference then."""
    images = tiny_images()
    other = replace(tiny_transform, pad=3, flip=True)
    plain = replace(CONFIG, epochs=1, augment=False)
    assert same(learnt(images, tiny_transform, plain), learnt(images, other, plain))
    augmented = replace(CONFIG, epochs=1)
    assert not same(learnt(images, tiny_transform, augmented), learnt(images, other, augmented))


def test_images_of_several_sizes_are_learnt_from(tiny_images: Callable[..., ImageSet]) -> None:
    images = tiny_images(3, 8, size=16)
    crops = [images.image(i).numpy()[:, : 12 + i % 5, : 16 - i % 4] for i in range(len(images))]
    several = ImageSet.from_images(
        Ragged.from_arrays([np.ascontiguousarray(crop) for crop in crops]),
        images.labels,
        images.class_names,
    )
    transform = Transform(8, (0.5,) * 3, (0.25,) * 3, "resized", scale=(0.5, 1.0), resize=9)
    backbone, classifier = untrained(3)
    reports: list[Round] = []
    pretrain(
        backbone,
        classifier,
        several,
        transform,
        replace(CONFIG, epochs=6, batch=8),
        Runtime(on_round=reports.append),
        0,
    )
    assert reports[-1].loss < 0.7 * reports[0].loss
