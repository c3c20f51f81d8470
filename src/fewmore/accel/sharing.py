"""Let threads share a GPU although some of them capture CUDA graphs.

While a thread captures a graph, others may do nothing but replay theirs: a new shape that makes
cuDNN time its kernels, or a generator that is seeded, spoils the capture. So a thread holds a lock
in all that it does, and releases it while it replays, which is nearly all of its time.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


class GpuLock:
    """Lock the GPU for one thread at a time, with a way to release it in between."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = threading.local()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock."""
        with self._lock:
            self._thread.holds = True
            try:
                yield
            finally:
                self._thread.holds = False

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the lock meanwhile; nothing happens in a thread that does not hold it."""
        if not getattr(self._thread, "holds", False):
            yield
            return
        self._thread.holds = False
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._thread.holds = True


GPU_LOCK = GpuLock()


@contextmanager
def share_gpu(device: torch.device) -> Iterator[None]:
    """Give a thread its own stream and the lock; on a CPU nothing is needed."""
    if device.type != "cuda":
        yield
        return
    own_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with GPU_LOCK.held(), torch.cuda.stream(own_stream):
        yield


def yield_gpu() -> AbstractContextManager[None]:
    """Let other threads work on the GPU meanwhile, as while waiting or replaying."""
    return GPU_LOCK.released()
