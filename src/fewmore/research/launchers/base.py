"""Define what a launcher is: it computes runs, here or on other machines."""

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewmore.research.job import Job, Measured

# Yields each job as its run ends, with a function that returns what came of it or raises its error.
Computed = Generator[tuple["Job", Callable[[], "Measured"]], None, None]


class Launcher:
    """Compute the runs of experiments."""

    side_by_side = 1  # runs that share a device

    def compute(self, jobs: "Sequence[Job]") -> Computed:
        """Compute all jobs whose `stop` is not set; if it is closed, stop those that are left."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Say what a user should know before the first run."""
        return []

    def __str__(self) -> str:
        """Say where runs are computed, as the first line of a run does."""
        raise NotImplementedError
