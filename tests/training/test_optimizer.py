"""Test the optimizer's settings; that training is plain SGD is shown in test_loop.py."""

import pytest
import torch

from fewmore.training.optimizer import (
    ParameterGroup,
    SGDConfig,
    build_sgd,
    momentum_buffers,
    set_learning_rates,
)

CPU = torch.device("cpu")


def test_the_rate_falls_at_milestones() -> None:
    config = SGDConfig(milestones=(2, 5), decay=0.1)
    assert [config.lr_factor(round_) for round_ in range(7)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]
    )
    assert SGDConfig().lr_factor(1000) == 1


def test_parameters_without_a_gradient_stay() -> None:
    moved, stays = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    groups = [ParameterGroup([moved, stays])]
    config = SGDConfig(lr=0.5, nesterov=False, weight_decay=0.5)
    optimizer = build_sgd(groups, config, CPU)
    set_learning_rates(optimizer, groups, config, 0)
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
    config = SGDConfig(lr=1.0, momentum=0.0, nesterov=False, weight_decay=0.0)
    optimizer = build_sgd(groups, config, CPU)
    set_learning_rates(optimizer, groups, config, 0)
    for parameter in (one, other):
        parameter.grad = torch.ones(1)
    optimizer.step()
    assert (one.item(), other.item()) == (-1.0, -2.0)
    assert momentum_buffers(optimizer) == []


def test_momentum_buffers_of_zeros_give_the_first_step_of_none() -> None:
    ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    config = SGDConfig(lr=0.1)
    groups = [ParameterGroup([ours])]
    optimizer = build_sgd(groups, config, CPU)
    set_learning_rates(optimizer, groups, config, 0)
    plain = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    for step in range(3):
        for parameter in (ours, theirs):
            parameter.grad = torch.tensor([0.3, -0.7]) * (step + 1)
        optimizer.step()
        plain.step()
        torch.testing.assert_close(ours, theirs)
