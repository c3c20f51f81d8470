"""Test stage 2: what an episode is made of, what it trains, and resuming."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewmore.data import augment
from fewmore.data.augment import Transform, rotate, rotate90
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.nn.adapter import Adapter, AdapterConfig
from fewmore.nn.backbones import Backbone, ResNet, build
from fewmore.random import derive_seed
from fewmore.training import pseudo_incremental as module
from fewmore.training.checkpoint import Checkpoint
from fewmore.training.pseudo_incremental import PseudoConfig, pseudo_incremental
from fewmore.training.runtime import Round, Runtime

# Four episodes in two rounds, for the images of the fixtures; none of them augmented.
CONFIG = PseudoConfig(
    lr=0.01,
    milestones=(),
    episodes=4,
    base_way=3,
    base_query=2,
    new_way=3,
    new_query=2,
    encoder_lr=0.01,
    augmented_rounds=0,
)
OTHERS = replace(
    CONFIG,
    same_classes=False,
    base_way=3,
    base_shot=1,
    base_query=4,
    new_way=2,
    new_shot=1,
    new_query=3,
)
PLAIN = replace(CONFIG, angles=())


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rounds of two episodes."""
    monkeypatch.setattr(module, "ROUND", 2)


@pytest.fixture
def images(tiny_images: Callable[..., ImageSet]) -> ImageSet:
    """Return seven base classes with eight images each."""
    return tiny_images(7, 8)


# What an episode is made of


class Pixels(Backbone):
    """Return the pixels themselves as features, which tell which image they were."""

    def __init__(self) -> None:
        super().__init__()
        self.dim = 3 * 8 * 8
        self.scale = nn.Parameter(torch.ones(()))

    def last_stage(self) -> nn.Module:
        return self

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * self.scale


@dataclass
class Episode:
    """Hold what the adapter was given, and the labels of its loss."""

    prototypes: Tensor
    queries: Tensor
    labels: Tensor


@dataclass
class Stage:
    """Run stage 2 on pixels, without changing anything, and record its episodes."""

    images: ImageSet
    transform: Transform
    monkeypatch: pytest.MonkeyPatch

    def episodes(self, config: PseudoConfig, seed: int = 0) -> list[Episode]:
        """Return the episodes of a run, in their order."""
        seen: list[Episode] = []
        adapter = Adapter(3 * 8 * 8)
        forward = adapter.forward
        cross_entropy = F.cross_entropy

        def recorded_forward(
            features: Tensor, prototypes: Tensor, generator: Generator | None = None
        ) -> Tensor:
            assert adapter.training
            seen.append(Episode(prototypes.detach(), features.detach(), torch.empty(0)))
            return forward(features, prototypes, generator)

        def recorded_loss(logits: Tensor, labels: Tensor) -> Tensor:
            seen[-1].labels = labels
            assert logits.shape == (len(seen[-1].queries), len(seen[-1].prototypes))
            return cross_entropy(logits, labels)

        with self.monkeypatch.context() as patch:
            patch.setattr(adapter, "forward", recorded_forward)
            patch.setattr(F, "cross_entropy", recorded_loss)
            pseudo_incremental(
                Pixels(),
                adapter,
                self.images,
                self.transform,
                replace(config, lr=0.0, encoder="none"),
                Runtime(),
                seed,
            )
        return seen

    def find(self, features: Tensor) -> list[tuple[int, int] | None]:
        """Return image and rotation (in quarters) of each feature; None where it is no image."""
        views = augment.test_view(self.images, torch.arange(len(self.images)), self.transform)
        known = {}
        for rotation in range(4):
            rotated = rotate90(views, torch.full((len(views),), rotation))
            for index, view in enumerate(rotated):
                known[view.flatten().numpy().tobytes()] = (index, rotation)
        return [known.get(feature.numpy().tobytes()) for feature in features]

    def images_and_rotations(self, features: Tensor) -> tuple[list[int], list[int]]:
        """Return the images of features, and their rotations; each must be an image."""
        found = [place for place in self.find(features) if place is not None]
        assert len(found) == len(features)
        return [index for index, _ in found], [rotation for _, rotation in found]

    def classes(self, images: list[int]) -> list[int]:
        """Return the classes of images."""
        return [int(self.images.labels[index]) for index in images]


@pytest.fixture
def stage(images: ImageSet, tiny_transform: Transform, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Return stage 2 with the images of this file."""
    return Stage(images, tiny_transform, monkeypatch)


@pytest.mark.parametrize(
    "config", [CONFIG, OTHERS, PLAIN], ids=["same classes", "other classes", "plain"]
)
def test_an_episode_has_its_ways_shots_and_queries(stage: Stage, config: PseudoConfig) -> None:
    """Check classes, labels and rotations: all classes differ, and no image is used twice."""
    episodes = stage.episodes(config)
    assert len(episodes) == 4
    for episode in episodes:
        ways = config.base_way + config.new_way
        assert len(episode.prototypes) == ways
        expected = [config.base_query] * config.base_way + [config.new_query] * config.new_way
        assert len(episode.queries) == sum(expected)
        support, support_rotations = stage.images_and_rotations(episode.prototypes)
        queries, query_rotations = stage.images_and_rotations(episode.queries)
        labels = episode.labels.tolist()
        assert [labels.count(label) for label in range(ways)] == expected
        assert stage.classes(queries) == [stage.classes(support)[label] for label in labels]
        assert query_rotations == [support_rotations[label] for label in labels]
        shown = list(zip(support + queries, support_rotations + query_rotations, strict=True))
        assert len(set(shown)) == len(shown)
        assert len(set(zip(stage.classes(support), support_rotations, strict=True))) == ways
        assert support_rotations[: config.base_way] == [0] * config.base_way
    assert episodes[0].prototypes.tolist() != episodes[1].prototypes.tolist()


def test_pseudo_incremental_classes_are_the_same_images_rotated(stage: Stage) -> None:
    seen = set()
    for episode in stage.episodes(replace(CONFIG, episodes=12)):
        for features, base in ((episode.prototypes, 3), (episode.queries, 6)):
            images, rotations = stage.images_and_rotations(features)
            assert images[:base] == images[base:]
            assert 0 not in rotations[base:]
            seen.update(rotations[base:])
    assert seen == {1, 2, 3}


@pytest.mark.parametrize("config", [CONFIG, OTHERS], ids=["same classes", "other classes"])
def test_each_class_of_an_episode_has_an_angle_of_its_own(
    stage: Stage, config: PseudoConfig
) -> None:
    together = [
        tuple(stage.images_and_rotations(episode.prototypes)[1][config.base_way :])
        for episode in stage.episodes(replace(config, episodes=40))
    ]
    assert len(set(together)) > 3, "more than one angle for all"
    for first in (1, 2, 3):
        assert {angles[1] for angles in together if angles[0] == first} == {1, 2, 3}


def test_or_they_are_other_classes_rotated(stage: Stage) -> None:
    for episode in stage.episodes(OTHERS):
        images, rotations = stage.images_and_rotations(episode.prototypes)
        assert len(set(stage.classes(images))) == 5
        assert rotations[:3] == [0, 0, 0]
        assert 0 not in rotations[3:]


def test_plain_meta_learning_rotates_nothing_and_takes_other_classes(stage: Stage) -> None:
    for episode in stage.episodes(PLAIN):
        images, rotations = stage.images_and_rotations(episode.prototypes)
        assert len(set(stage.classes(images))) == 6
        assert rotations == [0] * 6
        assert stage.images_and_rotations(episode.queries)[1] == [0] * 12


@pytest.mark.parametrize("angles", [(180,), (90, 450, -270), (-90, 270)])
def test_any_multiples_of_90_degrees(stage: Stage, angles: tuple[int, ...]) -> None:
    rotations = {
        rotation
        for episode in stage.episodes(replace(CONFIG, angles=angles))
        for rotation in stage.images_and_rotations(episode.prototypes)[1][3:]
    }
    assert rotations == {angle // 90 % 4 for angle in angles}


def test_small_angles(stage: Stage) -> None:
    """Check that each class has one of two angles, for its support and its queries."""
    seen = set()
    for episode in stage.episodes(replace(CONFIG, angles=(-5, 5))):
        for way in range(3):
            upright = torch.cat(
                [episode.prototypes[way : way + 1], episode.queries[2 * way : 2 * way + 2]]
            ).view(3, 3, 8, 8)
            rotated = torch.cat(
                [episode.prototypes[3 + way : 4 + way], episode.queries[6 + 2 * way : 8 + 2 * way]]
            ).view(3, 3, 8, 8)
            angles = [
                angle
                for angle in (-5, 5)
                if torch.allclose(rotated, rotate(upright, torch.full((3,), angle)), atol=1e-5)
            ]
            assert len(angles) == 1
            seen.update(angles)
    assert seen == {-5, 5}


def test_prototypes_are_means_of_the_support(stage: Stage) -> None:
    """Find each prototype among the means of images of its class that are no queries."""
    config = replace(
        CONFIG,
        episodes=2,
        same_classes=False,
        angles=(90,),
        base_shot=2,
        base_way=2,
        new_shot=3,
        new_way=2,
    )
    views = augment.test_view(stage.images, torch.arange(len(stage.images)), stage.transform)
    for episode in stage.episodes(config):
        assert len(episode.prototypes) == 4
        queries, _ = stage.images_and_rotations(episode.queries)
        classes = stage.classes(queries)
        for way, shots in ((0, 2), (1, 2), (2, 3), (3, 3)):
            others = [
                i
                for i in range(len(stage.images))
                if int(stage.images.labels[i]) == classes[2 * way] and i not in queries
            ]
            rotated = torch.rot90(views[others], 1 if way >= 2 else 0, (2, 3)).flatten(1)
            choices = torch.combinations(torch.arange(len(others)), shots)
            means = rotated[choices].mean(1)
            assert float((means - episode.prototypes[way]).abs().amax(1).min()) < 1e-5


def test_augmentation_ends_after_its_rounds(stage: Stage) -> None:
    """Augment the first of two rounds of two episodes, by crops that move images by a pixel."""

    def augmented(rounds: int) -> list[bool]:
        episodes = stage.episodes(replace(CONFIG, augmented_rounds=rounds))
        return [None in stage.find(episode.queries) for episode in episodes]

    assert augmented(1) == [True, True, False, False]
    assert augmented(100) == [True, True, True, True]


def test_the_loss_is_algorithm_1s(
    images: ImageSet, tiny_transform: Transform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute one episode line by line, with a graph for every query."""
    monkeypatch.setattr(module, "ROUND", 1)
    config = replace(CONFIG, episodes=1, same_classes=False, base_shot=2, new_shot=3, new_query=4)
    backbone = build("resnet8", 0)
    adapter = Adapter(64, generator=Generator().manual_seed(0))
    reports: list[Round] = []

    episodes = module._Episodes(images, config)
    generator = Generator().manual_seed(derive_seed(3, "pseudo-incremental", 0, "draw"))
    base, new, angles = episodes.unpack(episodes.sample(generator)[0])

    @torch.no_grad()
    def embed(index: int, rotation: int) -> Tensor:
        view = augment.test_view(images, torch.tensor([index]), tiny_transform)
        return backbone.eval()(torch.rot90(view, rotation, (2, 3)))[0].double()

    prototypes: list[Tensor] = []
    queries: list[tuple[Tensor, int]] = []
    for positions, shot, rotations in (
        (base, 2, [0, 0, 0]),
        (new, 3, [config.angles[number] // 90 for number in angles.tolist()]),
    ):
        for way in range(3):
            features = [embed(int(index), rotations[way]) for index in positions[way]]
            queries += [(feature, len(prototypes)) for feature in features[shot:]]
            prototypes.append(sum(features[:shot], torch.zeros(64)) / shot)
    assert len(queries) == 3 * 2 + 3 * 4

    with torch.no_grad():
        q, k, v, fc, bias = (
            t.double()
            for t in (
                adapter.queries[0],
                adapter.keys[0],
                adapter.values[0],
                adapter.output[0],
                adapter.bias,
            )
        )
        losses = []
        for x, label in queries:
            nodes = torch.stack([*prototypes, x])
            attention = ((nodes @ q.T) @ (nodes @ k.T).T / 8).softmax(1)
            nodes = F.layer_norm(nodes + (attention @ nodes @ v.T) @ fc.T + bias, (64,))
            logits = [
                16 * float(F.cosine_similarity(nodes[-1], node, dim=0)) for node in nodes[:-1]
            ]
            losses.append(math.log(sum(map(math.exp, logits))) - logits[label])

    pseudo_incremental(
        backbone, adapter, images, tiny_transform, config, Runtime(on_round=reports.append), 3
    )
    assert [(r.stage, r.round, r.rounds) for r in reports] == [("pseudo-incremental", 1, 1)]
    assert reports[0].loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)


# What is trained


def tensors(backbone: Backbone, adapter: Adapter) -> dict[str, Tensor]:
    """Copy the parameters and buffers of both, by name."""
    return {
        f"{name}.{key}": tensor.detach().clone()
        for name, module in (("backbone", backbone), ("adapter", adapter))
        for key, tensor in module.state_dict().items()
    }


def untrained() -> tuple[Backbone, Adapter]:
    """Build a backbone and an adapter, the same ones each time."""
    return build("resnet8", 0), Adapter(64, generator=Generator().manual_seed(0))


def learnt(
    images: ImageSet,
    transform: Transform,
    config: PseudoConfig = CONFIG,
    runtime: Runtime | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Train stage 2 and return all parameters and buffers."""
    backbone, adapter = untrained()
    pseudo_incremental(backbone, adapter, images, transform, config, runtime or Runtime(), seed)
    return tensors(backbone, adapter)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Say whether tensors are the same, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Compare what was learnt, to the rounding of batches in another memory layout."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("angles", [(), (180,), (90, 180, 270), (-5, 5)])
def test_views_are_made_once_where_the_whole_encoder_is_trained(
    images: ImageSet,
    tiny_transform: Transform,
    monkeypatch: pytest.MonkeyPatch,
    angles: tuple[int, ...],
) -> None:
    """Compare with a run that has no memory for them, and count the images that are viewed."""
    seen: list[int] = []

    def count(base: ImageSet, indices: Tensor, transform: Transform) -> Tensor:
        seen.append(len(indices))
        return augment.test_view(base, indices, transform)

    config = replace(CONFIG, angles=angles, episodes=24, augmented_rounds=1)
    monkeypatch.setattr(module, "test_view", count)
    known = learnt(images, tiny_transform, config)
    assert sum(seen) == (1 + len(angles)) * len(images)
    monkeypatch.setattr(module, "MOST_BYTES", 0)
    assert_close(known, learnt(images, tiny_transform, config))
    seen.clear()
    few = replace(config, episodes=4)  # two of them augmented
    learnt(images, tiny_transform, few)
    assert seen == [few.episode_images] * 2


@pytest.mark.parametrize("encoder", ["last", "none"])
@pytest.mark.parametrize("angles", [(), (180,), (90, 180, 270), (-5, 5)])
def test_what_is_frozen_is_computed_once(
    images: ImageSet,
    tiny_transform: Transform,
    monkeypatch: pytest.MonkeyPatch,
    encoder: str,
    angles: tuple[int, ...],
) -> None:
    """Compare with a run that has no memory for it, and count the images that pass."""
    seen: list[int] = []
    name = "before_last" if encoder == "last" else "forward"
    counted = getattr(ResNet, name)

    def count(self: ResNet, x: Tensor) -> Tensor:
        seen.append(len(x))
        return counted(self, x)

    config = replace(CONFIG, angles=angles, encoder=encoder, episodes=24, augmented_rounds=1)
    expected_images = (1 + len(angles)) * len(images)
    with monkeypatch.context() as patch:
        patch.setattr(ResNet, name, count)
        known = learnt(images, tiny_transform, config)
    augmented = 2 * 2 * 3 * 3 if encoder == "none" else 0  # the round of two augmented episodes
    assert sum(seen) == expected_images + augmented
    monkeypatch.setattr(module, "MOST_BYTES", 0)
    assert_close(known, learnt(images, tiny_transform, config))


@pytest.mark.parametrize(
    ("encoder", "trained"),
    [
        ("all", ("adapter.", "backbone.")),
        ("last", ("adapter.", "backbone.layer3.")),
        ("none", ("adapter.",)),
    ],
)
def test_only_what_the_settings_say_is_trained(
    images: ImageSet, tiny_transform: Transform, encoder: str, trained: tuple[str, ...]
) -> None:
    """Check that batch-norm statistics are never trained, too."""
    before = tensors(*untrained())
    after = learnt(images, tiny_transform, replace(CONFIG, encoder=encoder))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {
        name for name in before if name.startswith(trained) and ".running_" not in name
    }


@pytest.mark.parametrize("encoder", ["all", "last", "none"])
def test_modes_and_gradients_after_training(
    images: ImageSet, tiny_transform: Transform, encoder: str
) -> None:
    backbone, adapter = untrained()
    backbone.train()
    pseudo_incremental(
        backbone, adapter, images, tiny_transform, replace(CONFIG, encoder=encoder), Runtime(), 0
    )
    assert not backbone.training
    assert not adapter.training
    assert all(p.requires_grad for part in (backbone, adapter) for p in part.parameters())


def test_adapter_and_encoder_have_their_own_learning_rates(
    images: ImageSet, tiny_transform: Transform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take one plain step, which is proportional to the learning rate."""
    monkeypatch.setattr(module, "ROUND", 1)
    before = tensors(*untrained())
    plain = replace(CONFIG, episodes=1, momentum=0.0, nesterov=False, weight_decay=0.0)

    def step_of(name: str, lr: float, encoder_lr: float) -> Tensor:
        config = replace(plain, lr=lr, encoder_lr=encoder_lr)
        return learnt(images, tiny_transform, config)[name] - before[name]

    for name, rates, doubled, other in (
        ("adapter.values", (0.01, 0.01), (0.02, 0.01), (0.01, 0.02)),
        ("backbone.layer3.0.conv2.weight", (0.01, 0.01), (0.01, 0.02), (0.02, 0.01)),
    ):
        step = step_of(name, *rates)
        torch.testing.assert_close(step_of(name, *doubled), 2 * step, rtol=1e-3, atol=1e-6)
        assert torch.equal(step_of(name, *other), step)
    assert not bool(step_of("backbone.conv1.weight", 0.01, 0.0).any())


@pytest.mark.parametrize(
    "config",
    [CONFIG, OTHERS, PLAIN, replace(CONFIG, angles=(-5, 5))],
    ids=["same", "others", "plain", "small"],
)
def test_the_loss_falls(images: ImageSet, tiny_transform: Transform, config: PseudoConfig) -> None:
    reports: list[Round] = []
    learnt(
        images,
        tiny_transform,
        replace(config, episodes=24, augmented_rounds=2),
        Runtime(on_round=reports.append),
    )
    losses = [r.loss for r in reports]
    assert len(losses) == 12
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])


def test_the_seed_decides_the_outcome(images: ImageSet, tiny_transform: Transform) -> None:
    config = replace(CONFIG, augmented_rounds=1)
    before = torch.get_rng_state()
    one, again, other = (learnt(images, tiny_transform, config, seed=seed) for seed in (0, 0, 1))
    assert same(one, again)
    assert not same(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_is_on_in_training_and_drawn_from_the_seed(
    images: ImageSet, tiny_transform: Transform
) -> None:
    def outcome(rate: float) -> dict[str, Tensor]:
        backbone = build("resnet8", 0)
        adapter = Adapter(
            64,
            AdapterConfig(attention_dropout=rate, output_dropout=rate),
            Generator().manual_seed(0),
        ).eval()
        pseudo_incremental(backbone, adapter, images, tiny_transform, CONFIG, Runtime(), 0)
        return tensors(backbone, adapter)

    assert same(outcome(0.2), outcome(0.2))
    assert not same(outcome(0.2), outcome(0.0))


# Stopped and resumed


class Stopped(Exception):
    """Stand for a kill."""


@pytest.mark.parametrize("stopped_in", [2, 3, 4])
def test_a_stopped_run_resumes_to_the_same_bits(
    tmp_path: Path, images: ImageSet, tiny_transform: Transform, stopped_in: int
) -> None:
    """Stop before, at and after the round in which augmentation ends."""
    config = replace(CONFIG, episodes=8, augmented_rounds=2, milestones=(3,))
    whole = learnt(images, tiny_transform, config)
    assert not same(whole, learnt(images, tiny_transform, replace(config, augmented_rounds=0)))

    def stop(report: Round) -> None:
        if report.round == stopped_in:
            raise Stopped

    with pytest.raises(Stopped):
        learnt(
            images,
            tiny_transform,
            config,
            Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 0), on_round=stop),
        )
    reports: list[Round] = []
    resumed = learnt(
        images,
        tiny_transform,
        config,
        Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 0), on_round=reports.append),
    )
    assert [r.round for r in reports] == list(range(stopped_in, 5))
    assert same(whole, resumed)


def test_a_finished_stage_is_not_trained_again(
    tmp_path: Path, images: ImageSet, tiny_transform: Transform
) -> None:
    whole = learnt(
        images, tiny_transform, runtime=Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 0))
    )
    reports: list[Round] = []
    runtime = Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 0), on_round=reports.append)
    assert same(whole, learnt(images, tiny_transform, runtime=runtime))
    assert reports == []


# Settings


def test_rounds_of_fifty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUND", 50)
    rounds = [PseudoConfig(episodes=episodes).rounds for episodes in (1, 50, 120, 5000)]
    assert rounds == [1, 1, 2, 100]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        *(
            ({name: 0, "same_classes": False}, f"^pseudo: {name} .*not 0$")
            for name in (
                "episodes",
                "base_way",
                "base_shot",
                "base_query",
                "new_way",
                "new_shot",
                "new_query",
            )
        ),
        ({"encoder": "first"}, "^pseudo: encoder .*'first'$"),
        ({"encoder_lr": -1.0}, "^pseudo: encoder_lr .*-1.0$"),
        ({"augmented_rounds": -1}, "^pseudo: augmented_rounds .*-1$"),
        ({"new_way": 5}, "^pseudo: .*same_classes.* same ways, shots and queries$"),
        ({"angles": (90, 360)}, r"^pseudo: angles .*\(90, 360\)"),
        (
            {"angles": (0,), "encoder": "", "episodes": -1},
            "episodes .*-1; encoder .*; angles .*0",
        ),
        ({"lr": -1.0}, "^optimizer: lr .*-1.0$"),
    ],
)
def test_settings_that_cannot_be_are_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PseudoConfig(**changed)


@pytest.mark.parametrize(
    ("changed", "counts", "base", "new"),
    [
        ({}, [16] * 15, (15, 1, 15), (15, 1, 15)),
        ({}, [30, 9, 30, 30], (4, 1, 8), (4, 1, 8)),
        ({"base_shot": 5, "new_shot": 5}, [9, 9], (2, 5, 4), (2, 5, 4)),
        ({"same_classes": False}, [99] * 21, (10, 1, 15), (10, 1, 15)),
        ({"same_classes": False, "new_way": 3}, [99] * 10, (7, 1, 15), (3, 1, 15)),
        ({"angles": (), "base_way": 5}, [99] * 18, (5, 1, 15), (13, 1, 15)),
        ({"angles": (), "new_shot": 5}, [8] * 40, (15, 1, 7), (15, 5, 3)),
    ],
)
def test_ways_and_queries_are_fitted_to_the_base_session(
    changed: dict[str, Any], counts: list[int], base: tuple[int, ...], new: tuple[int, ...]
) -> None:
    fitted = PseudoConfig(**changed).fitted(counts)
    assert (fitted.sizes(base=True), fitted.sizes(base=False)) == (base, new)
    assert fitted.fitted(counts) == fitted


@pytest.mark.parametrize(
    ("changed", "counts", "words"),
    [
        ({"angles": ()}, [9], r"pseudo\.base_way and pseudo\.new_way.* there is 1 base class"),
        ({}, [1, 9], r"take 2 images of each class.* smallest base class has 1: add images"),
        (
            {"base_shot": 5, "new_shot": 5},
            [5],
            r"5 shots.* lower pseudo\.base_shot and pseudo\.new",
        ),
    ],
)
def test_a_base_session_that_no_episode_fits(
    changed: dict[str, Any], counts: list[int], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        PseudoConfig(**changed).fitted(counts)


def test_ways_may_differ_where_classes_do() -> None:
    assert PseudoConfig(same_classes=False, new_way=5).sizes(base=False) == (5, 1, 15)
    assert PseudoConfig(angles=(), base_shot=5).sizes(base=True) == (15, 5, 15)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"base_way": 8, "new_way": 8}, "8 classes .*7 base classes: .*ways"),
        ({"angles": (), "base_way": 4, "new_way": 4}, "8 classes .*7 base classes"),
        ({"same_classes": False, "base_way": 5}, "8 classes .*7 base classes"),
        ({"base_query": 8, "new_query": 8}, "9 images .*smallest .*8: .*shots"),
        ({"same_classes": False, "new_query": 9}, "10 images .*smallest .*8"),
    ],
)
def test_episodes_that_the_images_do_not_allow(
    images: ImageSet, tiny_transform: Transform, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        learnt(images, tiny_transform, replace(CONFIG, **changed))
