"""Test S3C: its map, its random prototypes, and what new sessions train."""

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
from fewmore.methods import find, s3c
from fewmore.methods.base import Recipe
from fewmore.methods.s3c import Features, S3CObjective, map_features, sample_prototypes
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.research.recipes import recipe
from fewmore.training.runtime import Runtime
from fewmore.training.views import rotation_copies, several_views

DIM = 64


def naive_cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def naive_map(tensors: dict[str, Tensor], feature: Tensor) -> Tensor:
    """Return the attention of one image to itself, a residual and a layer norm."""
    attention = 1.0  # the softmax over a single image
    added = tensors["output"] @ (attention * (tensors["values"] @ feature)) + tensors["bias"]
    total = feature + added
    centred = total - total.mean()
    deviation = math.sqrt(float((centred * centred).mean()) + 1e-5)
    return tensors["gain"] * centred / deviation + tensors["shift"]


def make_objective(
    images: ImageSet, transform: Transform, config: Features, classes: int
) -> S3CObjective:
    labels = classes * config.labels_per_class
    rows = random_prototypes(labels, DIM, torch.Generator().manual_seed(1))
    classifier = Classifier("cosine", rows)
    return S3CObjective(config, build("resnet8", 0), classifier, images, transform, 0)


def random_map(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"values": (8, 8), "output": (8, 8), "bias": (8,), "gain": (8,), "shift": (8,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_the_map_is_an_image_attending_to_itself() -> None:
    features, tensors = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)), random_map()
    mapped = map_features(tensors, features)
    expected = torch.stack([naive_map(tensors, feature) for feature in features])
    assert torch.allclose(mapped, expected, atol=1e-4)


def test_dropout_takes_from_what_the_map_adds_and_keeps_its_mean() -> None:
    tensors = {**random_map(), "gain": torch.ones(8), "shift": torch.zeros(8)}
    tensors["values"] = tensors["output"] = torch.eye(8)
    kept = s3c._kept(torch.zeros(2000, 8), 0.5, torch.Generator().manual_seed(0))
    assert sorted(set(kept.flatten().tolist())) == [0.0, 2.0]
    assert float(kept.mean()) == pytest.approx(1, abs=0.05)
    features = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    first, again, other = (
        map_features(tensors, features, 0.5, torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_prototypes_are_drawn_with_the_deviation_softplus_of_sigma_less_four() -> None:
    mean = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    sigma = torch.tensor([[0.0, 4.0, 8.0], [-2.0, 1.0, 5.0]])
    generator = torch.Generator().manual_seed(1)
    drawn = torch.stack([sample_prototypes(mean, sigma, generator) for _ in range(4000)])
    for row in range(2):
        for column in range(3):
            expected = math.log(1 + math.exp(float(sigma[row, column]) - 4))
            values = drawn[:, row, column]
            assert float(values.std()) == pytest.approx(expected, rel=0.06)
            assert float(values.mean()) == pytest.approx(
                float(mean[row, column]), abs=5 * expected / math.sqrt(4000)
            )


def test_the_loss_is_the_cross_entropy_of_rotations_by_drawn_prototypes(
    tiny_images: Callable[..., ImageSet],
    tiny_transform: Transform,
    naive: object,
) -> None:
    images, config = tiny_images(3, 4), Features(batch=6, scale=10, dropout=0.4)
    objective = make_objective(images, tiny_transform, config, 3)
    assert float(objective.classifier.prototypes.detach().std()) == pytest.approx(0.01, rel=0.1)
    indices = torch.tensor([0, 5, 1, 9, 4, 10])
    with torch.no_grad():
        objective.deviations.sigma.fill_(3.0)
        loss = objective.loss(indices, torch.Generator().manual_seed(2))
        generator = torch.Generator().manual_seed(2)
        view, labels = several_views(images, indices, tiny_transform, generator, 1)
        view, labels = rotation_copies(view, labels, 4)
        assert labels.tolist()[6:8] == [1, 5]  # rotation 1 of the classes 0 and 1
        tensors = dict(objective.map.named_parameters())
        features = map_features(tensors, objective.backbone(view), 0.4, generator)
        rows = objective.classifier.prototypes
        rows = sample_prototypes(rows, objective.deviations.sigma, generator)
        logits = torch.tensor([[10 * naive_cosine(f, row) for row in rows] for f in features])
    expected = naive.cross_entropy(logits, labels)  # type: ignore[attr-defined]
    assert float(loss) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("residual", [True, False])
def test_gradients_reach_all_that_is_trained(
    tiny_images: Callable[..., ImageSet], tiny_transform: Transform, residual: bool
) -> None:
    config = Features(batch=6, residual=residual)
    objective = make_objective(tiny_images(3, 4), tiny_transform, config, 3)
    objective.loss(torch.arange(12), torch.Generator().manual_seed(0)).backward()
    trained = [p for module in objective.modules.values() for p in module.parameters()]
    trained += [*objective.backbone.parameters(), objective.classifier.prototypes]
    assert all(p.grad is not None and bool(p.grad.any()) for p in trained)
    assert ("map" in objective.modules) == residual
    assert ("map.values" in objective.kept()) == residual
    assert config.unread.get("dropout") == (None if residual else "residual=false")


@pytest.fixture
def small(tiny_task: Task, small_recipe: Callable[..., Recipe]) -> Recipe:
    """Return a recipe for tiny_task."""
    return small_recipe("quick", tiny_task.benchmark, "s3c", "mean_weight=3")


def test_base_classes_have_the_trained_prototype_of_each_rotation(
    small: Recipe, sessions: list[ImageSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[dict[str, Tensor]] = []
    plain = S3CObjective.kept

    def record(objective: S3CObjective) -> dict[str, Tensor]:
        kept.append({name: tensor.detach().clone() for name, tensor in plain(objective).items()})
        return plain(objective)

    monkeypatch.setattr(S3CObjective, "kept", record)
    for views in (("plain", "rot90", "rot180", "rot270"), ("plain", "rot180")):
        transform = replace(small.transform, test_views=views)
        method = find("s3c").build(replace(small, transform=transform), Runtime(), 0)
        method.fit(sessions[0])
        rows, sigma = method.network.classifier.prototypes, method.network.kept["sigma"]
        for number, label in enumerate({4: (0, 1, 2, 3), 2: (0, 2)}[len(views)]):
            part = slice(DIM * number, DIM * (number + 1))
            assert torch.equal(rows[:, part], kept[-1]["rows"][label::4])
            assert torch.equal(sigma[:, part], kept[-1]["sigma"][label::4])
    means = method.embed(sessions[0])[:, :DIM]
    expected = torch.stack([means[sessions[0].labels == c].mean(0) for c in range(4)])
    assert torch.allclose(method.network.kept["means"], expected, atol=1e-5)


def test_a_session_trains_all_prototypes_on_shots_and_stored_means(
    small: Recipe,
    sessions: list[ImageSet],
    naive: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Take the loss that the session trains by, and compare it with loops over shots and means."""
    method = find("s3c").build(small, Runtime(), 0)
    method.fit(sessions[0])
    calls: list[tuple[float, float, int]] = []
    network, session = method.network, sessions[1]
    raw, means = network.embed(session), network.kept["means"]
    old = network.classifier.prototypes.detach().clone()

    def look(stage, modules, parameters, loss_of, images, *rest) -> None:
        head = modules["head"]
        assert len(parameters) == 2
        assert torch.equal(head.rows[:4], old)
        assert not bool(head.sigma[4:].any())
        loss = loss_of(torch.arange(images), torch.Generator().manual_seed(3))
        loss.backward()
        assert bool(head.rows.grad.any(1).all())
        assert bool(head.sigma.grad.any(1).all())
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            shots = method._mapped(raw, generator)
            rows = sample_prototypes(head.rows, head.sigma, generator)
            logits, labels = [], []
            for image in range(images):
                for view in range(4):
                    feature = shots[image, DIM * view : DIM * (view + 1)]
                    logits.append(all_scores(feature, rows))
                    labels.append(4 * (4 + int(session.labels[image])) + view)
            of_shots = naive.cross_entropy(torch.tensor(logits), torch.tensor(labels))
            logits = [all_scores(mean, rows) for mean in means]
            of_means = naive.cross_entropy(torch.tensor(logits), 4 * torch.arange(4))
        calls.append((float(loss.detach()), of_shots + 3 * of_means, images))

    def all_scores(feature: Tensor, rows: Tensor) -> list[float]:
        return [
            16 * naive_cosine(feature, rows[label // 4, DIM * (label % 4) : DIM * (label % 4 + 1)])
            for label in range(4 * len(rows))
        ]

    monkeypatch.setattr(s3c, "train_epochs", look)
    method.learn(session)
    [(loss, expected, images)] = calls
    assert images == len(session)
    assert loss == pytest.approx(expected, rel=1e-4)
    # Without training, the new prototypes are the means of the shots, those of each view apart.
    shots = method.embed(session)
    new = torch.stack([shots[session.labels == c].mean(0) for c in range(2)])
    assert torch.allclose(network.classifier.prototypes[4:], new, atol=1e-5)
    assert torch.allclose(network.kept["means"][4:], new[:, :DIM], atol=1e-5)


def test_a_session_moves_prototypes_and_testing_has_no_noise(
    small: Recipe, tiny_task: Task, sessions: list[ImageSet]
) -> None:
    method = find("s3c").build(small, Runtime(), 0)
    method.fit(sessions[0])
    before, sigma = method.network.classifier.prototypes.detach(), method.network.kept["sigma"]
    method.learn(sessions[1])
    after = method.network.classifier.prototypes.detach()
    assert bool((after[:4] != before).any(1).all())
    assert bool((method.network.kept["sigma"][:4] != sigma).any(1).all())
    features, scores = method.embed(tiny_task.test), method.scores(tiny_task.test)
    parts, rows = features.view(-1, 4, DIM), after.view(-1, 4, DIM)
    expected = sum(16 * naive_cosine(parts[0, k], rows[5, k]) for k in range(4)) / 4
    assert float(scores[0, 5]) == pytest.approx(expected, abs=1e-3)
    one = method.also_scores_of(features)["one_view"]
    assert float(one[0, 5]) == pytest.approx(16 * naive_cosine(parts[0, 0], rows[5, 0]), abs=1e-3)


def test_other_features_have_no_map_and_start_from_means(
    tiny_task: Task, sessions: list[ImageSet]
) -> None:
    settings = ("pretrain.epochs=2", "pretrain.batch=24", "session.epochs=2")
    made = recipe("quick", tiny_task.benchmark, "s3c", settings, "cec")
    method = find("s3c").build(made, Runtime(), 0)
    method.fit(sessions[0])
    features = method.network.embed(sessions[0])
    assert torch.equal(method.embed(sessions[0]), features)
    means = torch.stack([features[sessions[0].labels == c].mean(0) for c in range(4)])
    assert torch.allclose(method.network.classifier.prototypes, means, atol=1e-5)
    method.learn(sessions[1])
    assert method.scores(tiny_task.test).shape == (len(tiny_task.test), 6)


@pytest.mark.parametrize(
    ("benchmark", "lr", "weight"),
    [("cifar100", 0.001, 5), ("miniimagenet", 0.001, 1), ("cub200", 0.0003, 5)],
)
def test_the_official_sessions(benchmark: str, lr: float, weight: float) -> None:
    config = recipe("official", BENCHMARKS[benchmark], "s3c").method
    assert (config.session.lr, config.mean_weight) == (lr, weight)


def test_a_dropout_of_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="dropout must lie in"):
        Features(dropout=1.0)
