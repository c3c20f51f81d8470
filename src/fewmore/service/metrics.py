"""Count requests and write the counters in Prometheus' text format."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
PREFIX = "fewmore_"


@dataclass(frozen=True)
class Metric:
    """Describe one value without labels, as it is at the moment."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    value: float


class Metrics:
    """Count requests by route and status, and measure how long they took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[tuple[str, str], list[float]] = {}  # counts by bucket, then the sum

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record one request."""
        with self._lock:
            self._requests[method, route, status] += 1
            histogram = self._seconds.setdefault((method, route), [0.0] * (len(BUCKETS) + 2))
            bucket = next((i for i, most in enumerate(BUCKETS) if seconds <= most), len(BUCKETS))
            histogram[bucket] += 1
            histogram[-1] += seconds

    def text(self, metrics: Sequence[Metric]) -> str:
        """Write the request counters, followed by these metrics."""
        with self._lock:
            lines = [*self._request_lines(), *self._histogram_lines()]
        for metric in metrics:
            lines += _header(metric.name, metric.kind, metric.help)
            lines.append(f"{PREFIX}{metric.name} {_number(metric.value)}")
        return "\n".join(lines) + "\n"

    def _request_lines(self) -> list[str]:
        name = "requests_total"
        lines = _header(name, "counter", "Requests answered.")
        for (method, route, status), count in sorted(self._requests.items()):
            labels = f'method="{method}",route="{route}",status="{status}"'
            lines.append(f"{PREFIX}{name}{{{labels}}} {count}")
        return lines

    def _histogram_lines(self) -> list[str]:
        name = "request_seconds"
        lines = _header(name, "histogram", "Time from a request's head to its response.")
        for (method, route), histogram in sorted(self._seconds.items()):
            labels = f'method="{method}",route="{route}"'
            total = 0.0
            for most, count in zip((*map(str, BUCKETS), "+Inf"), histogram, strict=False):
                total += count
                lines.append(f'{PREFIX}{name}_bucket{{{labels},le="{most}"}} {_number(total)}')
            lines += [
                f"{PREFIX}{name}_sum{{{labels}}} {histogram[-1]:.6f}",
                f"{PREFIX}{name}_count{{{labels}}} {_number(total)}",
            ]
        return lines


def _number(value: float) -> str:
    """Write a number with all its digits."""
    return str(int(value)) if value == int(value) else repr(float(value))


def _header(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP {PREFIX}{name} {help_text}", f"# TYPE {PREFIX}{name} {kind}"]
