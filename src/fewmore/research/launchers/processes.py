"""Compute runs in processes of this machine, several at once: on its cores or on its GPUs.

A process computes one run after another and keeps the loaded images. A run whose process is killed
is given to another one and goes on from its checkpoint.
"""

import multiprocessing
import os
import pickle
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import cast

import torch

from fewmore.child_process import follow_parent
from fewmore.data.threads import count_cores
from fewmore.errors import ConfigError
from fewmore.research.job import Job, Measured
from fewmore.research.launchers import worker
from fewmore.research.launchers.base import Computed
from fewmore.research.launchers.remote import Lost, Remote, Sent
from fewmore.research.launchers.worker import Event, Failed

WAIT_SECONDS = 1.0  # for the next event


class Processes(Remote):
    """Give each job to a process of its own, with some cores or a part of a GPU.

    Args:
        gpus_per_run: which part of a GPU a run gets; 0 for the CPU. Several GPUs are used in turn.
        cpus_per_run: how many threads a run gets; one by default.
    """

    name = "processes"

    def __init__(self, gpus_per_run: float = 0.0, cpus_per_run: int | None = None) -> None:
        super().__init__(gpus_per_run, cpus_per_run or 1)
        self.devices = torch.cuda.device_count() if self.gpus else 0
        if self.gpus > 1:
            raise ConfigError(
                f"--gpus-per-run {self.gpus:g}: a process uses one GPU: type --gpus-per-run 1"
            )
        if self.gpus and not self.devices:
            raise ConfigError(
                f"--gpus-per-run {self.gpus:g}: PyTorch sees no GPU here: leave it out for the CPU"
            )
        cores = max(1, count_cores() // self.cpus)
        self.most = self.devices * self.side_by_side if self.gpus else cores
        self.children: list[_Child | None] = []  # by their places; None where one has ended
        self.idle: list[_Child] = []

    def compute(self, jobs: Sequence[Job]) -> Computed:
        """Yield the jobs as they finish; all processes end with the last of them."""
        try:
            yield from super().compute(jobs)
        finally:
            for child in filter(None, self.children):
                child.end()
            self.children.clear()
            self.idle.clear()

    def submit(self, batch: Sequence[Sent]) -> list[Hashable]:
        """Give jobs to processes that have none, or to new ones."""
        given: list[Hashable] = []
        for sent in batch:
            child = self.idle.pop() if self.idle else self._start()
            child.send(sent.request, sent.job.folder.resolve())
            given.append(child)
        return given

    def _start(self) -> "_Child":
        """Start a process in the first free place, which says its GPU."""
        if None not in self.children:
            self.children.append(None)
        place = self.children.index(None)
        started = self.children[place] = _Child(place % self.devices if self.devices else None)
        return started

    def events(self, active: dict[Hashable, Sent]) -> Iterator[tuple[Hashable, Event | Lost]]:
        """Wait for events of the processes; one whose pipe is closed has ended."""
        by_pipe = {each.pipe: each for each in active if isinstance(each, _Child)}
        for pipe in wait(list(by_pipe), WAIT_SECONDS):
            child = by_pipe[cast(Connection, pipe)]  # on Windows of another class
            try:
                event: Event = pickle.loads(child.pipe.recv_bytes())
            except (EOFError, OSError):
                self._forget(child)
                yield child, Lost(f"its process ended with exit code {child.end()}")
                continue
            if isinstance(event, (Measured, Failed)):
                self.idle.append(child)
            yield child, event

    def cancel(self, handle: Hashable) -> None:
        """Kill the process of a job."""
        assert isinstance(handle, _Child)
        self._forget(handle)
        handle.end()

    def _forget(self, child: "_Child") -> None:
        self.children[self.children.index(child)] = None


class _Child:
    """Hold a process that computes runs, and the pipe to it.

    It is started anew instead of forked, as a fork cannot use a GPU that its parent uses.
    """

    def __init__(self, gpu: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, its = context.Pipe()
        self.process = context.Process(target=_work, args=(its, gpu), daemon=True)
        self.process.start()
        its.close()

    def send(self, request: str, folder: Path) -> None:
        """Give it a run; if it has ended already, its pipe will tell."""
        with suppress(OSError):
            self.pipe.send_bytes(pickle.dumps((request, folder)))

    def end(self) -> int | None:
        """Kill the process if it lives, and return its exit code."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return self.process.exitcode


def _work(pipe: Connection, gpu: int | None) -> None:
    """Compute runs as they come, and send back what happens; end with the parent."""
    follow_parent()
    if gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)

    def emit(event: Event) -> None:
        # As bytes: the pipe's own pickling of tensors shares memory, which is limited.
        pipe.send_bytes(pickle.dumps(event))

    while True:
        try:
            request, folder = pickle.loads(pipe.recv_bytes())
            emit(worker.compute(request, folder, emit))
        except (EOFError, OSError):
            return
