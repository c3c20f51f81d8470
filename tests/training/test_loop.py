"""The training loop: its arithmetic, its randomness, and going on where it was stopped."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor, nn

from fewmore.errors import CheckpointError, ConfigError
from fewmore.random import derive_seed
from fewmore.training.checkpoint import Checkpoint
from fewmore.training.loop import (
    EpochsConfig,
    Group,
    Round,
    Runtime,
    SGDConfig,
    _Turns,
    shuffled,
    train,
    train_epochs,
)

INPUTS = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(24) % 3


def network(seed: int = 0) -> nn.Sequential:
    """With weights, and with buffers that training changes."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def noisy_loss(net: nn.Module) -> Callable[[Tensor, Generator], Tensor]:
    """A loss that draws at every step, as augmentation does."""

    def loss_of(rows: Tensor, generator: Generator) -> Tensor:
        noise = 0.1 * torch.randn(len(rows), 5, generator=generator)
        return F.cross_entropy(net(INPUTS[rows] + noise), LABELS[rows])

    return loss_of


def learn(
    net: nn.Module,
    runtime: Runtime | None = None,
    seed: int = 0,
    stage: str = "stage",
    **changed: object,
) -> None:
    """Six epochs of four steps."""
    config = EpochsConfig(**{"epochs": 6, "batch": 6, "milestones": (2, 4), **changed})  # type: ignore[arg-type]
    train_epochs(
        stage,
        {"net": net},
        list(net.parameters()),
        noisy_loss(net),
        24,
        config,
        runtime or Runtime(),
        seed,
    )


# Settings


def test_the_rate_falls_at_milestones() -> None:
    optimiser = SGDConfig(milestones=(2, 5), decay=0.1)
    assert [optimiser.rate(round_) for round_ in range(7)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]
    )
    assert SGDConfig().rate(1000) == 1


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"lr": -0.1}, "optimiser: lr must be a number of at least 0, not -0.1"),
        ({"lr": float("nan")}, "lr must be a number of at least 0, not nan"),
        ({"lr": float("inf")}, "lr must be a number of at least 0, not inf"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), not 1.0"),
        ({"momentum": -0.5}, r"momentum must lie in \[0, 1\), not -0.5"),
        ({"momentum": 0.0}, "nesterov needs a momentum above 0"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative, and is -1.0"),
        ({"lr": -1.0, "weight_decay": -1.0}, r"lr must .*; weight_decay must"),
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        (
            {"epochs": -1, "batch": 0},
            "epochs must be at least 1, not -1; batch must be at least 1, not 0",
        ),
    ],
)
def test_settings_that_cannot_be_are_named(changed: dict[str, float], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        EpochsConfig(**changed)  # type: ignore[arg-type]


def test_settings_at_their_limits_are_allowed() -> None:
    EpochsConfig(lr=0.0, momentum=0.0, nesterov=False, weight_decay=0.0, epochs=1, batch=1)


# Order and randomness


@settings(max_examples=100, deadline=None)
@given(images=st.integers(1, 200), batch=st.integers(1, 64), seed=st.integers(0, 2**40))
def test_shuffled_shows_each_image_at_most_once(images: int, batch: int, seed: int) -> None:
    rows = shuffled(images, batch, torch.Generator().manual_seed(seed))
    used = min(batch, images)
    assert rows.shape == (images // used, used)
    shown = rows.flatten().tolist()
    assert len(set(shown)) == len(shown)
    assert set(shown) <= set(range(images))
    assert torch.equal(rows, shuffled(images, batch, torch.Generator().manual_seed(seed)))


def test_shuffled_is_in_random_order_and_leaves_other_images_each_time() -> None:
    generator = torch.Generator().manual_seed(0)
    epochs = [shuffled(10, 4, generator).flatten().tolist() for _ in range(40)]
    assert len({tuple(order) for order in epochs}) == 40
    assert {image for order in epochs for image in set(range(10)) - set(order)} == set(range(10))


def test_a_seed_depends_on_all_its_parts_and_on_nothing_else() -> None:
    assert (
        derive_seed(0, "pretrain", 3, "draw") == 54739992746266122
    )  # the same in every process and on every machine
    assert (
        len(
            {
                derive_seed(*parts)
                for parts in [(0, "a"), (1, "a"), (0, "b"), ("0", "a"), (0, "a", 0), ("a", 0)]
            }
        )
        == 6
    )
    assert all(0 <= derive_seed(number) < 2**56 for number in range(100))


def test_the_same_seed_gives_the_same_network_bit_for_bit() -> None:
    one, other = network(), network()
    learn(one, seed=3)
    torch.manual_seed(99)  # not what training draws from
    learn(other, seed=3)
    assert same(tensors(one), tensors(other))


@pytest.mark.parametrize("changed", [{"seed": 4}, {"stage": "another"}])
def test_another_seed_or_stage_gives_another_network(changed: dict[str, object]) -> None:
    one, other = network(), network()
    learn(one, seed=3)
    learn(other, **{"seed": 3, **changed})  # type: ignore[arg-type]
    assert not same(tensors(one), tensors(other))


def test_training_leaves_the_global_generator_alone() -> None:
    net = network()
    before = torch.get_rng_state()
    learn(net)
    assert torch.equal(torch.get_rng_state(), before)


# Arithmetic


@pytest.mark.parametrize(
    "optimiser",
    [
        SGDConfig(lr=0.1, milestones=(3, 6)),
        SGDConfig(lr=0.05, nesterov=False),
        SGDConfig(lr=0.2, momentum=0.0, nesterov=False, weight_decay=0.0),
        SGDConfig(lr=0.1, momentum=0.5, weight_decay=0.1, milestones=(1,), decay=0.5),
    ],
)
def test_every_step_is_plain_sgd(optimiser: SGDConfig) -> None:
    """One step a round, so that the weights can be compared after each."""
    net, plain = network(), network()
    shown: list[Tensor] = []
    after: list[dict[str, Tensor]] = []

    def draw(generator: Generator) -> Tensor:
        shown.append(torch.randint(0, 24, (1, 6), generator=generator))
        return shown[-1]

    def loss_of(rows: Tensor, generator: Generator) -> Tensor:
        return F.cross_entropy(net(INPUTS[rows]), LABELS[rows])

    runtime = Runtime(on_round=lambda report: after.append(tensors(net)))
    groups = [Group(list(net[0].parameters())), Group(list(net[3].parameters()), lr=0.01)]
    train("stage", {"net": net}, groups, loss_of, draw, 8, optimiser, runtime, 0)

    options = {
        "momentum": optimiser.momentum,
        "nesterov": optimiser.nesterov,
        "weight_decay": optimiser.weight_decay,
    }
    sgd = torch.optim.SGD(
        [
            {"params": plain[0].parameters(), "lr": optimiser.lr},
            {"params": plain[3].parameters(), "lr": 0.01},
        ],
        **options,
    )
    frozen = tensors(plain[1])
    for step, rows in enumerate(shown):
        for group in sgd.param_groups:
            group["lr"] *= optimiser.decay if step in optimiser.milestones else 1
        sgd.zero_grad()
        F.cross_entropy(plain(INPUTS[rows[0]]), LABELS[rows[0]]).backward()
        sgd.step()
        for name, tensor in tensors(plain).items():
            assert torch.allclose(after[step][name], tensor, rtol=1e-5, atol=1e-7), (step, name)
    assert torch.equal(
        after[-1]["1.weight"], frozen["weight"]
    )  # what is in no group is not trained
    assert len(after) == 8


def test_training_lowers_the_loss() -> None:
    losses: list[float] = []
    learn(
        network(),
        Runtime(on_round=lambda report: losses.append(report.loss)),
        epochs=30,
        lr=0.05,
        milestones=(),
    )
    assert losses[-1] < 0.5 * losses[0]


def test_a_loss_that_is_no_number_stops_the_training(tmp_path: Path) -> None:
    net = network()
    checkpoint = Checkpoint(tmp_path / "checkpoint", every=0)

    def loss_of(rows: Tensor, generator: Generator) -> Tensor:
        return noisy_loss(net)(rows, generator) * float("nan")

    with pytest.raises(
        ConfigError,
        match=r"features: the loss became nan in round 1; lower the learning rate \(now 0.1\)",
    ):
        train_epochs(
            "features",
            {"net": net},
            list(net.parameters()),
            loss_of,
            24,
            EpochsConfig(batch=6),
            Runtime(checkpoint=checkpoint),
            0,
        )
    assert not checkpoint.path.exists()


def test_a_rate_that_is_too_high_is_named() -> None:
    with pytest.raises(
        ConfigError,
        match=r"stage: the loss became (nan|inf) in round \d; lower the learning rate \(now 1e\+30\)",
    ):
        learn(network(), lr=1e30, milestones=())


# Reports


def test_every_round_is_reported() -> None:
    reports: list[Round] = []
    net = network()
    learn(net, Runtime(on_round=reports.append), lr=0.5, decay=0.1, stage="features")
    assert [(r.stage, r.round, r.rounds) for r in reports] == [
        ("features", number, 6) for number in range(1, 7)
    ]
    assert [r.lr for r in reports] == pytest.approx([0.5, 0.5, 0.05, 0.05, 0.005, 0.005])
    assert all(r.seconds >= 0 for r in reports)


def test_the_reported_loss_is_the_mean_over_the_rounds_steps() -> None:
    losses: list[float] = []
    reports: list[Round] = []
    net = network()

    def loss_of(rows: Tensor, generator: Generator) -> Tensor:
        loss = noisy_loss(net)(rows, generator)
        losses.append(float(loss.detach()))
        return loss

    config = EpochsConfig(epochs=3, batch=6)
    train_epochs(
        "stage",
        {"net": net},
        list(net.parameters()),
        loss_of,
        24,
        config,
        Runtime(on_round=reports.append),
        0,
    )
    assert [r.loss for r in reports] == pytest.approx(
        [sum(losses[i : i + 4]) / 4 for i in (0, 4, 8)]
    )


def test_a_cpu_computes_in_full_precision() -> None:
    seen = []
    net = network()
    net.register_forward_hook(lambda *parts: seen.append(parts[2].dtype))
    learn(net, Runtime(half=True), epochs=1)
    assert set(seen) == {torch.float32}


# Losses that change on the way


def learn_with_two_losses(net: nn.Module, used: list[str], runtime: Runtime) -> None:
    def loss_of(rows: Tensor, generator: Generator, name: str) -> Tensor:
        used.append(name)
        return noisy_loss(net)(rows, generator) * {"first": 1.0, "second": 0.5}[name]

    losses = {0: partial(loss_of, name="first"), 3: partial(loss_of, name="second")}
    train(
        "stage",
        {"net": net},
        [Group(list(net.parameters()))],
        losses,
        partial(shuffled, 24, 12),
        6,
        SGDConfig(),
        runtime,
        0,
    )


def test_each_loss_counts_from_its_round_on() -> None:
    used: list[str] = []
    learn_with_two_losses(network(), used, Runtime())
    assert used == ["first"] * 6 + ["second"] * 6  # two steps a round


@pytest.mark.parametrize("done", [1, 2, 3, 4])
def test_a_stopped_training_goes_on_with_the_right_loss(tmp_path: Path, done: int) -> None:
    whole, resumed = network(), network()
    learn_with_two_losses(whole, [], Runtime())
    for net, on_round in ((network(), stop_in(done + 1)), (resumed, lambda report: None)):
        with suppress(Stopped):
            learn_with_two_losses(
                net,
                [],
                Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 0), on_round=on_round),
            )
    assert same(tensors(resumed), tensors(whole))


# Going on


class Stopped(Exception):
    """Stands for a kill."""


def stop_in(round_: int) -> Callable[[Round], None]:
    def on_round(report: Round) -> None:
        if report.round == round_:
            raise Stopped

    return on_round


def stopped(path: Path, round_: int, every: float = 0, **changed: object) -> None:
    """A training that is stopped in a round, before the round is saved."""
    with pytest.raises(Stopped):
        learn(
            network(),
            Runtime(checkpoint=Checkpoint(path, every), on_round=stop_in(round_)),
            **changed,
        )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed", [{}, {"momentum": 0.0, "nesterov": False}], ids=["momentum", "plain"]
)
@pytest.mark.parametrize("done", range(6))
def test_a_stopped_training_ends_with_the_same_weights(
    tmp_path: Path, done: int, changed: dict[str, object]
) -> None:
    whole = network()
    learn(whole, **changed)  # type: ignore[arg-type]
    stopped(tmp_path / "checkpoint", done + 1, **changed)
    reports: list[Round] = []
    # With a checkpoint, everything comes from it: the weights that the new network starts with do not count.
    resumed = network(seed=1 if done else 0)
    learn(
        resumed,
        Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 0), on_round=reports.append),
        **changed,
    )  # type: ignore[arg-type]
    assert same(tensors(resumed), tensors(whole))
    assert [r.round for r in reports] == list(range(done + 1, 7))


def test_a_training_may_be_stopped_again_and_again(tmp_path: Path) -> None:
    whole, resumed = network(), network()
    learn(whole)
    for round_ in (2, 3, 3, 6):
        stopped(tmp_path / "checkpoint", round_)
    learn(resumed, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint")))
    assert same(tensors(resumed), tensors(whole))


def test_what_was_not_due_is_done_again(tmp_path: Path) -> None:
    whole, resumed = network(), network()
    learn(whole)
    stopped(tmp_path / "checkpoint", 5, every=1000)
    assert not (tmp_path / "checkpoint").exists()
    learn(resumed, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 1000)))
    assert same(tensors(resumed), tensors(whole))


def test_the_end_of_a_stage_is_always_saved_and_never_trained_again(tmp_path: Path) -> None:
    whole, again = network(), network(seed=1)
    learn(whole, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 1000)))
    reports: list[Round] = []
    after = Checkpoint(tmp_path / "checkpoint")
    learn(again, Runtime(checkpoint=after, on_round=reports.append))
    assert same(tensors(again), tensors(whole))
    assert reports == []
    saved = after.load("stage")
    assert saved is not None
    assert saved["momenta"] == {}  # they are of no more use


def test_a_checkpoint_changes_nothing_in_what_is_learnt(tmp_path: Path) -> None:
    one, other = network(), network()
    learn(one)
    learn(other, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 0)))
    assert same(tensors(one), tensors(other))


def test_a_saved_state_does_not_change_with_the_network(tmp_path: Path) -> None:
    checkpoint, net = Checkpoint(tmp_path / "checkpoint", 0), network()
    learn(net, Runtime(checkpoint=checkpoint))
    learnt = tensors(net)
    with torch.no_grad():
        net[0].weight.zero_()
    saved = checkpoint.load("stage")
    assert saved is not None
    assert all(
        torch.equal(saved["tensors"][f"net.{name}"], tensor) for name, tensor in learnt.items()
    )


@pytest.mark.parametrize("changed", [{"seed": 1}, {"epochs": 7}])
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    stopped(tmp_path / "checkpoint", 3)
    with pytest.raises(
        CheckpointError, match=r"stage 'stage' comes from another run .*: start without --resume"
    ):
        learn(network(), Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint")), **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "layers",
    [[nn.Linear(5, 3)], [nn.Linear(5, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3)]],
    ids=["names", "shapes"],
)
def test_a_checkpoint_of_another_network_is_refused(
    tmp_path: Path, layers: list[nn.Module]
) -> None:
    stopped(tmp_path / "checkpoint", 3)
    net = nn.Sequential(*layers)
    before = tensors(net)
    with pytest.raises(CheckpointError, match="comes from another run"):
        learn(net, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint")))
    assert same(tensors(net), before)


def test_a_stage_does_not_read_another_ones_checkpoint(tmp_path: Path) -> None:
    stopped(tmp_path / "checkpoint", 3)
    alone, beside = network(), network()
    learn(alone, stage="another")
    learn(beside, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint")), stage="another")
    assert same(tensors(alone), tensors(beside))


# Turns on a GPU


def test_one_thread_at_a_time_has_the_turn() -> None:
    turns, inside, most = _Turns(), [], []

    def work() -> None:
        for _ in range(200):
            with turns.taken():
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 800
    assert max(most) == 1


def test_a_turn_that_is_given_up_goes_to_another_and_comes_back() -> None:
    turns, order, other_done = _Turns(), [], threading.Event()

    def other() -> None:
        with turns.taken():
            order.append("other")
        other_done.set()

    with turns.taken():
        thread = threading.Thread(target=other)
        thread.start()
        order.append("first")
        with turns.given_up():
            assert other_done.wait(10), "the other thread never got its turn"
        order.append("first again")
        assert turns._lock.locked()
    thread.join()
    assert order == ["first", "other", "first again"]
    assert not turns._lock.locked()


def test_an_error_while_the_turn_is_given_up_leaves_it_as_it_was() -> None:
    turns = _Turns()
    with pytest.raises(ConfigError), turns.taken(), turns.given_up():
        raise ConfigError("stop")
    assert not turns._lock.locked()
    with turns.given_up():
        assert not turns._lock.locked(), "without a turn there is nothing to give up"
