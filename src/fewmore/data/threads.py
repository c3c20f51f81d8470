"""Map a function over tasks with threads, or with processes."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threaded_map(function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
    """Yield the results in the order of the tasks, computed ahead by one thread per CPU core.

    At most two results per thread wait in memory. Tasks are made as they are needed.
    """
    if isinstance(tasks, Sequence) and len(tasks) <= 1:  # a single task needs no threads
        yield from map(function, tasks)
        return
    threads = count_cores()
    with ThreadPoolExecutor(threads) as pool:
        yield from map_ahead(pool, function, tasks, 2 * threads)


def map_ahead(
    pool: Executor, function: Callable[[T], R], tasks: Iterable[T], ahead: int
) -> Iterator[R]:
    """Yield the results in the order of the tasks, so many of which a pool computes ahead."""
    pending: deque[Future[R]] = deque()
    try:
        for task in tasks:
            pending.append(pool.submit(function, task))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


@contextmanager
def one_core_each() -> Iterator[None]:
    """Let PyTorch compute on one core in this thread, and in each that begins meanwhile.

    Several small problems at once are faster than one after the other on all cores, where in each
    step the cores wait for one another; where another program uses one of them, many times so.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
