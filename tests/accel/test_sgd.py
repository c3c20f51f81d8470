"""Test that the light optimizer is torch.optim.SGD, without the import of PyTorch's compiler."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from fewmore.accel.sgd import LightSGD
from fewmore.training.optimizer import (
    OptimizerConfig,
    ParameterGroup,
    build_optimizer,
    set_learning_rates,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "config",
    [
        OptimizerConfig(lr=0.1),
        OptimizerConfig(lr=0.05, nesterov=False, weight_decay=0.0),
        OptimizerConfig(lr=0.2, momentum=0.0, nesterov=False),
    ],
    ids=["nesterov", "momentum", "plain"],
)
def test_steps_are_those_of_torch_bit_for_bit(config: OptimizerConfig) -> None:
    torch.manual_seed(0)
    start = torch.randn(2, 5)
    found = []
    for optimizer_class in (LightSGD, torch.optim.SGD):
        one, other, unused = (nn.Parameter(start[i % 2].clone()) for i in range(3))
        groups = [ParameterGroup([one, unused]), ParameterGroup([other], lr=0.01)]
        optimizer = build_optimizer(groups, config, CPU, optimizer_class)
        for step in range(4):
            set_learning_rates(optimizer, groups, config, step, 4)
            optimizer.zero_grad()
            assert one.grad is None
            ((one * (step + 1)).square().sum() + (other * one).sum()).backward()
            optimizer.step()
        found.append([one.detach(), other.detach(), unused.detach()])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(found[0][2], start[0]), "a parameter without a gradient has moved"


def test_it_does_not_import_the_compiler() -> None:
    """Run in a process of its own, as others have imported it here."""
    program = """
import sys, torch
from fewmore.accel.sgd import LightSGD
weight = torch.nn.Parameter(torch.ones(2))
options = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.0, "fused": True}
optimizer = LightSGD([{"params": [weight], "lr": torch.tensor(0.1)}], **options)
optimizer.state[weight]["momentum_buffer"] = torch.zeros(2)
weight.square().sum().backward()
optimizer.step()
assert weight.tolist() != [1, 1]
print("torch._dynamo" in sys.modules)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
