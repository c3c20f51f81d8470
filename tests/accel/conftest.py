"""Share what tests of the fast path need."""

import warnings
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from fewmore.accel.side_streams import SideStreams


class AtOnce(SideStreams):
    """Compute what is submitted at once, without streams."""

    def __init__(self) -> None:
        self._used = set()
        self._pending = []
        self._reads = []
        self._casts = {}
        self.submitted: list[nn.Parameter] = []

    def submit(
        self,
        parameters: Sequence[nn.Parameter],
        gradients: Callable[[], Sequence[Tensor]],
        reads: Sequence[Tensor],
    ) -> None:
        self.submitted += parameters
        self._pending += zip(parameters, gradients(), strict=True)


@pytest.fixture
def at_once() -> AtOnce:
    """Return side streams that are none."""
    return AtOnce()


@pytest.fixture
def full_precision() -> Iterator[None]:
    """Without TF32 and with kernels that repeat, so that results can be compared closely."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.deterministic
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cudnn.allow_tf32, cudnn.deterministic = False, True
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cudnn.allow_tf32, cudnn.deterministic = before
