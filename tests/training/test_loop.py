"""Test the training loop: its arithmetic, its randomness, checkpoints and resuming."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
)
from torch.optim.swa_utils import AveragedModel

from fewmore.errors import CheckpointError, ConfigError, MethodError
from fewmore.random import derive_seed
from fewmore.training.checkpoint import Checkpoint
from fewmore.training.loop import shuffled_batches, steps_of_epoch, train, train_epochs
from fewmore.training.optimizer import EpochsConfig, OptimizerConfig, ParameterGroup
from fewmore.training.runtime import Round, Runtime

INPUTS = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(24) % 3


def network(seed: int = 0) -> nn.Sequential:
    """Build a network with weights, and with buffers that training changes."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Copy the parameters and buffers of a module."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Say whether tensors are the same, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def noisy_loss(net: nn.Module) -> Callable[[Tensor, Generator], Tensor]:
    """Return a loss that draws random numbers at every step, as augmentation does."""

    def loss_of(indices: Tensor, generator: Generator) -> Tensor:
        noise = 0.1 * torch.randn(len(indices), 5, generator=generator)
        return F.cross_entropy(net(INPUTS[indices] + noise), LABELS[indices])

    return loss_of


def learn(
    net: nn.Module,
    runtime: Runtime | None = None,
    seed: int = 0,
    stage: str = "stage",
    **changed: object,
) -> None:
    """Train for six epochs of four steps."""
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


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"lr": -0.1}, "optimizer: lr .*-0.1"),
        ({"lr": float("nan")}, "lr .*nan"),
        ({"lr": float("inf")}, "lr .*inf"),
        ({"momentum": 1.0}, "momentum .*1.0"),
        ({"momentum": -0.5}, "momentum .*-0.5"),
        ({"momentum": 0.0}, "nesterov .*momentum"),
        ({"weight_decay": -1.0}, "weight_decay .*-1.0"),
        ({"lr": -1.0, "weight_decay": -1.0}, "lr .*; weight_decay "),
        ({"epochs": 0}, "epochs .*not 0"),
        ({"batch": 0}, "batch .*not 0"),
        ({"epochs": -1, "batch": 0}, "epochs .*not -1; batch .*not 0"),
    ],
)
def test_settings_that_cannot_be_are_named(changed: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EpochsConfig(**changed)  # type: ignore[arg-type]


def test_settings_at_their_limits_are_allowed() -> None:
    EpochsConfig(lr=0.0, momentum=0.0, nesterov=False, weight_decay=0.0, epochs=1, batch=1)


# Order and randomness


@settings(max_examples=100, deadline=None)
@given(images=st.integers(1, 200), batch=st.integers(1, 64), seed=st.integers(0, 2**40))
def test_shuffled_batches_show_each_image_at_most_once(images: int, batch: int, seed: int) -> None:
    batches = shuffled_batches(images, batch, torch.Generator().manual_seed(seed))
    size = min(batch, images)
    assert batches.shape == (images // size, size)
    shown = batches.flatten().tolist()
    assert len(set(shown)) == len(shown)
    assert set(shown) <= set(range(images))
    again = shuffled_batches(images, batch, torch.Generator().manual_seed(seed))
    assert torch.equal(batches, again)


@given(images=st.integers(1, 60), batch=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_filled_batches_show_every_image(images: int, batch: int, seed: int) -> None:
    generators = [torch.Generator().manual_seed(seed) for _ in range(2)]
    batches = shuffled_batches(images, batch, generators[0], fill=True)
    whole = shuffled_batches(images, batch, generators[1])
    assert batches.shape == (-(-images // batch), min(images, batch))
    assert torch.equal(batches[: len(whole)], whole)
    for last_batch, made in (("fill", batches), ("drop", whole)):
        assert steps_of_epoch(images, EpochsConfig(batch=batch, last_batch=last_batch)) == len(made)
    shown = batches.flatten().tolist()
    assert set(shown[:images]) == set(range(images))
    assert shown[images:] == shown[: len(shown) - images]


def test_shuffled_batches_leave_out_other_images_each_time() -> None:
    generator = torch.Generator().manual_seed(0)
    epochs = [shuffled_batches(10, 4, generator).flatten().tolist() for _ in range(40)]
    assert len({tuple(order) for order in epochs}) == 40
    assert {image for order in epochs for image in set(range(10)) - set(order)} == set(range(10))


def test_a_seed_depends_on_all_its_parts_and_on_nothing_else() -> None:
    # A constant: the same in every process and on every machine.
    assert derive_seed(0, "pretrain", 3, "draw") == 54739992746266122
    different = [(0, "a"), (1, "a"), (0, "b"), ("0", "a"), (0, "a", 0), ("a", 0)]
    assert len({derive_seed(*parts) for parts in different}) == 6
    assert all(0 <= derive_seed(number) < 2**56 for number in range(100))


def test_the_same_seed_gives_the_same_network_bit_for_bit() -> None:
    one, other = network(), network()
    learn(one, seed=3)
    torch.manual_seed(99)  # of the global generator, which training does not use
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


def plain_rates(config: OptimizerConfig, rounds: int) -> list[float]:
    """Return the factors of the learning rate, from torch's schedulers."""
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedulers: list[LRScheduler] = []
    if config.schedule == "cosine":
        rest = rounds - config.warm_up
        schedulers.append(CosineAnnealingLR(sgd, rest))
        if config.warm_up:
            rise = LinearLR(sgd, 1 / config.warm_up, total_iters=config.warm_up - 1)
            schedulers = [SequentialLR(sgd, [rise, *schedulers], [config.warm_up])]
    else:
        schedulers.append(MultiStepLR(sgd, list(config.milestones), config.decay))
    rates = []
    for _ in range(rounds):
        rates.append(float(sgd.param_groups[0]["lr"]))
        sgd.step()
        schedulers[0].step()
    return rates


def plain_optimizer(config: OptimizerConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Build torch's own optimizer, not fused."""
    if config.optimizer == "adamw":
        betas = (config.momentum, 0.999)
        return torch.optim.AdamW(
            groups, betas=betas, weight_decay=config.weight_decay, foreach=False
        )
    return torch.optim.SGD(
        groups,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        foreach=False,
    )


# PyTorch 2.6 warns of what its own SequentialLR does.
@pytest.mark.filterwarnings("ignore:The epoch parameter in .scheduler.step:UserWarning")
@pytest.mark.parametrize(
    "config",
    [
        OptimizerConfig(lr=0.1, milestones=(3, 6)),
        OptimizerConfig(lr=0.05, nesterov=False),
        OptimizerConfig(lr=0.2, momentum=0.0, nesterov=False, weight_decay=0.0),
        OptimizerConfig(lr=0.1, momentum=0.5, weight_decay=0.1, milestones=(1,), decay=0.5),
        OptimizerConfig(lr=0.1, schedule="cosine", warm_up=3),
        OptimizerConfig(optimizer="adamw", lr=0.01, weight_decay=0.1, milestones=(3, 6)),
        OptimizerConfig(optimizer="adamw", lr=0.02, momentum=0.5, schedule="cosine"),
    ],
)
def test_every_step_is_that_of_torch(config: OptimizerConfig) -> None:
    """Train one step a round, so that the weights can be compared after each."""
    net, plain = network(), network()
    shown: list[Tensor] = []
    after: list[dict[str, Tensor]] = []

    def sample(generator: Generator) -> Tensor:
        shown.append(torch.randint(0, 24, (1, 6), generator=generator))
        return shown[-1]

    def loss_of(indices: Tensor, generator: Generator) -> Tensor:
        return F.cross_entropy(net(INPUTS[indices]), LABELS[indices])

    runtime = Runtime(on_round=lambda report: after.append(tensors(net)))
    groups = [
        # Without the bias, whose gradient behind a batch norm is rounding alone.
        ParameterGroup([net[0].weight]),
        ParameterGroup(list(net[3].parameters()), lr=0.01),
    ]
    train("stage", {"net": net}, groups, loss_of, sample, 8, config, runtime, 0)

    plain_groups = [{"params": [plain[0].weight]}, {"params": [*plain[3].parameters()]}]
    theirs = plain_optimizer(config, plain_groups)
    frozen = tensors(plain[1])
    for step, ((indices,), factor) in enumerate(zip(shown, plain_rates(config, 8), strict=True)):
        for group, lr in zip(theirs.param_groups, (config.lr, 0.01), strict=True):
            group["lr"] = lr * factor
        theirs.zero_grad()
        F.cross_entropy(plain(INPUTS[indices]), LABELS[indices]).backward()
        theirs.step()
        for name, tensor in tensors(plain).items():
            assert torch.allclose(after[step][name], tensor, rtol=1e-4, atol=1e-6), (step, name)
    assert torch.equal(after[-1]["1.weight"], frozen["weight"]), "it is in no group"
    assert len(after) == 8


def test_training_ends_with_the_average_over_its_steps() -> None:
    """Compare with torch's average of the weights after each of the six rounds of one step."""
    decay = 0.7

    def add(average: Tensor, now: Tensor, done: Tensor) -> Tensor:
        return average + (now - average) * (1 - decay) / (1 - decay ** (int(done) + 1))

    averaged, last = network(), network()
    theirs = AveragedModel(last, avg_fn=add, use_buffers=True)
    on_round = Runtime(on_round=lambda report: theirs.update_parameters(last))
    learn(last, on_round, batch=24)
    learn(averaged, batch=24, ema=decay)
    expected = theirs.module.state_dict()
    for name, tensor in averaged.state_dict().items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, expected[name], rtol=1e-4, atol=1e-6), name
    assert not torch.allclose(averaged[0].weight, last[0].weight, atol=1e-3)


def test_an_average_does_not_change_the_training_beside_it() -> None:
    losses: list[list[float]] = []
    for ema in (0.0, 0.9):
        reports: list[Round] = []
        learn(network(), Runtime(on_round=reports.append), ema=ema)
        losses.append([report.loss for report in reports])
    assert losses[0] == losses[1]


def test_a_warm_up_longer_than_the_training_is_refused() -> None:
    config = OptimizerConfig(warm_up=4)
    with pytest.raises(ConfigError, match="warm_up must be at most the number of rounds, 3"):
        train("stage", {}, [], noisy_loss(network()), lambda g: INPUTS, 3, config, Runtime(), 0)


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

    def loss_of(indices: Tensor, generator: Generator) -> Tensor:
        return noisy_loss(net)(indices, generator) * float("nan")

    with pytest.raises(ConfigError, match=r"features: .*nan in round 1; .*learning rate .*0\.1"):
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


def test_a_learning_rate_that_is_too_high_is_named() -> None:
    with pytest.raises(ConfigError, match=r"(nan|inf) in round \d; .*learning rate .*1e\+30"):
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

    def loss_of(indices: Tensor, generator: Generator) -> Tensor:
        loss = noisy_loss(net)(indices, generator)
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


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [(None, torch.float32), ("fp16", torch.float32), ("bf16", torch.bfloat16)],
)
def test_a_cpu_trains_in_bf16_where_that_is_requested_else_in_fp32(
    precision: str | None, dtype: torch.dtype
) -> None:
    seen = []
    net = network()
    net.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    learn(net, Runtime(precision=precision), epochs=1)
    assert set(seen) == {dtype}
    assert {p.dtype for p in net.parameters()} == {torch.float32}, "weights are not rounded"


# Losses that change during a stage


def learn_with_two_losses(net: nn.Module, used: list[str], runtime: Runtime) -> None:
    """Train for three rounds with each loss, and record the names of the losses."""

    def loss_of(indices: Tensor, generator: Generator, name: str) -> Tensor:
        used.append(name)
        return noisy_loss(net)(indices, generator) * {"first": 1.0, "second": 0.5}[name]

    losses = {0: partial(loss_of, name="first"), 3: partial(loss_of, name="second")}
    train(
        "stage",
        {"net": net},
        [ParameterGroup(list(net.parameters()))],
        losses,
        partial(shuffled_batches, 24, 12),
        6,
        OptimizerConfig(),
        runtime,
        0,
    )


def test_each_loss_counts_from_its_round_on() -> None:
    used: list[str] = []
    learn_with_two_losses(network(), used, Runtime())
    assert used == ["first"] * 6 + ["second"] * 6  # two steps a round


@pytest.mark.parametrize("done", [1, 2, 3, 4])
def test_a_stopped_training_resumes_with_the_right_loss(tmp_path: Path, done: int) -> None:
    whole, resumed = network(), network()
    learn_with_two_losses(whole, [], Runtime())
    for net, on_round in ((network(), stop_in(done + 1)), (resumed, lambda report: None)):
        with suppress(Stopped):
            checkpoint = Checkpoint(tmp_path / "checkpoint", 0)
            learn_with_two_losses(net, [], Runtime(checkpoint=checkpoint, on_round=on_round))
    assert same(tensors(resumed), tensors(whole))


@pytest.mark.parametrize(
    ("loss", "what"), [(torch.zeros(3), r"of shape \(3,\)"), (torch.zeros(1), "of"), (0.5, "0.5")]
)
def test_a_loss_that_is_no_single_number_is_refused(loss: object, what: str) -> None:
    net = network()
    with pytest.raises(MethodError, match=f"the loss of stage is {what}.*a single number"):
        train_epochs(
            "stage",
            {"net": net},
            list(net.parameters()),
            lambda indices, generator: loss,  # type: ignore[arg-type, return-value]
            24,
            EpochsConfig(epochs=1),
            Runtime(),
            0,
        )


# Resuming


class Stopped(Exception):
    """Stand for a kill."""


def stop_in(round_: int) -> Callable[[Round], None]:
    """Return a callback that stops the training in a round."""

    def on_round(report: Round) -> None:
        if report.round == round_:
            raise Stopped

    return on_round


def stopped(path: Path, round_: int, every: float = 0, **changed: object) -> None:
    """Start a training that is stopped in a round, before the round is saved."""
    with pytest.raises(Stopped):
        learn(
            network(),
            Runtime(checkpoint=Checkpoint(path, every), on_round=stop_in(round_)),
            **changed,
        )  # type: ignore[arg-type]


OPTIMIZERS: dict[str, dict[str, object]] = {
    "momentum": {},
    "plain": {"momentum": 0.0, "nesterov": False},
    "ema": {"ema": 0.9},
    "cosine": {"schedule": "cosine", "warm_up": 2},
    "adamw": {"optimizer": "adamw", "lr": 0.01},
    "adamw, cosine and ema": {
        "optimizer": "adamw",
        "lr": 0.01,
        "schedule": "cosine",
        "warm_up": 1,
        "ema": 0.9,
    },
}


@pytest.mark.parametrize("changed", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("done", range(6))
def test_a_stopped_training_ends_with_the_same_weights(
    tmp_path: Path, done: int, changed: dict[str, object]
) -> None:
    whole = network()
    learn(whole, **changed)  # type: ignore[arg-type]
    stopped(tmp_path / "checkpoint", done + 1, **changed)
    reports: list[Round] = []
    # Everything comes from the checkpoint: the initial weights of the new network do not count.
    resumed = network(seed=1 if done else 0)
    learn(
        resumed,
        Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 0), on_round=reports.append),
        **changed,
    )  # type: ignore[arg-type]
    assert same(tensors(resumed), tensors(whole))
    assert [r.round for r in reports] == list(range(done + 1, 7))


def test_a_training_may_be_stopped_many_times(tmp_path: Path) -> None:
    whole, resumed = network(), network()
    learn(whole)
    for round_ in (2, 3, 3, 6):
        stopped(tmp_path / "checkpoint", round_)
    learn(resumed, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint")))
    assert same(tensors(resumed), tensors(whole))


def test_rounds_that_were_not_saved_are_repeated(tmp_path: Path) -> None:
    whole, resumed = network(), network()
    learn(whole)
    stopped(tmp_path / "checkpoint", 5, every=1000)
    assert not (tmp_path / "checkpoint").exists()
    learn(resumed, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 1000)))
    assert same(tensors(resumed), tensors(whole))


def test_the_end_of_a_stage_is_always_saved_and_not_repeated(tmp_path: Path) -> None:
    whole, again = network(), network(seed=1)
    learn(whole, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint", 1000)))
    reports: list[Round] = []
    after = Checkpoint(tmp_path / "checkpoint")
    learn(again, Runtime(checkpoint=after, on_round=reports.append))
    assert same(tensors(again), tensors(whole))
    assert reports == []
    saved = after.load("stage")
    assert saved is not None
    assert saved["optimizer"] == {}, "momentum buffers are of no more use"


def test_what_is_saved_at_the_end_are_the_averaged_weights(tmp_path: Path) -> None:
    whole, again = network(), network(seed=1)
    learn(whole, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint")), ema=0.9)
    after = Checkpoint(tmp_path / "checkpoint")
    learn(again, Runtime(checkpoint=after), ema=0.9)
    assert same(tensors(again), tensors(whole))
    saved = after.load("stage")
    assert saved is not None
    assert saved["average"] == {}


@pytest.mark.parametrize("changed", [{"ema": 0.9}, {"optimizer": "adamw"}], ids=["ema", "adamw"])
def test_a_checkpoint_of_another_optimizer_is_refused(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    stopped(tmp_path / "checkpoint", 3)
    net = network()
    before = tensors(net)
    with pytest.raises(CheckpointError, match=r"another run .*optimizer differ.*--resume"):
        learn(net, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint")), **changed)  # type: ignore[arg-type]
    assert same(tensors(net), before)


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
    with pytest.raises(CheckpointError, match=r"'stage' .*another run .*--resume"):
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
    with pytest.raises(CheckpointError, match="another run"):
        learn(net, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint")))
    assert same(tensors(net), before)


def test_a_stage_does_not_read_the_checkpoint_of_another(tmp_path: Path) -> None:
    stopped(tmp_path / "checkpoint", 3)
    alone, beside = network(), network()
    learn(alone, stage="another")
    learn(beside, Runtime(checkpoint=Checkpoint(tmp_path / "checkpoint")), stage="another")
    assert same(tensors(alone), tensors(beside))
