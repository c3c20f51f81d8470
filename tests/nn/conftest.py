"""What tests of layers share."""

import pytest

from fewmore.accel.side_streams import SideStreams


class AtOnce(SideStreams):
    """Without streams: computes what it is given."""

    def __init__(self) -> None:
        self._used, self._pending, self._casts, self.given = set(), [], {}, []

    def give(self, parameters, gradients, reads):  # type: ignore[no-untyped-def]
        self.given += parameters
        self._pending += zip(parameters, gradients(), strict=True)


@pytest.fixture
def at_once() -> AtOnce:
    return AtOnce()
