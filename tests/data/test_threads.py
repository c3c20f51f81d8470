"""Threads that compute on one core each."""

import threading

import pytest
import torch

from fewmore.data.threads import one_core_each, threaded_map


@pytest.fixture
def two_threads():
    """Let PyTorch use two threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def threads_of_a_new_thread() -> int:
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.usefixtures("two_threads")
def test_pytorch_computes_on_one_core_in_threads_that_begin_meanwhile():
    with one_core_each():
        assert torch.get_num_threads() == 1
        assert set(threaded_map(lambda _: torch.get_num_threads(), range(20))) == {1}
    assert torch.get_num_threads() == threads_of_a_new_thread() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_does_not_leave_pytorch_on_one_core():
    with pytest.raises(ZeroDivisionError), one_core_each():
        raise ZeroDivisionError
    assert torch.get_num_threads() == threads_of_a_new_thread() == 2
