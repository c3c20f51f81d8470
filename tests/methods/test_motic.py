"""Test MoTiC's stage 1."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods import find
from fewmore.methods.base import Recipe
from fewmore.methods.motic import Features, MoticObjective
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.research.exam_world import TRANSFORM
from fewmore.training.runtime import Runtime

CONFIG = Features(
    epochs=2, batch=6, warm_up=0, queue=20, temperature=0.2, contrast=0.3, closeness=0.7
)
INDICES = torch.tensor([0, 5, 1, 9, 4, 10])


def make(config: Features, images: ImageSet, transform: Transform = TRANSFORM) -> MoticObjective:
    """Make the objective of three classes, with a network in evaluation mode."""
    backbone = build("resnet8", 0).eval()
    rows = random_prototypes(3 * config.rotations, 64, torch.Generator().manual_seed(1))
    return MoticObjective(config, backbone, Classifier("cosine", rows), images, transform, 0)


def unit(vector: Tensor) -> list[float]:
    length = math.sqrt(sum(value * value for value in vector.tolist()))
    return [value / length for value in vector.tolist()]


def cosine(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("own_passes", [True, False])
@pytest.mark.parametrize(("views", "rotations"), [(3, 2), (2, 4)])
def test_the_loss_is_that_of_a_loop_over_pairs(
    tiny_images: Callable[..., ImageSet], views: int, rotations: int, own_passes: bool
) -> None:
    config = replace(
        CONFIG, views=views, rotations=rotations, own_passes=own_passes, closeness_from=0
    )
    objective = make(config, tiny_images(3, 4))
    objective.encoder.copy.conv1.weight.data.mul_(1.5)  # type: ignore[union-attr, operator]
    before = [(unit(row), -1) for row in objective.queue.features]
    with torch.no_grad():
        loss = objective.loss(INDICES, torch.Generator().manual_seed(2))
        view, labels = objective.views(INDICES, torch.Generator().manual_seed(2))
        features = objective.backbone(view)
        logits = 32 * F.normalize(features) @ F.normalize(objective.classifier.prototypes).T
        keys = objective.encoder(view)  # in evaluation mode, each image is by itself
    expected = float(F.cross_entropy(logits, labels))
    # Row (rotation, view, image): the key of a query is the last view of the same rotation.
    rows = {
        (r, v, i): (r * views + v) * 6 + i
        for r in range(rotations)
        for v in range(views)
        for i in range(6)
    }
    new = [
        (unit(keys[rows[r, views - 1, i]]), int(labels[rows[r, 0, i]]))
        for r in range(rotations)
        for i in range(6)
    ]
    places = list(before)
    for number, entry in enumerate(new):
        places[number % 20] = entry  # as many keys as there are, the oldest are replaced
    for v in range(views - 1):
        contrast, between = [], []
        for r in range(rotations):
            for i in range(6):
                query, label = unit(features[rows[r, v, i]]), int(labels[rows[r, v, i]])
                own = math.exp(cosine(query, unit(keys[rows[r, views - 1, i]])) / 0.2)
                others = sum(math.exp(cosine(query, other) / 0.2) for other, _ in before)
                contrast.append(-math.log(own / (own + others)))
                between += [cosine(query, other) for other, of in places if of != label]
        expected += 0.3 * sum(contrast) / len(contrast) / (views - 1)
        expected -= 0.7 * sum(between) / len(between) / (views - 1)
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_keys_and_their_labels_enter_the_queue_in_order(
    tiny_images: Callable[..., ImageSet],
) -> None:
    objective = make(CONFIG, tiny_images(3, 4))
    labels = tiny_images(3, 4).labels[INDICES]
    objective.loss(INDICES, torch.Generator().manual_seed(2))
    expected = [*(2 * labels).tolist(), *(2 * labels + 1).tolist()]
    assert objective.queue.labels.tolist() == [*expected, *[-1] * 8]
    objective.loss(INDICES, torch.Generator().manual_seed(3))
    assert objective.queue.labels.tolist() == [*expected[8:], *expected[4:], *expected[:8]]
    assert int(objective.queue.place) == 4


def test_the_copy_follows_before_it_computes_the_keys(
    tiny_images: Callable[..., ImageSet],
) -> None:
    objective = make(replace(CONFIG, encoder_momentum=0.9), tiny_images(3, 4))
    old = objective.backbone.conv1.weight.detach().clone()  # type: ignore[union-attr, operator]
    with torch.no_grad():
        objective.backbone.conv1.weight.mul_(2)  # type: ignore[union-attr, operator]
    objective.loss(INDICES, torch.Generator().manual_seed(2))
    assert torch.allclose(objective.encoder.copy.conv1.weight, 1.1 * old)  # type: ignore
    view, _ = objective.views(INDICES, torch.Generator().manual_seed(2))
    keys = F.normalize(objective.encoder(view[12:18]), dim=1)  # the last view, unrotated
    assert torch.allclose(objective.queue.features[:6], keys, atol=1e-5)


def test_classes_are_drawn_together_from_the_second_epoch_on(
    tiny_images: Callable[..., ImageSet],
) -> None:
    """12 images in batches of 6: the third step is the first of the second epoch."""
    losses = {}
    for closeness in (0.0, 5.0):
        objective = make(replace(CONFIG, closeness=closeness), tiny_images(3, 4))
        losses[closeness] = [
            float(objective.loss(INDICES, torch.Generator().manual_seed(step)).detach())
            for step in range(3)
        ]
    assert losses[0.0][:2] == losses[5.0][:2]
    assert losses[0.0][2] != losses[5.0][2]


def test_keys_have_no_gradients_and_the_trained_network_has(
    tiny_images: Callable[..., ImageSet],
) -> None:
    objective = make(CONFIG, tiny_images(3, 4))
    objective.loss(INDICES, torch.Generator().manual_seed(2)).backward()
    assert all(p.grad is None for p in objective.encoder.parameters())
    assert all(p.grad is not None for p in objective.backbone.parameters())
    assert objective.groups() == []


def test_a_stopped_training_ends_with_the_same_bits(
    tiny_images: Callable[..., ImageSet], stage_1_tensors: Callable[..., dict[str, Tensor]]
) -> None:
    config = replace(CONFIG, epochs=4, lr=0.01)
    whole = stage_1_tensors(config, tiny_images(3, 4))
    resumed = stage_1_tensors(config, tiny_images(3, 4), stop_after=2)
    assert {"queue.features", "encoder.copy.conv1.weight", "count.steps"} <= set(whole)
    assert int(whole["count.steps"]) == 8
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())


def test_it_learns_and_is_tested_in_two_views(
    tiny_task: Task, sessions: list[ImageSet], small_recipe: Callable[..., Recipe]
) -> None:
    recipe = small_recipe("quick", tiny_task.benchmark, "motic", "pretrain.epochs=4")
    method = find("motic").build(recipe, Runtime(), 0)
    method.fit(sessions[0])
    method.learn(sessions[1])
    assert method.embed(tiny_task.test).shape[1] == 128
    known = tiny_task.test.labels < 6
    right = method.scores(tiny_task.test).argmax(1) == tiny_task.test.labels
    assert float(right[known].float().mean()) > 0.5


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"views": 1}, "views must be at least 2, a query's and a key's, not 1"),
        ({"queue": 0}, "queue must be at least 1, not 0"),
        ({"encoder_momentum": 1.1}, r"encoder_momentum must lie in \[0, 1\], not 1.1"),
        ({"temperature": 0.0}, "temperature must be a positive number, not 0.0"),
        ({"closeness_from": -1}, "closeness_from must not be negative, and is -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(setting: dict[str, float], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Features(**setting)  # type: ignore[arg-type]
