"""Test CLOSER's stage 1."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods.closer import Features
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.training.closeness import ClosenessObjective
from fewmore.training.views import rotation_copies, several_views

CONFIG = Features(batch=6, contrast=0.3, closeness=0.7, contrast_scale=8)


def naive_loss(
    features: Tensor, logits: Tensor, labels: Tensor, images: list[int], config: Features
) -> float:
    """Return the loss of a batch by loops over pairs; `images` says which image each view is of."""
    unit = F.normalize(features.double(), dim=1)
    cosines = (unit @ unit.T).tolist()
    count = len(images)
    cross_entropy = float(F.cross_entropy(logits.double(), labels))
    between = [cosines[i][j] for i in range(count) for j in range(i) if labels[i] != labels[j]]
    anchors = []
    for i in range(count):
        others = [j for j in range(count) if j != i]
        total = sum(math.exp(config.contrast_scale * cosines[i][j]) for j in others)
        positives = [
            math.log(total) - config.contrast_scale * cosines[i][j]
            for j in others
            if images[j] == images[i]
        ]
        anchors.append(sum(positives) / len(positives))
    contrast = sum(anchors) / count
    closeness = sum(between) / len(between)
    return cross_entropy + config.contrast * contrast - config.closeness * closeness


@pytest.mark.parametrize(("views", "rotations"), [(3, 1), (2, 2)])
def test_the_loss_is_that_of_a_loop_over_pairs(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform, views: int, rotations: int
) -> None:
    config = replace(CONFIG, views=views, rotations=rotations)
    images = tiny_images(3, 4)
    backbone = build("resnet8", 0).eval()
    prototypes = random_prototypes(3 * rotations, 64, torch.Generator().manual_seed(1))
    classifier = Classifier("cosine", prototypes)
    objective = ClosenessObjective(config, backbone, classifier, images, tiny_transform, 0)
    indices = torch.tensor([0, 5, 1, 9, 4, 10])
    with torch.no_grad():
        loss = objective.loss(indices, torch.Generator().manual_seed(2))
        generator = torch.Generator().manual_seed(2)
        view, labels = several_views(images, indices, tiny_transform, generator, views)
        view, labels = rotation_copies(view, labels, rotations)
        features = backbone(view)
        logits = 32 * F.normalize(features) @ F.normalize(prototypes).T
    # A rotated image is another image than the unrotated one.
    numbers = [100 * r + int(i) for r in range(rotations) for _ in range(views) for i in indices]
    expected = naive_loss(features, logits, labels, numbers, config)
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_one_view_has_no_contrast(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    images, backbone = tiny_images(3, 4), build("resnet8", 0).eval()
    classifier = Classifier("cosine", random_prototypes(3, 64, torch.Generator().manual_seed(1)))
    losses = set()
    for contrast in (0.0, 5.0):
        config = replace(CONFIG, views=1, contrast=contrast)
        objective = ClosenessObjective(config, backbone, classifier, images, tiny_transform, 0)
        with torch.no_grad():
            losses.add(float(objective.loss(torch.arange(12), torch.Generator().manual_seed(0))))
    assert len(losses) == 1
    assert config.unread["contrast"] == "views=1"


def test_a_scale_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="contrast_scale must be a positive number"):
        Features(contrast_scale=0)
