"""Run changes one after the other, in a thread apart from the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.exceptions import HTTPException

from fewmore.service.limits import Busy
from fewmore.service.problems import RETRY_SOON

T = TypeVar("T")


class ChangeQueue:
    """Queue changes for one thread, up to a limit."""

    def __init__(self, most_waiting: int) -> None:
        self.waiting = 0
        self._most_waiting = most_waiting
        self._thread = ThreadPoolExecutor(1, "changes")

    async def run(self, work: Callable[[], T]) -> T:
        """Run a client's change in turn; refuse it if too many wait or the disk fails."""
        if self.waiting >= self._most_waiting:
            raise Busy
        self.waiting += 1
        try:
            return await self.run_internal(work)
        except OSError as error:
            raise HTTPException(
                503,
                f"the change could not be written to the disk ({error.strerror or error}), "
                "and was not made: make room or let it be written to, then try again",
                RETRY_SOON,
            ) from error
        finally:
            self.waiting -= 1

    async def run_internal(self, work: Callable[[], T]) -> T:
        """Run the service's own work in turn, without a limit."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Wait for the last change, and stop the thread."""
        self._thread.shutdown()
