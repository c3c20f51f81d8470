"""Test images by URL: only from hosts that the operator allows."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fewmore.errors import ConfigError
from fewmore.service.guard import Access
from fewmore.service.image_urls import parse_host
from fewmore.service.limits import Limits

Inside = Callable[..., AbstractContextManager[Any]]
MakeImage = Callable[..., bytes]


@pytest.fixture
def host(image: MakeImage) -> Iterator[str]:
    """Return the origin of a host of images."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/elsewhere":
                self.send_response(302)
                self.send_header("Location", "/robin.png")
                self.end_headers()
                return
            if self.path == "/nonsense":
                self.wfile.write(b"nonsense\r\n\r\n")
                return
            if self.path == "/slow-head":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
                self._send_slowly()
                return
            known = self.path != "/none"
            self.send_response(200 if known else 404)
            if self.path == "/cut":
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if self.path == "/slow":
                self._send_slowly()
            elif self.path == "/cut":
                self.wfile.write(b"5\r\nhe")
            elif self.path == "/large":
                self.wfile.write(b"x" * 200_000)
            elif known:
                self.wfile.write(image(self.path.strip("/").removesuffix(".png")))

        def _send_slowly(self) -> None:
            """Send a byte now and then for ten seconds, as long as somebody reads."""
            with contextlib.suppress(ConnectionError):
                for _ in range(200):
                    self.wfile.write(b"x")
                    if over.wait(0.05):
                        return

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        over.set()
        server.shutdown()


def test_images_are_fetched_from_allowed_hosts(
    model: Path, inside: Inside, host: str, image: MakeImage
):
    limits = Limits(image_bytes=100_000, images=3)
    with inside(model, access=Access(image_origins=(host,)), limits=limits) as client:

        def ask(*urls: str) -> Any:
            return client.http.post("/api/predict/urls?top=2", json={"urls": urls})

        sent = client.predict(image("robin"), image("wren"), top=2).json()
        assert ask(f"{host}/robin.png", f"{host}/wren.png").json() == sent
        port = host.rpartition(":")[2]
        for urls, why in (
            (("http://localhost/a.png",), "URL 1 is not from a host"),
            ((f"{host}/robin.png", f"https://127.0.0.1:{port}/a"), "URL 2 is not from a host"),
            ((f"http://127.0.0.1:{port}@evil.example/",), "not from a host"),
            ((f"http://me@127.0.0.1:{port}/robin.png",), "not from a host"),
            ((f"http://127.0.0.1:{port}.evil.example/",), "not from a host"),
            (("file:///etc/passwd",), "not from a host"),
            (("http://[",), "not from a host"),
            (("",), "not from a host"),
            ((f"{host}/a b\r\nX: y",), "not from a host"),
            ((f"{host}/elsewhere",), "its host says 302"),
            ((f"{host}/none",), "its host says 404"),
            ((f"{host}/large",), "more than 100,000 bytes"),
            ((f"{host}/nonsense",), "does not answer"),
            ((f"{host}/cut",), "does not answer"),
            ((f"{host}/robin.png",) * 4, "at most 3 URLs"),
            ((), "not as it should be"),
        ):
            response = ask(*urls)
            assert response.status_code == 422, urls
            assert why in response.json()["detail"]
    with inside(model, access=Access(image_origins=("http://127.0.0.1:1",))) as client:
        response = client.http.post("/api/predict/urls", json={"urls": ["http://127.0.0.1:1/a"]})
        assert "does not answer" in response.json()["detail"]


@pytest.mark.parametrize("part", ["slow", "slow-head"])
def test_a_host_that_sends_slowly_is_left(model: Path, inside: Inside, host: str, part: str):
    access, limits = Access(image_origins=(host,)), Limits(body_seconds=0.5)
    with inside(model, access=access, limits=limits) as client:
        response = client.http.post("/api/predict/urls", json={"urls": [f"{host}/{part}"]})
        assert response.status_code == 422
        assert "cannot be fetched in time" in response.json()["detail"]


def test_without_allowed_hosts_nothing_is_fetched(client: Any, host: str):
    response = client.http.post("/api/predict/urls", json={"urls": [f"{host}/robin.png"]})
    assert response.status_code == 403
    assert "allows no host" in response.json()["detail"]


def test_hosts_are_read():
    assert parse_host("images.example") == "https://images.example"
    assert parse_host("http://10.0.0.5:9000") == "http://10.0.0.5:9000"
    for text in ("", "a/b", "ftp://a", "https://a/b"):
        with pytest.raises(ConfigError, match="--image-host"):
            parse_host(text)
