"""Stage 2: what an episode is made of, what is trained by it, and going on where it was stopped."""

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
from fewmore.nn.backbones import Backbone, build
from fewmore.random import derive_seed
from fewmore.training import pseudo_incremental as module
from fewmore.training.checkpoint import Checkpoint
from fewmore.training.loop import Round, Runtime
from fewmore.training.pseudo_incremental import PseudoConfig, pseudo_incremental

# Four episodes in two rounds, for images that are drawn by the fixtures; none of them augmented.
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
    monkeypatch.setattr(module, "ROUND", 2)


@pytest.fixture
def images(tiny_images: Callable[..., ImageSet]) -> ImageSet:
    return tiny_images(7, 8)


# What an episode is made of


class Pixels(Backbone):
    """Features that are the pixels themselves: they tell which image they were."""

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
    """What the adapter was given, and what was expected of it."""

    rows: Tensor
    queries: Tensor
    labels: Tensor


@dataclass
class Stage:
    """Runs stage 2 on pixels, without changing anything, and keeps what it saw."""

    images: ImageSet
    transform: Transform
    monkeypatch: pytest.MonkeyPatch

    def episodes(self, config: PseudoConfig, seed: int = 0) -> list[Episode]:
        seen: list[Episode] = []
        adapter = Adapter(3 * 8 * 8)
        forward, cross_entropy = adapter.forward, F.cross_entropy

        def watched_forward(
            features: Tensor, prototypes: Tensor, generator: Generator | None = None
        ) -> Tensor:
            assert adapter.training
            seen.append(Episode(prototypes.detach(), features.detach(), torch.empty(0)))
            return forward(features, prototypes, generator)

        def watched_loss(scores: Tensor, labels: Tensor) -> Tensor:
            seen[-1].labels = labels
            assert scores.shape == (len(seen[-1].queries), len(seen[-1].rows))
            return cross_entropy(scores, labels)

        with self.monkeypatch.context() as patch:
            patch.setattr(adapter, "forward", watched_forward)
            patch.setattr(F, "cross_entropy", watched_loss)
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

    def found(self, features: Tensor) -> list[tuple[int, int] | None]:
        """Which image each feature was, and by how many quarter turns it was turned; None for one that is not there."""
        views = augment.test_view(self.images, torch.arange(len(self.images)), self.transform)
        known = {}
        for turns in range(4):
            for index, view in enumerate(rotate90(views, torch.full((len(views),), turns))):
                known[view.flatten().numpy().tobytes()] = (index, turns)
        return [known.get(feature.numpy().tobytes()) for feature in features]

    def parts(self, features: Tensor) -> tuple[list[int], list[int]]:
        """Images and turns; all must be there."""
        found = [place for place in self.found(features) if place is not None]
        assert len(found) == len(features)
        return [index for index, _ in found], [turns for _, turns in found]

    def classes(self, images: list[int]) -> list[int]:
        return [int(self.images.labels[index]) for index in images]


@pytest.fixture
def stage(images: ImageSet, tiny_transform: Transform, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(images, tiny_transform, monkeypatch)


@pytest.mark.parametrize(
    "config", [CONFIG, OTHERS, PLAIN], ids=["same classes", "other classes", "plain"]
)
def test_an_episode_has_its_ways_shots_and_queries(stage: Stage, config: PseudoConfig) -> None:
    """Rows of different classes, queries of the class that their label says and turned as its row, and no image twice."""
    episodes = stage.episodes(config)
    assert len(episodes) == 4
    for episode in episodes:
        ways = config.base_way + config.new_way
        assert len(episode.rows) == ways
        assert (
            len(episode.queries)
            == config.base_way * config.base_query + config.new_way * config.new_query
        )
        rows, row_turns = stage.parts(episode.rows)
        queries, query_turns = stage.parts(episode.queries)
        labels = episode.labels.tolist()
        expected = [config.base_query] * config.base_way + [config.new_query] * config.new_way
        assert [labels.count(label) for label in range(ways)] == expected
        assert stage.classes(queries) == [stage.classes(rows)[label] for label in labels]
        assert query_turns == [row_turns[label] for label in labels]
        shown = list(zip(rows + queries, row_turns + query_turns, strict=True))
        assert len(set(shown)) == len(shown)
        assert len(set(zip(stage.classes(rows), row_turns, strict=True))) == ways
        assert row_turns[: config.base_way] == [0] * config.base_way
    assert episodes[0].rows.tolist() != episodes[1].rows.tolist()


def test_pseudo_incremental_classes_are_the_same_images_turned(stage: Stage) -> None:
    turned = set()
    for episode in stage.episodes(replace(CONFIG, episodes=12)):
        for features, ways in ((episode.rows, 3), (episode.queries, 6)):
            images, turns = stage.parts(features)
            assert images[:ways] == images[ways:]
            assert 0 not in turns[ways:]
            turned.update(turns[ways:])
    assert turned == {1, 2, 3}


def test_or_they_are_other_classes_turned(stage: Stage) -> None:
    for episode in stage.episodes(OTHERS):
        rows, turns = stage.parts(episode.rows)
        assert len(set(stage.classes(rows))) == 5
        assert turns[:3] == [0, 0, 0]
        assert 0 not in turns[3:]


def test_plain_meta_learning_turns_nothing_and_takes_other_classes(stage: Stage) -> None:
    for episode in stage.episodes(PLAIN):
        rows, turns = stage.parts(episode.rows)
        assert len(set(stage.classes(rows))) == 6
        assert turns == [0] * 6
        assert stage.parts(episode.queries)[1] == [0] * 12


@pytest.mark.parametrize("angles", [(180,), (90, 450, -270), (-90, 270)])
def test_any_whole_quarter_turns(stage: Stage, angles: tuple[int, ...]) -> None:
    wanted = {angle // 90 % 4 for angle in angles}
    turns = {
        t
        for episode in stage.episodes(replace(CONFIG, angles=angles))
        for t in stage.parts(episode.rows)[1][3:]
    }
    assert turns == wanted


def test_small_angles(stage: Stage) -> None:
    """Each class by its own of the two, support and queries alike."""
    met = set()
    for episode in stage.episodes(replace(CONFIG, angles=(-5, 5))):
        for way in range(3):
            straight = torch.cat(
                [episode.rows[way : way + 1], episode.queries[2 * way : 2 * way + 2]]
            ).view(3, 3, 8, 8)
            turned = torch.cat(
                [episode.rows[3 + way : 4 + way], episode.queries[6 + 2 * way : 8 + 2 * way]]
            ).view(3, 3, 8, 8)
            angles = [
                a
                for a in (-5, 5)
                if torch.allclose(turned, rotate(straight, torch.full((3,), a)), atol=1e-5)
            ]
            assert len(angles) == 1
            met.update(angles)
    assert met == {-5, 5}


def test_rows_are_means_of_the_support(stage: Stage) -> None:
    """Of some two or three images of the class that are no queries."""
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
        assert len(episode.rows) == 4
        queries, _ = stage.parts(episode.queries)
        own_class = stage.classes(queries)
        for way, shots in ((0, 2), (1, 2), (2, 3), (3, 3)):
            others = [
                i
                for i in range(len(stage.images))
                if int(stage.images.labels[i]) == own_class[2 * way] and i not in queries
            ]
            turned = torch.rot90(views[others], 1 if way >= 2 else 0, (2, 3)).flatten(1)
            choices = torch.combinations(torch.arange(len(others)), shots)
            means = turned[choices].mean(1)
            assert float((means - episode.rows[way]).abs().amax(1).min()) < 1e-5


def test_augmentation_ends_after_its_rounds(stage: Stage) -> None:
    """Of two rounds of two episodes the first is augmented: by crops, here, which move images by a pixel."""
    augmented = [
        None in stage.found(e.queries) for e in stage.episodes(replace(CONFIG, augmented_rounds=1))
    ]
    assert augmented == [True, True, False, False]
    assert all(
        None in stage.found(e.queries)
        for e in stage.episodes(replace(CONFIG, augmented_rounds=100))
    )


def test_the_loss_is_algorithm_1s(
    images: ImageSet, tiny_transform: Transform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One episode, line by line, with a graph for every query."""
    monkeypatch.setattr(module, "ROUND", 1)
    config = replace(CONFIG, episodes=1, same_classes=False, base_shot=2, new_shot=3, new_query=4)
    backbone, adapter = build("resnet8", 0), Adapter(64, generator=Generator().manual_seed(0))
    told: list[Round] = []

    episodes = module._Episodes(images, config)
    row = episodes.draw(Generator().manual_seed(derive_seed(3, "pseudo-incremental", 0, "draw")))[0]
    base, new, angles = episodes.unpacked(row)

    @torch.no_grad()
    def embedded(index: int, turns: int) -> Tensor:
        view = augment.test_view(images, torch.tensor([index]), tiny_transform)
        return backbone.eval()(torch.rot90(view, turns, (2, 3)))[0].double()

    weights, tested, label = [], [], 0
    for drawn, shot, turns in (
        (base, 2, [0, 0, 0]),
        (new, 3, [config.angles[number] // 90 for number in angles.tolist()]),
    ):
        for way in range(3):
            features = [embedded(int(index), turns[way]) for index in drawn[way]]
            weights.append(sum(features[:shot], torch.zeros(64)) / shot)
            tested += [(feature, label) for feature in features[shot:]]
            label += 1
    assert len(tested) == 3 * 2 + 3 * 4

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
        for x, label in tested:
            nodes = torch.stack([*weights, x])
            attention = ((nodes @ q.T) @ (nodes @ k.T).T / 8).softmax(1)
            nodes = F.layer_norm(nodes + (attention @ nodes @ v.T) @ fc.T + bias, (64,))
            scores = [
                16 * float(F.cosine_similarity(nodes[-1], node, dim=0)) for node in nodes[:-1]
            ]
            losses.append(math.log(sum(map(math.exp, scores))) - scores[label])

    pseudo_incremental(
        backbone, adapter, images, tiny_transform, config, Runtime(on_round=told.append), 3
    )
    assert [(r.stage, r.round, r.rounds) for r in told] == [("pseudo-incremental", 1, 1)]
    assert told[0].loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)


# What is trained


def tensors(backbone: Backbone, adapter: Adapter) -> dict[str, Tensor]:
    found = {f"backbone.{name}": t for name, t in backbone.state_dict().items()} | {
        f"adapter.{n}": t for n, t in adapter.state_dict().items()
    }
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def untrained() -> tuple[Backbone, Adapter]:
    return build("resnet8", 0), Adapter(64, generator=Generator().manual_seed(0))


def learnt(
    images: ImageSet,
    transform: Transform,
    config: PseudoConfig = CONFIG,
    runtime: Runtime | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    backbone, adapter = untrained()
    pseudo_incremental(backbone, adapter, images, transform, config, runtime or Runtime(), seed)
    return tensors(backbone, adapter)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


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
    """And never the statistics of the batch norms."""
    before = tensors(*untrained())
    after = learnt(images, tiny_transform, replace(CONFIG, encoder=encoder))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {
        name for name in before if name.startswith(trained) and ".running_" not in name
    }


@pytest.mark.parametrize("encoder", ["all", "last", "none"])
def test_what_it_leaves_behind(images: ImageSet, tiny_transform: Transform, encoder: str) -> None:
    backbone, adapter = untrained()
    backbone.train()
    pseudo_incremental(
        backbone, adapter, images, tiny_transform, replace(CONFIG, encoder=encoder), Runtime(), 0
    )
    assert not backbone.training
    assert not adapter.training
    assert all(p.requires_grad for part in (backbone, adapter) for p in part.parameters())


def test_adapter_and_encoder_have_rates_of_their_own(
    images: ImageSet, tiny_transform: Transform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One plain step: what changes is in proportion to the rate."""
    monkeypatch.setattr(module, "ROUND", 1)
    before = tensors(*untrained())
    plain = replace(CONFIG, episodes=1, momentum=0.0, nesterov=False, weight_decay=0.0)

    def moved(name: str, lr: float, encoder_lr: float) -> Tensor:
        return (
            learnt(images, tiny_transform, replace(plain, lr=lr, encoder_lr=encoder_lr))[name]
            - before[name]
        )

    for name, rates, doubled, other in (
        ("adapter.values", (0.01, 0.01), (0.02, 0.01), (0.01, 0.02)),
        ("backbone.layer3.0.conv2.weight", (0.01, 0.01), (0.01, 0.02), (0.02, 0.01)),
    ):
        step = moved(name, *rates)
        torch.testing.assert_close(moved(name, *doubled), 2 * step, rtol=1e-3, atol=1e-6)
        assert torch.equal(moved(name, *other), step)
    assert not bool(moved("backbone.conv1.weight", 0.01, 0.0).any())


@pytest.mark.parametrize(
    "config",
    [CONFIG, OTHERS, PLAIN, replace(CONFIG, angles=(-5, 5))],
    ids=["same", "others", "plain", "small"],
)
def test_it_learns(images: ImageSet, tiny_transform: Transform, config: PseudoConfig) -> None:
    told: list[Round] = []
    learnt(
        images,
        tiny_transform,
        replace(config, episodes=24, augmented_rounds=2),
        Runtime(on_round=told.append),
    )
    losses = [r.loss for r in told]
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
    pass


@pytest.mark.parametrize("stopped_in", [2, 3, 4])
def test_a_stopped_run_goes_on_to_the_same_bits(
    tmp_path: Path, images: ImageSet, tiny_transform: Transform, stopped_in: int
) -> None:
    """Before, at and after the round in which augmentation ends."""
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
    told: list[Round] = []
    resumed = learnt(
        images,
        tiny_transform,
        config,
        Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 0), on_round=told.append),
    )
    assert [r.round for r in told] == list(range(stopped_in, 5))
    assert same(whole, resumed)


def test_a_stage_that_was_done_is_taken_as_it_is(
    tmp_path: Path, images: ImageSet, tiny_transform: Transform
) -> None:
    whole = learnt(
        images, tiny_transform, runtime=Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 0))
    )
    told: list[Round] = []
    runtime = Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 0), on_round=told.append)
    assert same(whole, learnt(images, tiny_transform, runtime=runtime))
    assert told == []


# Settings


def test_rounds_of_fifty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUND", 50)
    assert [PseudoConfig(episodes=episodes).rounds for episodes in (1, 50, 120, 5000)] == [
        1,
        1,
        2,
        100,
    ]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        *(
            ({name: 0, "same_classes": False}, f"^pseudo: {name} must be at least 1, not 0$")
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
        ({"encoder": "first"}, "^pseudo: encoder must be all, last or none, not 'first'$"),
        ({"encoder_lr": -1.0}, "^pseudo: encoder_lr must not be negative, and is -1.0$"),
        ({"augmented_rounds": -1}, "^pseudo: augmented_rounds must not be negative, and is -1$"),
        (
            {"new_way": 5},
            "^pseudo: with same_classes, pseudo-base and pseudo-incremental classes need the same ways, shots and queries$",
        ),
        (
            {"angles": (90, 360)},
            r"^pseudo: angles must turn an image, and \(90, 360\) holds one that does not$",
        ),
        (
            {"angles": (0,), "encoder": "", "episodes": -1},
            "episodes must be .*; encoder must be .*; angles must turn",
        ),
        ({"lr": -1.0}, "^optimiser: lr must be a number of at least 0, not -1.0$"),
    ],
)
def test_settings_that_cannot_be_are_named(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        PseudoConfig(**changed)


def test_ways_may_differ_where_classes_do() -> None:
    assert PseudoConfig(same_classes=False, new_way=5).sizes(base=False) == (5, 1, 15)
    assert PseudoConfig(angles=(), base_shot=5).sizes(base=True) == (15, 5, 15)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"base_way": 8, "new_way": 8},
            "an episode of 8 classes was asked for, and there are 7 base classes: lower the ways",
        ),
        (
            {"angles": (), "base_way": 4, "new_way": 4},
            "an episode of 8 classes was asked for, and there are 7",
        ),
        (
            {"same_classes": False, "base_way": 5},
            "an episode of 8 classes was asked for, and there are 7",
        ),
        (
            {"base_query": 8, "new_query": 8},
            "an episode takes 9 images a class, and the smallest base class has 8: lower shots",
        ),
        (
            {"same_classes": False, "new_query": 9},
            "an episode takes 10 images a class, and the smallest base class has 8",
        ),
    ],
)
def test_episodes_that_the_images_do_not_allow(
    images: ImageSet, tiny_transform: Transform, changed: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        learnt(images, tiny_transform, replace(CONFIG, **changed))
