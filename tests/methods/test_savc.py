"""Test SAVC's stage 1."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import BENCHMARKS, Task
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods import find
from fewmore.methods.base import Recipe
from fewmore.methods.savc import JITTERED, Features, SavcObjective, make_projection
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.research.exam_world import TRANSFORM
from fewmore.research.recipes import recipe
from fewmore.training.runtime import Runtime

CONFIG = Features(
    epochs=2, batch=6, queue=20, projection=8, local_size=5, contrast=0.3, local_contrast=0.7
)
INDICES = torch.tensor([0, 5, 1, 9, 4, 10])


def make(config: Features, images: ImageSet, transform: Transform = TRANSFORM) -> SavcObjective:
    """Make the objective of three classes, with a network in evaluation mode."""
    backbone = build("resnet8", 0).eval()
    count = 3 * config.labels_per_class
    rows = random_prototypes(count, 64, torch.Generator().manual_seed(1))
    return SavcObjective(config, backbone, Classifier("cosine", rows), images, transform, 0)


def unit(vector: Tensor) -> list[float]:
    length = math.sqrt(sum(value * value for value in vector.tolist()))
    return [value / length for value in vector.tolist()]


def variant(image: Tensor, rotations: int, colors: int, number: int) -> Tensor:
    """Return one of the variants of an image, (1, 3, s, s), by its number among the labels."""
    rotated = torch.rot90(image, number // colors * (4 // rotations), (1, 2))
    return torch.stack([rotated[(channel + number % colors) % 3] for channel in range(3)])[None]


def naive_contrast(
    query: list[float],
    label: int,
    key: list[float],
    queue: list[tuple[list[float], int]],
    temperature: float,
) -> float:
    """Return the mean over positives of log(1 + Σ e^(negative − positive))."""

    def logit(other: list[float]) -> float:
        return sum(a * b for a, b in zip(query, other, strict=True)) / temperature

    positives = [logit(key), *(logit(other) for other, of in queue if of == label)]
    negatives = [logit(other) for other, of in queue if of != label]
    return sum(math.log(1 + sum(math.exp(n - p) for n in negatives)) for p in positives) / len(
        positives
    )


@pytest.mark.parametrize("local_labels", ["program", "own"])
@pytest.mark.parametrize(("rotations", "colors"), [(2, 1), (4, 3)])
def test_the_loss_is_that_of_a_loop_over_crops(
    tiny_images: Callable[..., ImageSet], rotations: int, colors: int, local_labels: str
) -> None:
    variants = rotations * colors
    config = replace(
        CONFIG, rotations=rotations, colors=colors, local_labels=local_labels, queue=100
    )
    images = tiny_images(3, 4)
    objective = make(config, images)
    objective.loss(INDICES, torch.Generator().manual_seed(0))  # fills a part of the queue
    queue = [
        (unit(row), int(label))
        for row, label in zip(objective.queue.features, objective.queue.labels, strict=True)
    ]
    with torch.no_grad():
        loss = objective.loss(INDICES, torch.Generator().manual_seed(2))
        generator = torch.Generator().manual_seed(2)
        view, labels = objective.views(INDICES, generator)
        logits = objective.logits(objective.backbone(view), generator)
        queries, keys, local = objective.crops(INDICES, generator)
    expected = float(F.cross_entropy(logits, labels))

    def projected(image: Tensor, number: int, network: torch.nn.Module) -> list[float]:
        with torch.no_grad():
            return unit(network(variant(image, rotations, colors, number))[0])

    keys_of = {
        (i, v): projected(keys[i], v, objective.encoder) for i in range(6) for v in range(variants)
    }
    classes = images.labels[INDICES].tolist()
    large, small = [], []
    for i in range(6):
        for v in range(variants):
            query = projected(queries[i], v, objective.projected)
            label = classes[i] * variants + v
            large.append(naive_contrast(query, label, keys_of[i, v], queue, 0.07))
        # The program lists crops, and of each crop its variants; four of the list share a key.
        listed = [(crop, v) for crop in range(4) for v in range(variants)]
        for number, (crop, v) in enumerate(listed):
            query = projected(local[crop * 6 + i], v, objective.projected)
            of = v if local_labels == "own" else number // 4
            label = classes[i] * variants + of
            small.append(naive_contrast(query, label, keys_of[i, of], queue, 0.07))
    expected += 0.3 * sum(large) / len(large) + 0.7 * sum(small) / len(small)
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_with_two_variants_the_program_labels_crops_by_their_number(
    tiny_images: Callable[..., ImageSet],
) -> None:
    """Crops 1 and 2 are unrotated and 3 and 4 rotated to it, whatever they are."""
    objective = make(CONFIG, tiny_images(3, 4))
    rows = objective.rows_of_local_crops(2, torch.device("cpu")).view(2, 4, 2)
    unrotated, rotated = [0, 1], [2, 3]
    assert rows.tolist() == [[unrotated, unrotated, rotated, rotated]] * 2
    own = make(replace(CONFIG, local_labels="own"), tiny_images(3, 4))
    rows = own.rows_of_local_crops(2, torch.device("cpu")).view(2, 4, 2)
    assert rows.tolist() == [[unrotated] * 4, [rotated] * 4]
    assert recipe("paper", BENCHMARKS["cifar100"], "savc").pretrain.local_labels == "own"  # type: ignore[attr-defined]


def test_keys_and_their_labels_enter_the_queue_in_order(
    tiny_images: Callable[..., ImageSet],
) -> None:
    images = tiny_images(3, 4)
    objective = make(CONFIG, images)
    labels = images.labels[INDICES]
    expected = [*(2 * labels).tolist(), *(2 * labels + 1).tolist()]
    objective.loss(INDICES, torch.Generator().manual_seed(2))
    assert objective.queue.labels.tolist() == [*expected, *[-1] * 8]
    objective.loss(INDICES, torch.Generator().manual_seed(3))
    assert objective.queue.labels.tolist() == [*expected[8:], *expected[4:], *expected[:8]]
    generator = torch.Generator().manual_seed(3)
    objective.views(INDICES, generator)
    keys = objective.encoder(objective.crops(INDICES, generator)[1])
    assert torch.allclose(objective.queue.features[12:18], F.normalize(keys, dim=1), atol=1e-5)


def test_the_copy_follows_backbone_and_projection(tiny_images: Callable[..., ImageSet]) -> None:
    objective = make(replace(CONFIG, encoder_momentum=0.9), tiny_images(3, 4))
    before = {name: t.clone() for name, t in objective.projected.named_parameters()}
    with torch.no_grad():
        for parameter in objective.projected.parameters():
            parameter.mul_(2)
    objective.loss(INDICES, torch.Generator().manual_seed(2)).backward()
    for name, parameter in objective.encoder.copy.named_parameters():
        assert torch.allclose(parameter, 1.1 * before[name])
        assert parameter.grad is None
    assert all(p.grad is not None for p in objective.projected.parameters())
    # The projection trains at the head's rate; the backbone's group is not the objective's.
    (group,) = objective.groups()
    assert len(group.parameters) == 3
    assert group.lr is None


def test_local_crops_are_small_and_overlap_the_key(tiny_images: Callable[..., ImageSet]) -> None:
    objective = make(replace(CONFIG, local_size=5, local_crops=3), tiny_images(3, 4))
    queries, keys, local = objective.crops(INDICES, torch.Generator().manual_seed(0))
    assert queries.shape == keys.shape == (6, 3, 8, 8)
    assert local.shape == (18, 3, 5, 5)
    assert local.is_contiguous(memory_format=torch.channels_last)
    assert objective.local_crops.jitter == (0.4, 0.4, 0.4, 0.1)
    assert objective.local_crops.grayscale == 0.2
    assert JITTERED == 0.8
    assert objective.global_crops.scale == (0.9, 1.0)
    # What else is set of the transform is for the view that is classified.
    changed = replace(TRANSFORM, policy="randaugment", cutout=2, resize=10, scale=(0.5, 0.6))
    again = make(CONFIG, tiny_images(3, 4), changed)
    assert again.global_crops == objective.global_crops


def test_the_projection_comes_from_its_generator_alone() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    projection = make_projection(16, 4, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), state)
    same = make_projection(16, 4, torch.Generator().manual_seed(3))
    for one, other in zip(projection.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.requires_grad
        assert 0.1 < float(one.detach().abs().max()) <= 0.25
    assert projection(torch.randn(2, 16)).shape == (2, 4)
    assert [tuple(weight.shape) for weight in projection.parameters()] == [(16, 16), (16,), (4, 16)]


def test_a_stopped_training_ends_with_the_same_bits(
    tiny_images: Callable[..., ImageSet], stage_1_tensors: Callable[..., dict[str, Tensor]]
) -> None:
    config = replace(CONFIG, epochs=4, lr=0.01)
    whole = stage_1_tensors(config, tiny_images(3, 4))
    resumed = stage_1_tensors(config, tiny_images(3, 4), stop_after=2)
    expected = {"queue.features", "encoder.copy.backbone.conv1.weight", "projection.0.weight"}
    assert expected <= set(whole)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize("settings", [(), ("pretrain.rotations=4", "pretrain.colors=3")])
def test_it_learns_and_is_tested_in_all_variants(
    settings: tuple[str, ...],
    tiny_task: Task,
    sessions: list[ImageSet],
    small_recipe: Callable[..., Recipe],
) -> None:
    if settings:
        views = BENCHMARKS["miniimagenet"]
        settings += ("transform.test_views=" + ",".join(Features.transform_for(views).test_views),)
    made = small_recipe("quick", tiny_task.benchmark, "savc", "pretrain.epochs=4", *settings)
    method = find("savc").build(made, Runtime(), 0)
    method.fit(sessions[0])
    method.learn(sessions[1])
    assert method.embed(tiny_task.test).shape[1] == 64 * (12 if settings else 2)
    known = tiny_task.test.labels < 6
    right = method.scores(tiny_task.test).argmax(1) == tiny_task.test.labels
    assert float(right[known].float().mean()) > 0.5


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"colors": 2}, "colors must be 1 or 3, not 2"),
        ({"queue": 0}, "queue must be at least 1, not 0"),
        ({"local_crops": 0}, "local_crops must be at least 1, not 0"),
        ({"encoder_momentum": 1.1}, r"encoder_momentum must lie in \[0, 1\], not 1.1"),
        ({"temperature": 0.0}, "temperature must be a positive number, not 0.0"),
        ({"local_scale": (0.5, 0.2)}, "local_scale must be two shares of the area"),
        ({"local_labels": "mixed"}, "local_labels must be program or own, not 'mixed'"),
    ],
)
def test_settings_that_cannot_be_are_refused(setting: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Features(**setting)  # type: ignore[arg-type]
