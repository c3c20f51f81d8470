"""Map a function over tasks with threads."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def threaded_map(function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
    """Yield the results in the order of the tasks, computed ahead by one thread per CPU core.

    At most two results per thread wait in memory.
    """
    if len(tasks) <= 1:  # a single task needs no threads
        yield from map(function, tasks)
        return
    threads = os.cpu_count() or 1
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for task in tasks:
                pending.append(pool.submit(function, task))
                if len(pending) > 2 * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
