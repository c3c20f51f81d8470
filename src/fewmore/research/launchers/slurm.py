"""Compute runs as jobs of Slurm, by submitit; the run folders lie on a shared file system.

A job writes into its run folder directly, and what happens into a file beside, which is read here.
A job that is preempted or out of time is queued again by submitit, one whose node is lost is sent
again from here; both go on from the checkpoint in the folder.
"""

import pickle
import shutil
import time
import uuid
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import submitit

from fewmore.errors import ConfigError, first_line
from fewmore.research.job import Measured
from fewmore.research.launchers import worker
from fewmore.research.launchers.remote import Lost, Remote, Sent
from fewmore.research.launchers.worker import Event, Failed

FOLDER = "slurm"  # beside the run folders: scripts, logs and events of the jobs
POLL_SECONDS = 0.5
LOCAL = "local"  # the cluster that is this machine, to try things out
DEFAULTS = {"timeout_min": 240}
MAX_TIMEOUTS = 1000  # how often a job that is out of time is queued again


class Slurm(Remote):
    """Send each job to Slurm.

    Args:
        gpus_per_run: see Remote; Slurm gives whole GPUs.
        cpus_per_run: see Remote.
        slurm: parameters of submitit, such as partition, account, qos, timeout_min or mem_gb; with
            cluster=local the jobs are processes of this machine.
    """

    name = "slurm"

    def __init__(
        self,
        gpus_per_run: float = 0.0,
        cpus_per_run: int | None = None,
        slurm: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(gpus_per_run, cpus_per_run)
        if gpus_per_run != int(gpus_per_run):
            raise ConfigError(
                f"--gpus-per-run {gpus_per_run:g}: Slurm gives whole GPUs: type --gpus-per-run 1"
            )
        self.parameters = {**DEFAULTS, **(slurm or {})}
        self.cluster = self.parameters.pop("cluster", "slurm")
        if self.cluster not in ("slurm", LOCAL):
            raise ConfigError(f"--slurm cluster={self.cluster}: it is slurm or {LOCAL}")
        if self.cluster != LOCAL and shutil.which("srun") is None:
            raise ConfigError(
                "--launcher slurm: there is no Slurm on this machine: type the command on a login "
                f"node, or try it out with --slurm cluster={LOCAL}"
            )

    def submit(self, batch: Sequence[Sent]) -> list[Hashable]:
        """Send jobs, several as one array."""
        if not batch:
            return []
        executor = self._executor(batch[0].job.plan.folder.parent / FOLDER)
        handles = [_Handle(executor.folder / f"{uuid.uuid4().hex}.events") for _ in batch]
        with executor.batch():
            for handle, sent in zip(handles, batch, strict=True):
                folder = sent.job.folder.resolve()
                handle.job = executor.submit(
                    _Compute(), sent.request, str(folder), str(handle.path)
                )
        return list(handles)

    def _executor(self, folder: Path) -> Any:
        """Return submitit's executor with the parameters of all jobs."""
        executor = submitit.AutoExecutor(
            folder.resolve(), cluster=self.cluster, slurm_max_num_timeout=MAX_TIMEOUTS
        )
        common = ("timeout_min", "mem_gb")
        given = {
            name if name in common else f"slurm_{name}": value
            for name, value in self.parameters.items()
        }
        try:
            executor.update_parameters(
                name="fewmore",
                cpus_per_task=self.cpus,
                gpus_per_node=int(self.gpus),
                **given,
            )
        except (NameError, TypeError, ValueError) as error:
            reason = first_line(error)
            raise ConfigError(f"--slurm: {reason}") from None
        return executor

    def events(self, active: dict[Hashable, Sent]) -> Iterator[tuple[Hashable, Event | Lost]]:
        """Yield what the jobs have written since the last call; wait if there was nothing."""
        quiet = True
        for handle in list(active):
            assert isinstance(handle, _Handle)
            is_over = handle.job.done()  # asked first: what it wrote before is read below
            for event in handle.read():
                quiet = False
                if isinstance(event, (Measured, Failed)):
                    handle.end = event
                else:
                    yield handle, event
            if is_over:
                quiet = False
                handle.close()
                lost = Lost(f"job {handle.job.job_id} is {handle.job.state}")
                yield handle, handle.end or lost
        if quiet:
            time.sleep(POLL_SECONDS)

    def cancel(self, handle: Hashable) -> None:
        """Cancel a job."""
        assert isinstance(handle, _Handle)
        handle.job.cancel(check=False)
        handle.close()


class _Compute:
    """Compute a run in a job, and append what happens to a file; submitit pickles and calls it."""

    def __call__(self, request: str, folder: str, events: str) -> None:
        with Path(events).open("ab") as file:

            def emit(event: Event) -> None:
                file.write(pickle.dumps(event))
                file.flush()

            emit(worker.compute(request, Path(folder), emit))

    def checkpoint(self, *arguments: str) -> Any:
        """Return what is queued again, when the job is preempted or out of time: the same."""
        return submitit.helpers.DelayedSubmission(self, *arguments)


class _Handle:
    """Hold a job of submitit and the file of its events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job: Any = None
        self.file: BinaryIO | None = None
        self.end: Measured | Failed | None = None  # the last event, once it is read

    def read(self) -> Iterator[Event]:
        """Yield the events that are new; one of which only a part is there is read later."""
        if self.file is None:
            with suppress(FileNotFoundError):
                self.file = self.path.open("rb")
        while self.file is not None:
            place = self.file.tell()
            try:
                event: Event = pickle.load(self.file)
            except (EOFError, pickle.UnpicklingError):
                self.file.seek(place)
                return
            yield event

    def close(self) -> None:
        """Remove the file of events."""
        if self.file is not None:
            self.file.close()
            self.file = None
        self.path.unlink(missing_ok=True)
