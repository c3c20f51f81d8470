"""Test how the wall clock is shared among runs."""

from fewmore.research import clock
from fewmore.research.clock import SharedClock


def test_shares_of_the_wall_clock_add_up(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock.time, "monotonic", lambda: now[0])
    shared = SharedClock()
    shared.start("a")
    now[0] = 10
    shared.start("b")
    now[0] = 14
    assert shared.stop("a") == 12
    now[0] = 20
    assert shared.stop("b") == 8
