"""Test on a CPU that no step of training needs what a captured step of a GPU cannot have.

That is a number on the host, a shape that depends on values, or a tensor made of Python numbers.
Settings are those of the benchmarks, but for sizes and lengths.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.data.images import ImageSet
from fewmore.methods import METHODS, find
from fewmore.methods.recipe import Recipe
from fewmore.training import loop
from fewmore.training.optimizer import EpochsConfig
from fewmore.training.runtime import Runtime

ATEN = torch.ops.aten
WAITING = {
    *(ATEN._local_scalar_dense, ATEN.is_nonzero, ATEN.equal),
    *(ATEN.nonzero, ATEN.masked_select, ATEN._unique2, ATEN.unique_consecutive, ATEN.bincount),
    *(ATEN.repeat_interleave, ATEN.lift_fresh),
}
INDEXING = {ATEN.index, ATEN.index_put, ATEN.index_put_}


class Found(Exception):
    """Name an operation that waits."""


class NeverWaiting(TorchDispatchMode):
    """Raise where an operation would make the host wait for a GPU."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        packet = func.overloadpacket
        # A repetition is of a known length where that is given, and a mask is a list of places.
        if packet in WAITING and not (kwargs or {}).get("output_size"):
            raise Found(str(func))
        if packet in INDEXING and any(
            place is not None and place.dtype == torch.bool for place in args[1]
        ):
            raise Found(f"{func} by a mask")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def checked_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Check all steps but the first of each round, which may make constants; count them."""
    counts: list[int] = []
    run_steps = loop._run_steps

    def run_checked(step: Callable[[Tensor], None], inputs: Tensor, *rest: Any) -> float:
        taken = 0

        def checked(row: Tensor) -> None:
            nonlocal taken
            taken += 1
            if taken == 1:
                return step(row)
            with NeverWaiting():
                return step(row)

        mean = run_steps(checked, inputs, *rest)
        counts.append(taken - 1)
        return mean

    monkeypatch.setattr(loop, "_run_steps", run_checked)
    monkeypatch.setattr("fewmore.training.pseudo_incremental.ROUND", 2)
    return counts


@pytest.mark.parametrize("benchmark", ["cifar100", "miniimagenet", "cub200"])
@pytest.mark.parametrize("name", METHODS)
def test_no_step_waits(
    name: str,
    benchmark: str,
    sessions: list[ImageSet],
    small_recipe: Callable[..., Recipe],
    checked_steps: list[int],
) -> None:
    small = replace(BENCHMARKS[benchmark], backbone="resnet8", pretrained=False)
    recipe = small_recipe("official", small, name, "pretrain.local_size=6")
    transform = recipe.transform
    transform = replace(
        transform,
        size=8,
        pad=min(transform.pad, 1),
        resize=transform.resize and 9,
        cutout=min(transform.cutout, 3),
        stored=None,
    )
    ghost = recipe.pretrain.ghost and 6
    recipe = replace(recipe, transform=transform, pretrain=replace(recipe.pretrain, ghost=ghost))
    method = find(name).build(recipe, Runtime(), 0)
    method.fit(sessions[0])
    method.learn(sessions[1])
    assert sum(checked_steps) > 0


@pytest.mark.parametrize(
    "wait",
    [
        lambda rows: rows.sum().item(),
        lambda rows: rows[rows > 2].sum(),
        lambda rows: rows.unique().sum(),
        lambda rows: torch.tensor([1.0, 2.0]).sum(),
    ],
    ids=["item", "mask", "unique", "constant"],
)
def test_a_step_that_waits_is_found(
    wait: Callable[[Tensor], Any], checked_steps: list[int]
) -> None:
    """Else the test above would show nothing."""
    weight = torch.nn.Linear(2, 1)

    def loss_of(rows: Tensor, generator: Generator) -> Tensor:
        loss: Tensor = weight(rows[:, None].expand(-1, 2).float()).square().mean()
        return loss + 0 * wait(rows)

    config = EpochsConfig(epochs=1, batch=4)
    with pytest.raises(Found):
        loop.train_epochs(
            "waiting", {"w": weight}, list(weight.parameters()), loss_of, 8, config, Runtime(), 0
        )
