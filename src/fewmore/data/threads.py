"""Map a function over tasks with threads, or with processes."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def threaded_map(function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
    """Yield the results in the order of the tasks, computed ahead by one thread per CPU core.

    At most two results per thread wait in memory. Tasks are made as they are needed.
    """
    if isinstance(tasks, Sequence) and len(tasks) <= 1:  # a single task needs no threads
        yield from map(function, tasks)
        return
    threads = os.cpu_count() or 1
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
