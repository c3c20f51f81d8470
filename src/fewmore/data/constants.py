"""Keep constant tensors on their devices between calls."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from torch import Tensor

P = ParamSpec("P")


def cache_tensor(make: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Cache the tensor that a function makes for hashable, positional arguments.

    What it makes while a program is traced, such as by torch.export, is a tensor without values
    and of no use afterwards: it is not kept.
    """
    kept: dict[object, Tensor] = {}

    @wraps(make)
    def get(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if args in kept:
            return kept[args]
        tensor = make(*args, **kwargs)
        if type(tensor) is Tensor:  # tensors of a trace are of a subclass
            kept[args] = tensor
        return tensor

    return get
