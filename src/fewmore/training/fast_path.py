"""Import the optional GPU fast path, and stand in for it where it is missing or switched off.

This is the only file outside `accel` that imports it: with `accel` deleted, everything runs as
plain PyTorch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from fewmore.training.distributed import world_size
from fewmore.training.runtime import Runtime

try:
    from fewmore import accel
except ImportError:
    accel = None  # type: ignore[assignment]

Step = Callable[[Tensor], None]


class Engine(Protocol):
    """Name what the training loop asks of whatever runs its steps."""

    optimizer_class: type  # torch.optim.SGD, or a class with the same manners

    def forward(self) -> AbstractContextManager[None]:
        """Return the context of a step's forward pass."""

    def finish_backward(self) -> None:
        """Wait for gradients that are computed beside the backward pass."""

    def capture(
        self, step: Step, example: Tensor, state: Sequence[Tensor], generator: torch.Generator
    ) -> Step:
        """Return a step that does the same, perhaps faster; `state` is all that a step changes."""


class Eager:
    """Run every step as it is written."""

    optimizer_class: type = torch.optim.SGD

    def forward(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def finish_backward(self) -> None:
        """Do nothing: the backward pass has computed all gradients."""

    def capture(
        self, step: Step, example: Tensor, state: Sequence[Tensor], generator: torch.Generator
    ) -> Step:
        """Return the step itself."""
        return step


def why_plain(runtime: Runtime) -> str | None:
    """Say why training runs as plain PyTorch, or None where the fast path is used."""
    if not runtime.cuda:
        return f"it is for CUDA, and the device is {runtime.device.type}"
    if not runtime.accel:
        return "switched off"
    if world_size() > 1:
        return f"it is for one process, and there are {world_size()}"
    if accel is None:
        return "fewmore.accel is not installed"
    return None


def why_no_fused_layers(runtime: Runtime) -> str | None:
    """Say why the fast path works without its own layers, or None where it has them."""
    return None if accel is None else accel.finish_warm_up(runtime.device)


@contextmanager
def accelerate(modules: Mapping[str, nn.Module], runtime: Runtime) -> Iterator[Engine]:
    """Give the engine that runs the steps of a training; its layers are swapped in meanwhile."""
    if accel is None or why_plain(runtime) is not None:
        yield Eager()
        return
    with accel.accelerate(modules, runtime) as engine:
        yield engine


def start_warm_up(device: torch.device) -> None:
    """Compile kernels and load libraries in the background."""
    if accel is not None:
        accel.start_warm_up(device)


def share_gpu(device: torch.device) -> AbstractContextManager[None]:
    """Return the context of a thread that shares a GPU with others."""
    return nullcontext() if accel is None else accel.share_gpu(device)


def yield_gpu() -> AbstractContextManager[None]:
    """Return a context in which other threads may work on the shared GPU."""
    return nullcontext() if accel is None else accel.yield_gpu()
