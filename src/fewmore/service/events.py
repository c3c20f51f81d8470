"""Wake those who follow the changes of the model."""

import asyncio

END_RESPONSE = "fewmore.end_response"  # in a request's scope: what to call when the service ends


class Events:
    """Let coroutines wait for the next change. All of them run in one event loop."""

    def __init__(self) -> None:
        self.ended = False
        self._next: asyncio.Event | None = None

    def announce(self) -> None:
        """Wake all who wait."""
        if self._next is not None:
            self._next.set()
        self._next = None

    def end(self) -> None:
        """Let nobody wait any longer."""
        self.ended = True
        self.announce()

    async def wait(self, seconds: float) -> None:
        """Wait for the next change, for some seconds at most."""
        if self._next is None:
            self._next = asyncio.Event()
        try:
            await asyncio.wait_for(self._next.wait(), seconds)
        except asyncio.TimeoutError:
            return
