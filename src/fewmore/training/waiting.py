"""Find on a CPU what a step of training must not do on a GPU: make the host wait.

A GPU records a step once and replays it, so that no number may be read by the host, no shape may
depend on values, and no numbers may come from the host. On a CPU all of that works, which is why
a method that was written there may fail on its first GPU. Here the operations of a step are looked
at as they are called.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fewmore.errors import MethodError
from fewmore.training.fast_path import Step

ATEN = torch.ops.aten
READS = {ATEN._local_scalar_dense, ATEN.is_nonzero, ATEN.equal}
SHAPES = {
    *(ATEN.nonzero, ATEN.masked_select, ATEN._unique2, ATEN.unique_dim, ATEN.unique_consecutive),
    *(ATEN.bincount, ATEN.repeat_interleave),
}
CONSTANTS = {ATEN.lift_fresh}
READING = {ATEN.index}
WRITING = {ATEN.index_put, ATEN.index_put_}
# What reads numbers without an operation where the tensor is on the CPU already.
TO_HOST = {Tensor.cpu, Tensor.tolist, Tensor.numpy, Tensor.__array__}
FROM_HOST = {torch.tensor, torch.as_tensor}


def check_steps(step: Step) -> Step:
    """Return a step that raises MethodError where it would wait for a GPU.

    Its first call may make constants that later ones use: a GPU records none of the first calls.
    """
    is_first = True

    def checked(row: Tensor) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            return step(row)
        with _NeverReading(), _NeverWaiting():  # type: ignore[no-untyped-call]
            return step(row)

    return checked


class _NeverReading(TorchFunctionMode):
    """Raise where a tensor is copied to the host, or numbers from there to a device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        places = [each for each in (*args, *kwargs.values()) if isinstance(each, str)]
        if func in TO_HOST or (func is Tensor.to and "cpu" in places):
            raise _error("reads numbers of a tensor")
        if func in FROM_HOST and "device" in kwargs and not isinstance(args[0], Tensor):
            raise _error("makes a tensor of Python's numbers")
        return func(*args, **kwargs)


class _NeverWaiting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raise where an operation makes the host wait for a GPU."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if (what := _waits(func.overloadpacket, args, kwargs or {})) is not None:
            raise _error(what)
        return func(*args, **(kwargs or {}))


def _error(what: str) -> MethodError:
    return MethodError(
        f"a step of training {what}: on a GPU, where steps are recorded and replayed, that is an "
        "error"
    )


def _waits(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Say what an operation does that makes the host wait, if it does."""
    if operation in READS:
        return "reads a number of a tensor"
    if operation in SHAPES and "output_size" not in kwargs:
        return "makes a shape that depends on values"
    if operation in READING and _by_mask(args):
        return "takes what a mask selects, of which the number depends on values"
    # A single number is filled in where a mask is true, which needs no shape.
    if operation in WRITING and _by_mask(args) and args[2].numel() > 1:
        return "writes where a mask selects, and how many that are depends on values"
    # A single number may also be that of an assignment, x[0] = 1, which a GPU does by itself.
    if operation in CONSTANTS and args[0].dim():
        return "makes a tensor of Python's numbers"
    return None


def _by_mask(args: tuple[Any, ...]) -> bool:
    return any(place is not None and place.dtype == torch.bool for place in args[1])
