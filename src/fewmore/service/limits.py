"""Limit what one request, one client and all clients together may cost."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fewmore.errors import ConfigError, UnknownName

MEBIBYTE = 2**20
MOST_IMAGES = 1000  # Starlette takes no more files in a form


@dataclass(frozen=True)
class Limits:
    """Hold the largest allowed values. The status of a refused request is in brackets."""

    # One request
    body_bytes: int = 64 * MEBIBYTE  # (413)
    image_bytes: int = 20 * MEBIBYTE  # (413)
    pixels: int = 50_000_000  # of one image, checked before it is decoded (422)
    request_pixels: int = 100_000_000  # of all images, as far as they are decoded (422)
    images: int = 64  # (422)
    classes: int = 10_000  # in the model (409)
    # One client
    per_client: int = 64  # concurrent requests from one address (429)
    client_connections: int = 128  # from one address; further ones are closed at once
    head_seconds: float = 10.0  # to receive a request's head; then the connection is closed
    body_seconds: float = 30.0  # to receive its body (408)
    event_seconds: float = 3600.0  # to follow changes; then the client connects again
    send_seconds: float = 30.0  # for the client to read a response; then the connection is closed
    # All clients
    connections: int = 512  # further ones are closed at once
    bytes_under_way: int = 512 * MEBIBYTE  # of request bodies (503)
    images_waiting: int = 1024  # for the backbone (503)
    pixels_waiting: int = 200_000_000  # of these (503)
    changes_waiting: int = 64  # for their turn (503)
    # Of loaded models, where several are served: idle ones are closed beyond it (503)
    model_bytes: int = 2048 * MEBIBYTE
    end_seconds: int = 10  # to finish responses when the service ends (503)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> "Limits":
        """Change some limits, each given as NAME=NUMBER, such as images=128."""
        defaults = asdict(cls())
        changed: dict[str, Any] = {}
        for text in texts:
            name, _, value = text.partition("=")
            name = name.strip().replace("-", "_")
            if name not in defaults:
                raise UnknownName("limit", name, sorted(defaults))
            try:
                number = type(defaults[name])(value.strip())
            except ValueError:
                number = 0
            if not 0 < number < float("inf"):
                raise ConfigError(
                    f"the limit {text!r} is no number above 0: give it as in "
                    f"--limit {name}={defaults[name]}"
                )
            if name == "images" and number > MOST_IMAGES:
                raise ConfigError(
                    f"the limit {text!r} is too large: a request can have {MOST_IMAGES:,} images"
                )
            changed[name] = number
        return replace(cls(), **changed)


class Busy(Exception):
    """Signal that more is waiting than the limits allow (503)."""


def cores() -> int:
    """Count the CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
