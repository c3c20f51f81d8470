"""Compute runs in this process, on a CPU one after another.

On a GPU several are computed side by side, each in a thread and a stream of its own: a small
network leaves most of a large GPU idle. They share the loaded images.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from fewmore.research.job import Job
from fewmore.research.launchers.base import Computed, Launcher


class Local(Launcher):
    """Call the jobs in threads of this process, as many at a time as their options say."""

    def compute(self, jobs: Sequence[Job]) -> Computed:
        """Yield the jobs as they finish; a single worker calls each when its result is asked for.

        If it is closed, runs that are being computed stop after their current round.
        """
        workers = jobs[0].options.workers(len(jobs)) if jobs else 1
        if workers == 1:
            for job in jobs:
                yield job, job
            return
        with ThreadPoolExecutor(workers) as pool:
            futures = {pool.submit(job): job for job in jobs}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result
            except BaseException:
                for job in jobs:
                    job.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
