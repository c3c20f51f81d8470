"""Test optimizers and schedules against those of torch; whole trainings are in test_loop.py."""

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, SequentialLR

from fewmore.errors import ConfigError
from fewmore.training.optimizer import (
    EpochsConfig,
    OptimizerConfig,
    ParameterGroup,
    build_optimizer,
    optimizer_tensors,
    set_learning_rates,
)
from fewmore.training.pseudo_incremental import PseudoConfig

CPU = torch.device("cpu")


# Settings


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"optimizer": "adam"}, "optimizer must be sgd or adamw, not 'adam'"),
        ({"schedule": "linear"}, "schedule must be milestones or cosine, not 'linear'"),
        ({"ema": 1.0}, r"ema must lie in \[0, 1\), not 1.0"),
        ({"ema": -0.1}, r"ema must lie in \[0, 1\), not -0.1"),
        ({"ema": float("nan")}, "ema .* not nan"),
        ({"warm_up": -1}, "warm_up must not be negative, and is -1"),
        ({"warm_up": 8, "epochs": 7}, "warm_up must be at most the number of rounds, 7, and is 8"),
    ],
)
def test_settings_that_cannot_be_are_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"optimizer: {words}"):
        EpochsConfig(**changed)


def test_a_warm_up_longer_than_stage_2_is_refused() -> None:
    PseudoConfig(episodes=100, warm_up=2)
    with pytest.raises(ConfigError, match="warm_up must be at most the number of rounds, 2"):
        PseudoConfig(episodes=100, warm_up=3)


@pytest.mark.parametrize("schedule", ["milestones", "cosine"])
def test_a_training_of_warm_up_alone_ends_at_the_full_rate(schedule: Any) -> None:
    config = OptimizerConfig(schedule=schedule, warm_up=4)
    assert [config.lr_factor(round_, 4) for round_ in range(4)] == [0.25, 0.5, 0.75, 1]


def test_nesterov_without_momentum_is_no_matter_of_adamw() -> None:
    OptimizerConfig(optimizer="adamw", momentum=0.0)
    with pytest.raises(ConfigError, match="nesterov needs a momentum"):
        OptimizerConfig(momentum=0.0)


def test_settings_without_effect_are_known() -> None:
    assert OptimizerConfig().unread == {}
    assert OptimizerConfig(optimizer="adamw").unread == {"nesterov": "optimizer=adamw"}
    assert OptimizerConfig(schedule="cosine").unread.keys() == {"milestones", "decay"}


# Schedules


def test_the_rate_falls_at_milestones() -> None:
    config = OptimizerConfig(milestones=(2, 5), decay=0.1)
    assert [config.lr_factor(round_, 7) for round_ in range(7)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]
    )
    assert OptimizerConfig().lr_factor(1000, 1001) == 1


# PyTorch 2.6 warns of what its own SequentialLR does.
@pytest.mark.filterwarnings("ignore:The epoch parameter in .scheduler.step:UserWarning")
@pytest.mark.parametrize("warm_up", [0, 1, 2, 5])
@pytest.mark.parametrize("rounds", [6, 11])
def test_warm_up_and_cosine_are_those_of_torch(warm_up: int, rounds: int) -> None:
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    cosine = CosineAnnealingLR(plain, rounds - warm_up)
    scheduler: Any = cosine
    if warm_up:
        rise = LinearLR(plain, 1 / warm_up, total_iters=warm_up - 1)
        scheduler = SequentialLR(plain, [rise, cosine], [warm_up])
    theirs = []
    for _ in range(rounds):
        theirs.append(scheduler.get_last_lr()[0])
        plain.step()
        scheduler.step()
    config = OptimizerConfig(schedule="cosine", warm_up=warm_up)
    ours = [config.lr_factor(round_, rounds) for round_ in range(rounds)]
    assert ours == pytest.approx(theirs)
    assert max(ours) == 1
    assert ours[-1] > 0, "zero is reached after the last round, so that none is wasted"


def test_milestones_count_from_the_first_round_with_a_warm_up_too() -> None:
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    steps = MultiStepLR(plain, [3, 5], gamma=0.5)
    theirs = []
    for round_ in range(7):
        theirs.append(steps.get_last_lr()[0] * min(1, (round_ + 1) / 4))
        plain.step()
        steps.step()
    config = OptimizerConfig(milestones=(3, 5), decay=0.5, warm_up=4)
    assert [config.lr_factor(round_, 7) for round_ in range(7)] == pytest.approx(theirs)


# Steps


@pytest.mark.parametrize("optimizer_name", ["sgd", "adamw"])
def test_parameters_without_a_gradient_stay(optimizer_name: Any) -> None:
    moved, stays = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    groups = [ParameterGroup([moved, stays])]
    config = OptimizerConfig(lr=0.5, optimizer=optimizer_name, nesterov=False, weight_decay=0.5)
    optimizer = build_optimizer(groups, config, CPU)
    set_learning_rates(optimizer, groups, config, 0, 1)
    moved.grad = torch.zeros(2)
    optimizer.step()
    once = [0.75, 0.75]
    assert moved.tolist() == once
    assert stays.tolist() == [1, 1]
    optimizer.zero_grad()
    optimizer.step()
    assert moved.grad is None
    assert moved.tolist() == once


def test_groups_have_their_own_rates_and_need_no_momentum() -> None:
    one, other = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    groups = [ParameterGroup([one]), ParameterGroup([other], lr=2.0)]
    config = OptimizerConfig(lr=1.0, momentum=0.0, nesterov=False, weight_decay=0.0)
    optimizer = build_optimizer(groups, config, CPU)
    set_learning_rates(optimizer, groups, config, 0, 1)
    for parameter in (one, other):
        parameter.grad = torch.ones(1)
    optimizer.step()
    assert (one.item(), other.item()) == (-1.0, -2.0)
    assert optimizer_tensors(optimizer) == {}


@pytest.mark.parametrize(
    ("config", "plain_class", "options"),
    [
        (
            OptimizerConfig(lr=0.1),
            torch.optim.SGD,
            {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
        ),
        (
            OptimizerConfig(optimizer="adamw", lr=0.1),
            torch.optim.AdamW,
            {"betas": (0.9, 0.999), "weight_decay": 5e-4},
        ),
        (
            OptimizerConfig(optimizer="adamw", lr=0.1, momentum=0.5, weight_decay=0.2),
            torch.optim.AdamW,
            {"betas": (0.5, 0.999), "weight_decay": 0.2},
        ),
    ],
    ids=["sgd", "adamw", "adamw with other settings"],
)
def test_state_made_beforehand_gives_the_steps_of_torch(
    config: OptimizerConfig, plain_class: Any, options: dict[str, Any]
) -> None:
    ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    groups = [ParameterGroup([ours])]
    optimizer = build_optimizer(groups, config, CPU)
    set_learning_rates(optimizer, groups, config, 0, 1)
    tensors = optimizer_tensors(optimizer)
    assert tensors
    plain = plain_class([theirs], lr=0.1, fused=False, foreach=False, **options)
    for step in range(4):
        for parameter in (ours, theirs):
            parameter.grad = torch.tensor([0.3, -0.7]) * (step + 1)
        optimizer.step()
        plain.step()
        torch.testing.assert_close(ours, theirs)
    after = optimizer_tensors(optimizer)
    assert after.keys() == tensors.keys(), "a step makes no tensors"
    assert all(after[name] is tensors[name] for name in tensors), "a step changes them in place"
    assert sorted(plain.state[theirs]) == sorted(name.split(".")[1] for name in tensors)
