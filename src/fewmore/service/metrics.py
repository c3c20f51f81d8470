"""Count requests, batches and refusals for Prometheus."""

import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import prometheus_client
import torch
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fewmore import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
PREFIX = "fewmore"

# Leave out a time beside every counter, which nobody reads.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Value:
    """Describe one value without labels, as it is at the moment."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    value: float


class Metrics:
    """Count requests by route and status, and measure how long they took."""

    def __init__(self, device: str = "cpu") -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "requests",
            "Requests answered.",
            ("method", "route", "status"),
            namespace=PREFIX,
            registry=self.registry,
        )
        self._seconds = Histogram(
            "request_seconds",
            "Time from a request's head to its response.",
            ("method", "route"),
            buckets=BUCKETS,
            namespace=PREFIX,
            registry=self.registry,
        )
        self._batch_seconds = Histogram(
            "batch_seconds",
            "Time to decode and embed a batch of images.",
            buckets=BUCKETS,
            namespace=PREFIX,
            registry=self.registry,
        )
        self._refused_tokens = Counter(
            "refused_tokens",
            "Requests without the right token.",
            ("reason",),
            namespace=PREFIX,
            registry=self.registry,
        )
        for reason in ("missing", "wrong"):
            self._refused_tokens.labels(reason)
        ProcessCollector(registry=self.registry)
        self.registry.register(_Build(device))

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record one request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def observe_batch(self, seconds: float) -> None:
        """Record one batch of images."""
        self._batch_seconds.observe(seconds)

    def refuse_token(self, reason: Literal["missing", "wrong"]) -> None:
        """Record a request that was refused for its token."""
        self._refused_tokens.labels(reason).inc()

    def text(self, values: Iterable[Value]) -> bytes:
        """Write everything that was counted, followed by these values."""
        now = CollectorRegistry()
        now.register(_Values(values))
        latest = prometheus_client.generate_latest
        return latest(self.registry) + latest(now)


class _Build(Collector):
    """Say which versions of what are running."""

    def __init__(self, device: str) -> None:
        labels = {
            "version": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": device,
        }
        help_text = "Versions of the software, and the device it computes on."
        self._family = GaugeMetricFamily(f"{PREFIX}_build_info", help_text, labels=list(labels))
        self._family.add_metric(list(labels.values()), 1)

    def collect(self) -> Iterator[Metric]:
        yield self._family


class _Values(Collector):
    """Give values of the moment."""

    def __init__(self, values: Iterable[Value]) -> None:
        self._values = tuple(values)

    def collect(self) -> Iterator[Metric]:
        for value in self._values:
            family = CounterMetricFamily if value.kind == "counter" else GaugeMetricFamily
            yield family(f"{PREFIX}_{value.name}", value.help, value=value.value)
