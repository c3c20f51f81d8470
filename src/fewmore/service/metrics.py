"""Counters in Prometheus' text format."""

import threading
from collections import Counter
from collections.abc import Mapping

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class Metrics:
    """How many requests there were, by route and status, and how long they took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[tuple[str, str], list[float]] = {}  # counts by bucket, then the sum

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[method, route, status] += 1
            row = self._seconds.setdefault((method, route), [0.0] * (len(BUCKETS) + 2))
            row[next((i for i, most in enumerate(BUCKETS) if seconds <= most), len(BUCKETS))] += 1
            row[-1] += seconds

    def text(self, gauges: Mapping[str, tuple[str, str, float]]) -> str:
        """All of it, and values of the moment by name: (kind, help, value)."""
        lines = [
            "# HELP fewmore_requests_total Requests answered.",
            "# TYPE fewmore_requests_total counter",
        ]
        with self._lock:
            for (method, route, status), count in sorted(self._requests.items()):
                lines.append(
                    f'fewmore_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
                )
            lines += [
                "# HELP fewmore_request_seconds Time from a request's head to its answer.",
                "# TYPE fewmore_request_seconds histogram",
            ]
            for (method, route), row in sorted(self._seconds.items()):
                labels, total = f'method="{method}",route="{route}"', 0.0
                for most, inside in zip((*map(str, BUCKETS), "+Inf"), row, strict=False):
                    total += inside
                    lines.append(
                        f'fewmore_request_seconds_bucket{{{labels},le="{most}"}} {total:g}'
                    )
                lines += [
                    f"fewmore_request_seconds_sum{{{labels}}} {row[-1]:.6f}",
                    f"fewmore_request_seconds_count{{{labels}}} {total:g}",
                ]
        for name, (kind, what, value) in gauges.items():
            lines += [
                f"# HELP fewmore_{name} {what}",
                f"# TYPE fewmore_{name} {kind}",
                f"fewmore_{name} {value:g}",
            ]
        return "\n".join(lines) + "\n"
