"""Compute runs outside this process, whatever moves them: what Ray, Slurm and processes share.

A run is a JSON text in (request.py), computed by a worker (worker.py), and a folder out. A run that
loses its worker is sent again, with all that has come back of its folder: it goes on from its last
checkpoint.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from fewmore.errors import ConfigError, StateError
from fewmore.research.job import Job, Measured
from fewmore.research.launchers.base import Computed, Launcher
from fewmore.research.launchers.request import Packer
from fewmore.research.launchers.worker import Event, Failed
from fewmore.research.protocol import Outcome
from fewmore.training.runtime import Round

MAX_LOSSES = 3  # of a run's workers in a row, without a round or session that is new


@dataclass(frozen=True)
class Lost:
    """Report that a worker is gone: killed, out of memory, or its machine with it."""

    reason: str


@dataclass(eq=False)
class Sent:
    """Hold a job that is computed elsewhere."""

    job: Job
    request: str
    known: set[tuple[str, int]] = field(default_factory=set)  # rounds and sessions told
    losses: int = 0  # since the last of them

    def tell(self, event: Round | Outcome) -> None:
        """Tell the watcher of a round or session, unless a worker before did."""
        key = (event.stage, event.round) if isinstance(event, Round) else ("", event.sessions)
        if key in self.known:
            return
        self.known.add(key)
        self.losses = 0
        if isinstance(event, Round):
            self.job.plan.watcher.on_round(self.job.name, event)
        else:
            self.job.plan.watcher.on_session(self.job.name, event)


class Remote(Launcher):
    """Send jobs to workers and pass on what comes back.

    Args:
        gpus_per_run: how many GPUs a run gets, or which part of one; 0 for the CPU.
        cpus_per_run: how many cores and threads a run gets; by default as many threads as PyTorch
            has here, so that a CPU gives the same bits, and one core beside a GPU.
    """

    name = ""
    most: int | None = None  # runs at once, unless --parallel says so; None: all

    def __init__(self, gpus_per_run: float = 0.0, cpus_per_run: int | None = None) -> None:
        if gpus_per_run > 1 and gpus_per_run != int(gpus_per_run):
            raise ConfigError(
                f"--gpus-per-run {gpus_per_run:g}: a run gets a part of one GPU or whole GPUs"
            )
        self.gpus = gpus_per_run
        self.cpus = cpus_per_run or (1 if gpus_per_run else torch.get_num_threads())
        self.side_by_side = int(1 / gpus_per_run) if 0 < gpus_per_run < 1 else 1

    def __str__(self) -> str:
        cpus = f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}"
        each = f"{self.gpus:g} GPUs" if self.gpus else cpus
        return f"{self.name}, {each} a run"

    def compute(self, jobs: Sequence[Job]) -> Computed:
        """Yield the jobs as they finish; if it is closed, the others are cancelled.

        A user's own files are read before the first job is sent.
        """
        packer = Packer(self.gpus, self.cpus)
        waiting = deque(Sent(job, packer.pack(job)) for job in jobs)
        limit = (jobs[0].options.parallel if jobs else None) or self.most or len(jobs)
        active: dict[Hashable, Sent] = {}
        try:
            while waiting or active:
                self._send(waiting, active, limit)
                for handle, event in self.events(active):
                    sent = active[handle]
                    if isinstance(event, (Round, Outcome)):
                        sent.tell(event)
                        continue
                    del active[handle]
                    end = self._after_loss(sent, event) if isinstance(event, Lost) else event
                    if end is None:
                        waiting.append(sent)
                    else:
                        yield sent.job, partial(_outcome, end)
                self._cancel_stopped(active)
        finally:
            for handle in active:
                self.cancel(handle)

    def _send(self, waiting: deque[Sent], active: dict[Hashable, Sent], limit: int) -> None:
        """Submit jobs that wait, up to the limit; those that were stopped are dropped."""
        batch = [waiting.popleft() for _ in range(min(len(waiting), limit - len(active)))]
        batch = [sent for sent in batch if not sent.job.stop.is_set()]
        active.update(zip(self.submit(batch), batch, strict=True))

    def _cancel_stopped(self, active: dict[Hashable, Sent]) -> None:
        for handle in [key for key, sent in active.items() if sent.job.stop.is_set()]:
            self.cancel(handle)
            del active[handle]

    def _after_loss(self, sent: Sent, event: Lost) -> Failed | None:
        """Count a lost worker; return None if the run is to be sent again, else its failure."""
        sent.losses += 1
        if sent.losses < MAX_LOSSES:
            sent.job.plan.watcher.on_loss(sent.job.name, event.reason)
            return None
        return Failed(
            StateError.__name__,
            f"{sent.job.name} lost its worker {MAX_LOSSES} times in a row without getting "
            f"further; the last time: {event.reason}",
        )

    def submit(self, batch: Sequence[Sent]) -> Iterable[Hashable]:
        """Send jobs to workers; return what each is known by."""
        raise NotImplementedError

    def events(self, active: "dict[Hashable, Sent]") -> "Iterator[tuple[Hashable, Event | Lost]]":
        """Wait a little, and yield what has happened; the last event of a job is not a round."""
        raise NotImplementedError

    def cancel(self, handle: Hashable) -> None:
        """Stop a job."""
        raise NotImplementedError


def _outcome(event: Measured | Failed) -> Measured:
    if isinstance(event, Failed):
        raise event.error()
    return event
