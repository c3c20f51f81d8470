"""Test that a CPU finds what would make the host wait for a GPU in a step of training."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from fewmore.errors import MethodError
from fewmore.training import loop
from fewmore.training.optimizer import EpochsConfig
from fewmore.training.runtime import Runtime

CONFIG = EpochsConfig(epochs=1, batch=4)
MADE: dict[str, Tensor] = {}


def train(use: Callable[[Tensor], Tensor], forbid_sync: bool = True) -> None:
    """Take two steps whose losses have something to do with a function of eight values."""
    MADE.clear()
    weight = torch.nn.Linear(1, 1)
    values = torch.arange(8.0)

    def loss_of(rows: Tensor, generator: Generator) -> Tensor:
        outputs = weight(values[rows, None]).flatten()
        return outputs.square().mean() + 0 * use(outputs)

    parameters, runtime = list(weight.parameters()), Runtime(forbid_sync=forbid_sync)
    loop.train_epochs("waiting", {"w": weight}, parameters, loss_of, 8, CONFIG, runtime, 0)


def filled(values: Tensor) -> Tensor:
    copy = values.detach().clone()
    copy[copy > 2] = 0
    copy[0] = 1.0
    return copy.sum()


def written(values: Tensor) -> Tensor:
    copy = values.detach().clone()
    copy[torch.ones(4, dtype=torch.bool)] = values.detach()
    return copy.sum()


def constant(values: Tensor) -> Tensor:
    if "weights" not in MADE:
        MADE["weights"] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return (MADE["weights"] * values).sum()


WAITING: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "item": (lambda v: v * v.sum().item(), "reads a number"),
    "cpu": (lambda v: v.cpu().sum(), "reads numbers"),
    "list": (lambda v: v * sum(v.tolist()), "reads numbers"),
    "numpy": (lambda v: v * float(v.detach().numpy().sum()), "reads numbers"),
    "array": (lambda v: v * float(np.asarray(v.detach()).sum()), "reads numbers"),
    "branch": (lambda v: v.sum() if v.sum() > 1 else v.mean(), "reads a number"),
    "compare": (lambda v: v.sum() * torch.equal(v, v), "reads a number"),
    "mask": (lambda v: v[v > 2].sum(), "what a mask selects"),
    "written": (written, "where a mask selects"),
    "nonzero": (lambda v: v.nonzero().sum(), "a shape that depends on values"),
    "unique": (lambda v: v.detach().unique().sum(), "a shape that depends on values"),
    "moved": (lambda v: v.to("cpu").sum(), "reads numbers"),
    "placed": (lambda v: v * torch.tensor(2.0, device=v.device), "Python's numbers"),
    "numbers": (lambda v: (v * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum(), "Python's numbers"),
}
FINE: dict[str, Callable[[Tensor], Tensor]] = {
    "where": lambda v: torch.where(v > 2, v, 0.0).sum(),
    "places": lambda v: v[torch.arange(3)].sum(),
    "filled": filled,
    "constant": constant,
    "repeated": lambda v: v.repeat_interleave(2).sum(),
}


@pytest.mark.parametrize(("use", "words"), WAITING.values(), ids=WAITING)
def test_a_step_that_waits_is_found(use: Callable[[Tensor], Tensor], words: str) -> None:
    with pytest.raises(MethodError, match=words):
        train(lambda outputs: use(outputs).sum())
    train(lambda outputs: use(outputs).sum(), forbid_sync=False)


@pytest.mark.parametrize("use", FINE.values(), ids=FINE)
def test_a_step_that_does_not_wait_is_not(use: Callable[[Tensor], Tensor]) -> None:
    train(use)
