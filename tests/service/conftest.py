"""Provide the service for tests: inside this process, and as a process of its own."""

import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from fewmore.service.app import create_app
from fewmore.service.store import Store

Files = list[tuple[str, tuple[str, bytes, str]]]


def draw(name: str, number: int = 0, size: int = 24) -> bytes:
    """Return a PNG file; images of the same name look alike."""
    pattern = np.random.default_rng(list(name.encode())).integers(0, 256, (4, 4, 3))
    noise = np.random.default_rng([*name.encode(), 1000 + number]).normal(0, 12, (4, 4, 3))
    buffer = io.BytesIO()
    drawn = Image.fromarray((pattern + noise).clip(0, 255).astype(np.uint8)).resize(
        (size, size), Image.Resampling.NEAREST
    )
    drawn.save(buffer, "PNG")
    return buffer.getvalue()


def files(*images: bytes) -> Files:
    return [("images", (f"{number}.png", data, "image/png")) for number, data in enumerate(images)]


@pytest.fixture
def model(small_model: Path, tmp_path: Path) -> Path:
    """Return a model file that knows three birds."""
    (tmp_path / "served").mkdir()
    return Path(shutil.copy(small_model, tmp_path / "served" / "birds.fewmore"))


class Client:
    """Send requests as a client's program would."""

    def __init__(self, http: Any) -> None:
        self.http = http

    def teach(self, name: str, *images: bytes, add: bool = False, **headers: str) -> Any:
        images = images or tuple(draw(name, number) for number in range(3))
        return self.http.post(
            f"/api/classes{'/images' if add else ''}",
            data={"name": name},
            files=files(*images),
            headers=headers,
        )

    def predict(self, *images: bytes, **query: Any) -> Any:
        return self.http.post("/api/predict", files=files(*images), params=query)

    def classes(self) -> dict[str, int]:
        return {
            known["name"]: known["images"]
            for known in self.http.get("/api/classes").json()["classes"]
        }

    def version(self) -> int:
        version: int = self.http.get("/api/model").json()["version"]
        return version


@contextmanager
def serve_inside(model: Path, thumbnails: bool = True, **options: Any) -> Iterator[Client]:
    """Serve a model in this process."""
    app = create_app(Store(model, thumbnails), workers=1, **options)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as http:
        yield Client(http)


@pytest.fixture
def client(model: Path) -> Iterator[Client]:
    with serve_inside(model) as client:
        yield client


@dataclass(frozen=True)
class Served:
    """Hold a process that serves a model."""

    url: str
    model: Path
    process: "subprocess.Popen[str]"

    def stop(self) -> int:
        """Interrupt it, as Ctrl+C does."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=30)


@contextmanager
def serve_outside(
    model: Path,
    *options: str,
    before: tuple[str, ...] = (),
    program: tuple[str, str] = ("-m", "fewmore"),
    **environment: str,
) -> Iterator[Served]:
    """Run `fewmore serve MODEL` on a free port."""
    command = [
        *before,
        sys.executable,
        *program,
        "serve",
        str(model),
        "--port",
        "0",
        *options,
    ]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=surroundings
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        if "is served at" not in line:
            raise AssertionError(line + (process.stderr.read() if process.stderr else ""))
        yield Served(line.split()[-1].partition("#")[0].rstrip("/"), model, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


@pytest.fixture(scope="session")
def image() -> Callable[..., bytes]:
    """Return a function: image("okapi", 2) is the content of a PNG file."""
    return draw


@pytest.fixture(scope="session")
def inside() -> Callable[..., AbstractContextManager[Client]]:
    """Return a function: inside(model, access=…, limits=…) serves a model in this process."""
    return serve_inside


@pytest.fixture
def connect() -> Iterator[Callable[[Served], Client]]:
    """Return a function: connect(served) is a client of a process."""
    with ExitStack() as stack:
        yield lambda served: Client(
            stack.enter_context(httpx2.Client(base_url=served.url, timeout=30))
        )


@pytest.fixture(scope="session")
def serving() -> Callable[..., AbstractContextManager[Served]]:
    """Return a function: serving(model, "--private", …) is a context with a server process."""
    return serve_outside
