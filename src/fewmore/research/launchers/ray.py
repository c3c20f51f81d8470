"""Compute runs on a Ray cluster, a task each; the machines need no shared file system.

A task is a generator: rounds, sessions and the changed files of the run's folder come back as
objects while it works. A run that loses its worker or node is sent again with these files.
"""

import logging
import os
import queue
import socket
import tempfile
import threading
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from fewmore.errors import ConfigError, first_line
from fewmore.io import write_bytes
from fewmore.research.job import Measured
from fewmore.research.launchers import worker
from fewmore.research.launchers.remote import Lost, Remote, Sent
from fewmore.research.launchers.worker import Event, Failed
from fewmore.research.protocol import Outcome
from fewmore.research.run_folder import CHECKPOINT, METRICS
from fewmore.training.runtime import Round

Files = dict[str, bytes]  # of a run's folder, by their paths in it

CONNECT_SECONDS = 5.0
WAIT_SECONDS = 1.0  # for the next event


class Ray(Remote):
    """Send jobs to a Ray cluster as tasks with a part of a GPU, a GPU or some cores each.

    Args:
        address: of the cluster: auto, or host:port; by default the cluster of $RAY_ADDRESS or of
            this machine, or else one that is started on this machine.
        gpus_per_run: see Remote.
        cpus_per_run: see Remote.
    """

    name = "ray"

    def __init__(
        self, address: str | None = None, gpus_per_run: float = 0.0, cpus_per_run: int | None = None
    ) -> None:
        super().__init__(gpus_per_run, cpus_per_run)
        connect(address)
        self.task = ray.remote(_compute).options(
            num_returns="streaming", max_retries=0, num_cpus=self.cpus, num_gpus=self.gpus
        )

    def notes(self) -> list[str]:
        """Say if no node of the cluster is large enough for a run."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        if any(all(node.get(name, 0) >= wanted[name] for name in wanted) for node in nodes):
            return []
        return [
            f"no node of the Ray cluster has {self.cpus} CPUs and {self.gpus:g} GPUs for a run: "
            "the runs wait until one joins (Ctrl-C stops them; --cpus-per-run, --gpus-per-run)"
        ]

    def submit(self, batch: Sequence[Sent]) -> list[Hashable]:
        """Send a task for each job, with what is there of its folder."""
        return [
            self.task.remote(sent.request, sent.job.plan.folder.name, sent.job.name, _read(sent))
            for sent in batch
        ]

    def events(self, active: dict[Hashable, Sent]) -> Iterator[tuple[Hashable, Event | Lost]]:
        """Wait for objects of the tasks; write files into the jobs' folders, yield the others."""
        ready, _ = ray.wait(list(active), num_returns=1, timeout=WAIT_SECONDS)
        for task in ready:
            try:
                event = ray.get(next(task))
            except RayTaskError as error:  # the worker cannot even begin, as without fewmore
                event = Failed("", str(error))
            except (RayError, StopIteration) as error:
                event = Lost(first_line(error))
            if isinstance(event, dict):
                _write(active[task], event)
            else:
                yield task, event

    def cancel(self, handle: Hashable) -> None:
        """Kill the worker of a task, or take the task out of the queue."""
        ray.cancel(handle, force=True)


def connect(address: str | None) -> None:
    """Connect to a cluster, or start one on this machine, unless this process has one already."""
    if ray.is_initialized():
        return
    given = address or os.environ.get("RAY_ADDRESS")
    if given:
        _check(given)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to Ray's makers
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = first_line(error)
        raise ConfigError(
            f"--address {address}: Ray cannot be reached ({reason.rstrip('.')}): start it with "
            "`ray start --head`, or leave out --address to use this machine alone"
        ) from None


def _check(address: str) -> None:
    """Refuse an address that nothing listens at: Ray itself would try it for minutes."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"--address {address}: nothing is sent through a Ray client: type the command on a "
            "machine of the cluster with --address auto, or send it there with `ray job submit`"
        )
    host, colon, port = address.rpartition(":")
    if not colon:
        return  # auto and local, or refused by Ray at once
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--address {address}: no Ray cluster answers there ({error}): give the address that "
            "`ray start --head` prints, or auto on a machine of the cluster"
        ) from None


def _compute(
    request: str, group: str, name: str, files: Files
) -> Iterator[Round | Outcome | Files | Event]:
    """Compute a run on a worker; yield what happens, and the files that have changed."""
    with tempfile.TemporaryDirectory(prefix="fewmore-") as temporary:
        folder = Path(temporary) / group / name
        folder.mkdir(parents=True)
        for file, data in files.items():
            (folder / file).write_bytes(data)
        changes = _Changes(folder)
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def emit(event: Round | Outcome) -> None:
            events.put(event)
            if changes.has(CHECKPOINT):
                events.put(changes.take())

        def run() -> None:
            events.put(worker.compute(request, folder, emit))

        threading.Thread(target=run, daemon=True).start()
        while not isinstance(event := events.get(), (Measured, Failed)):
            yield event
        yield changes.take()
        yield event


class _Changes:
    """Find the files of a folder that have changed since they were last taken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken = self._files()

    def has(self, name: str) -> bool:
        """Return whether a file has changed."""
        return self._files().get(name) != self.taken.get(name)

    def take(self) -> Files:
        """Return the files that have changed."""
        files = self._files()
        changed = [name for name, stamp in files.items() if self.taken.get(name) != stamp]
        self.taken = files
        return {name: (self.folder / name).read_bytes() for name in changed}

    def _files(self) -> dict[str, tuple[int, int]]:
        """Return size and time of each file, but of those that are being written."""
        found = {}
        for path in self.folder.rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                about = path.stat()
                found[path.relative_to(self.folder).as_posix()] = about.st_size, about.st_mtime_ns
        return found


def _read(sent: Sent) -> Files:
    """Return the files that a run goes on from; what it wrote of single sessions stays here."""
    folder = sent.job.folder
    if not folder.exists():
        return {}
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _write(sent: Sent, files: Files) -> None:
    """Write files of a run that have come back.

    metrics.jsonl comes first: it may be ahead of the checkpoint, never behind.
    """
    for name in sorted(files, key=lambda name: name != METRICS):
        path = sent.job.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, files[name])
