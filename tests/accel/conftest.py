"""Share what tests of the fast path need."""

from collections.abc import Callable, Sequence

import pytest
from torch import Tensor, nn

from fewmore.accel.side_streams import SideStreams


class AtOnce(SideStreams):
    """Compute what is submitted at once, without streams."""

    def __init__(self) -> None:
        self._used = set()
        self._pending = []
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
