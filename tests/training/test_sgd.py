"""That it is PyTorch's SGD is shown in test_loop.py, on whole trainings."""

import subprocess
import sys

import torch

from fewmore.training.sgd import SGD

CPU = torch.device("cpu")


def test_training_does_not_import_the_compiler():
    """Which takes longer than importing PyTorch."""
    program = """
import sys, torch
from fewmore.training.loop import EpochsConfig, Runtime, train_epochs
layer = torch.nn.Linear(2, 1)
loss = lambda rows, generator: layer(rows[:, None].expand(-1, 2).float()).mean()
train_epochs("stage", {"layer": layer}, list(layer.parameters()), loss, 8, EpochsConfig(epochs=1, batch=4), Runtime(), 0)
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False"]


def test_parameters_without_a_gradient_stay():
    moved, stays = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    sgd = SGD([[moved, stays]], CPU, momentum=0.9, nesterov=False, weight_decay=0.5)
    sgd.rates[0].fill_(0.5)
    moved.grad = torch.zeros(2)
    sgd.step()
    once = [0.75, 0.75]
    assert moved.tolist() == once
    assert stays.tolist() == [1, 1]
    sgd.zero_grad()
    sgd.step()
    assert moved.grad is None
    assert moved.tolist() == once


def test_groups_have_their_own_rates_and_need_no_momentum():
    one, other = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    sgd = SGD([[one], [other]], CPU, momentum=0.0, nesterov=False, weight_decay=0.0)
    for rate, value in zip(sgd.rates, (1.0, 2.0), strict=True):
        rate.fill_(value)
    for parameter in (one, other):
        parameter.grad = torch.ones(1)
    sgd.step()
    assert (one.item(), other.item()) == (-1.0, -2.0)
    assert sgd.momenta == {}
