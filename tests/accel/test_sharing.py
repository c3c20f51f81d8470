"""Test the lock by which threads share a GPU."""

import threading

import pytest

from fewmore.accel.sharing import GpuLock
from fewmore.errors import ConfigError


def test_one_thread_at_a_time_holds_the_lock() -> None:
    lock = GpuLock()
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(200):
            with lock.held():
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 800
    assert max(most) == 1


def test_a_released_lock_goes_to_another_thread_and_comes_back() -> None:
    lock = GpuLock()
    order: list[str] = []
    other_done = threading.Event()

    def other() -> None:
        with lock.held():
            order.append("other")
        other_done.set()

    with lock.held():
        thread = threading.Thread(target=other)
        thread.start()
        order.append("first")
        with lock.released():
            assert other_done.wait(10), "the other thread never got the lock"
        order.append("first again")
        assert lock._lock.locked()
    thread.join()
    assert order == ["first", "other", "first again"]
    assert not lock._lock.locked()


def test_an_error_while_the_lock_is_released_leaves_it_as_it_was() -> None:
    lock = GpuLock()
    with pytest.raises(ConfigError), lock.held(), lock.released():
        raise ConfigError("stop")
    assert not lock._lock.locked()
    with lock.released():
        assert not lock._lock.locked(), "a thread without the lock has nothing to release"
