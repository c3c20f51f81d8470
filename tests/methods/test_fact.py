"""Test FACT: its losses against loops, what they train, and its scores."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import BENCHMARKS, Task
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods import find
from fewmore.methods.base import Recipe
from fewmore.methods.fact import (
    Config,
    FACTObjective,
    Features,
    forecasting_loss,
    reserving_loss,
)
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.research.recipes import recipe
from fewmore.training.mixing import sample_beta
from fewmore.training.runtime import Runtime
from fewmore.training.views import several_views

LOGITS = torch.randn(6, 7, generator=torch.Generator().manual_seed(0)) * 3  # 4 base, 3 virtual
LABELS = torch.tensor([0, 1, 2, 3, 1, 0])


def minus_log_share(values: list[float], place: int) -> float:
    return math.log(sum(math.exp(value) for value in values)) - values[place]


def unit(vector: Tensor) -> Tensor:
    return vector / math.sqrt(float((vector * vector).sum()))


def naive_reserving(logits: Tensor, labels: Tensor, open_to: Tensor) -> float:
    base, total = len(open_to), 0.0
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        candidates = [
            value if is_open else 0.0
            for value, is_open in zip(row[base:], open_to[label].tolist(), strict=True)
        ]
        target = base + candidates.index(max(candidates))
        rest = [place for place in range(len(row)) if place != label]
        total += minus_log_share([row[place] for place in rest], rest.index(target))
    return total / len(logits)


def naive_forecasting(logits: Tensor, base: int, different: list[bool]) -> float:
    losses = []
    for row, counts in zip(logits.double().tolist(), different, strict=True):
        nearest = base + row[base:].index(max(row[base:]))
        known = row[:base].index(max(row[:base]))
        rest = [place for place in range(len(row)) if place != nearest]
        loss = minus_log_share(row, nearest)
        loss += minus_log_share([row[place] for place in rest], rest.index(known))
        losses += [loss] if counts else []
    return sum(losses) / len(losses)


def make_objective(
    images: ImageSet, transform: Transform, config: Features, classes: int = 3
) -> FACTObjective:
    rows = random_prototypes(classes, 64, torch.Generator().manual_seed(1))
    backbone = build("resnet8", 0)
    return FACTObjective(config, backbone, Classifier("cosine", rows), images, transform, 0)


def test_an_image_belongs_to_a_virtual_prototype_where_its_class_is_masked() -> None:
    open_to = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]).float()
    loss = reserving_loss(LOGITS, LABELS, open_to)
    assert float(loss) == pytest.approx(naive_reserving(LOGITS, LABELS, open_to), rel=1e-5)


def test_mixed_images_belong_to_a_virtual_prototype_and_then_to_a_base_class() -> None:
    different = [True, False, True, True, False, True]
    loss = forecasting_loss(LOGITS, 4, torch.tensor(different))
    assert float(loss) == pytest.approx(naive_forecasting(LOGITS, 4, different), rel=1e-5)
    assert float(forecasting_loss(LOGITS, 4, torch.zeros(6, dtype=torch.bool))) == 0


def test_the_whole_loss_of_a_batch(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    """Mix after the second stage, with one share for the batch and the image before."""
    images, config = tiny_images(3, 4), Features(batch=6, virtual=5, reserve=0.4, scale=10)
    objective = make_objective(images, tiny_transform, config)
    backbone, virtual = objective.backbone.eval(), objective.virtual
    indices = torch.tensor([0, 1, 5, 9, 4, 10])
    with torch.no_grad():
        virtual.rows.add_(0.1)  # so that they differ from the fixed ones
        loss = objective.losses()[0](indices, torch.Generator().manual_seed(2))
        generator = torch.Generator().manual_seed(2)
        view, labels = several_views(images, indices, tiny_transform, generator, 1)
        share = float(sample_beta(1, 0.5, generator))
        classes = objective.classifier.prototypes

        def logits(feature: Tensor, rows: Tensor) -> list[float]:
            return [10 * float(unit(feature) @ unit(row)) for row in (*classes, *rows)]

        maps = backbone.early(view)
        mixed = torch.stack([share * maps[i] + (1 - share) * maps[i - 1] for i in range(6)])
        real = torch.tensor([logits(f, virtual.fixed) for f in backbone(view)])
        forecast = torch.tensor([logits(f, virtual.rows) for f in backbone.late(mixed)])
    different = [bool(labels[i] != labels[i - 1]) for i in range(6)]
    assert different == [True, False, True, True, True, True]
    rows = real[:, :3].double().tolist()
    own = zip(rows, labels.tolist(), strict=True)
    expected = sum(minus_log_share(row, label) for row, label in own) / 6
    expected += 0.4 * naive_reserving(real, labels, virtual.open_to)
    expected += 0.4 * naive_forecasting(forecast, 3, different)
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_prototypes_start_orthogonal_and_each_is_open_to_three_classes(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    objective = make_objective(tiny_images(5, 4), tiny_transform, Features(virtual=9), 5)
    virtual = objective.virtual
    rows = torch.cat([objective.classifier.prototypes.detach(), virtual.fixed])
    assert torch.allclose(rows @ rows.T, torch.eye(14), atol=1e-5)
    assert torch.equal(virtual.rows.detach(), virtual.fixed)
    assert virtual.open_to.sum(0).tolist() == [3.0] * 9


def test_gradients_reach_all_that_is_trained_from_an_epoch_on(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform
) -> None:
    images = tiny_images(3, 4)
    objective = make_objective(images, tiny_transform, Features(virtual=5, reserve_from=2))
    losses = objective.losses()
    assert list(losses) == [0, 2]
    losses[0](torch.arange(12), torch.Generator().manual_seed(0)).backward()
    assert torch.equal(objective.virtual.rows.grad, torch.zeros_like(objective.virtual.rows))
    losses[2](torch.arange(12), torch.Generator().manual_seed(0)).backward()
    trained = [*objective.backbone.parameters(), objective.classifier.prototypes]
    trained.append(objective.virtual.rows)
    assert all(p.grad is not None and bool(p.grad.any()) for p in trained)
    assert objective.maps is None  # nothing of the batch stays


@pytest.mark.parametrize("nearest", [2, 40])
def test_scores_blend_cosines_with_likeness_by_virtual_prototypes(
    tiny_task: Task, sessions: list[ImageSet], small_recipe: Callable[..., Recipe], nearest: int
) -> None:
    settings = (f"nearest={nearest}", "virtual_share=0.3", "pretrain.virtual=6")
    made = small_recipe("quick", tiny_task.benchmark, "fact", *settings)
    method = find("fact").build(made, Runtime(), 0)
    method.fit(sessions[0])
    image = method.embed(tiny_task.test)[0]
    means = method.network.classifier.prototypes.detach()
    cosines = torch.stack([16 * (unit(image) @ unit(mean)) for mean in means])
    assert torch.allclose(method.scores(tiny_task.test)[0], cosines, atol=1e-4)
    method.learn(sessions[1])
    means = method.network.classifier.prototypes.detach()
    assert len(means) == 6
    cosines = torch.stack([16 * (unit(image) @ unit(mean)) for mean in means])
    virtual = [unit(row) for row in method.network.kept["virtual"]]
    lengths = [math.sqrt(float((means[:, d] ** 2).sum())) for d in range(64)]
    of_image = [float(unit(image) @ row) for row in virtual]
    chosen = sorted(range(6), key=lambda v: -of_image[v])[:nearest]
    likeness = [
        sum(
            of_image[v] * sum(float(virtual[v][d] * mean[d]) / lengths[d] for d in range(64))
            for v in chosen
        )
        for mean in means
    ]
    expected = 0.3 * torch.tensor(likeness).softmax(0) + 0.7 * cosines.softmax(0)
    assert torch.allclose(method.scores(tiny_task.test)[0], expected, atol=1e-4)


def test_other_features_are_scored_by_cosines(tiny_task: Task, sessions: list[ImageSet]) -> None:
    methods = []
    settings = ("pretrain.epochs=2", "pretrain.batch=24")
    for name in ("fact", "decoupled-cosine"):
        made = recipe("quick", tiny_task.benchmark, name, settings, "cec")
        method = find(name).build(made, Runtime(), 0)
        method.fit(sessions[0])
        method.learn(sessions[1])
        methods.append(method.scores(tiny_task.test))
    assert torch.equal(*methods)


@pytest.mark.parametrize(
    ("benchmark", "virtual"), [("cifar100", 40), ("miniimagenet", 40), ("cub200", 100)]
)
def test_there_is_a_virtual_prototype_for_each_class_to_come(benchmark: str, virtual: int) -> None:
    made = recipe("official", BENCHMARKS[benchmark], "fact")
    assert isinstance(made.pretrain, Features)
    assert made.pretrain.virtual == virtual
    quick = recipe("quick", BENCHMARKS[benchmark], "fact").pretrain
    assert isinstance(quick, Features)
    assert (quick.virtual, quick.reserve_from) == (virtual, 0)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="virtual must be at least 1"):
        Features(virtual=0)
    with pytest.raises(ConfigError, match="reserve_from must not be negative"):
        replace(Features(), reserve_from=-1)
    with pytest.raises(ConfigError, match="inner_alpha must be a positive number"):
        Features(inner_alpha=0)
    with pytest.raises(ConfigError, match="virtual_share must lie in"):
        Config(virtual_share=2)
    with pytest.raises(ConfigError, match="nearest must be at least 1"):
        Config(nearest=0)
