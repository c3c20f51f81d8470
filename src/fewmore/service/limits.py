"""What one request, one client and all of them together may cost."""

import os
from dataclasses import dataclass

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Limits:
    """Numbers above which a request is refused, with the status in brackets."""

    # One request
    body_bytes: int = 64 * MEBIBYTE  # (413)
    image_bytes: int = 20 * MEBIBYTE  # (413)
    pixels: int = 50_000_000  # of one image, before it is decoded (422)
    images: int = 64  # (422)
    classes: int = 10_000  # known at a time (409)
    # One client
    per_client: int = 64  # requests under way from one address (429)
    client_connections: int = 128  # from one address; more are closed at once
    head_seconds: float = 10.0  # until a request's head is there; then the connection is closed
    body_seconds: float = 30.0  # until its body is there (408)
    send_seconds: float = (
        30.0  # until a client has taken what it was sent; then the connection is closed
    )
    # All of them
    connections: int = 512  # more are closed at once
    bytes_under_way: int = 512 * MEBIBYTE  # of requests' bodies (503)
    images_waiting: int = 1024  # (503)
    changes_waiting: int = 64  # (503)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
