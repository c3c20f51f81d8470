"""Share the wall clock among runs that are computed side by side."""

import threading
import time


class SharedClock:
    """Split elapsed time evenly among the runs that are active at each moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[object, float] = {}
        self._last_tick = time.monotonic()

    def start(self, run: object) -> None:
        """Begin to charge time to a run."""
        with self._lock:
            self._tick()
            self._seconds[run] = 0.0

    def stop(self, run: object) -> float:
        """Stop charging a run and return its share in seconds."""
        with self._lock:
            self._tick()
            return round(self._seconds.pop(run), 3)

    def abandon(self, run: object) -> None:
        """Stop charging a run that has failed."""
        with self._lock:
            self._tick()
            self._seconds.pop(run, None)

    def _tick(self) -> None:
        now = time.monotonic()
        for run in self._seconds:
            self._seconds[run] += (now - self._last_tick) / len(self._seconds)
        self._last_tick = now
