"""Send raw requests that no proper client would send: none may be answered with 500."""

import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest

Serving = Callable[..., AbstractContextManager[Any]]
MakeImage = Callable[..., bytes]

METHODS = (
    *("GET", "POST", "POST", "POST", "PATCH", "DELETE") * 3,
    *("PUT", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "X"),
)
PATHS = (
    *("/", "/app.js", "/health", "/ready", "/metrics", "/openapi.json", "/nowhere", "//", "*"),
    *("/api/model", "/api/map", "/api/classes", "/api/classes/images", "/api/predict"),
    *("/api/sessions", "/api/sessions/undo", "/api/thumbnails/0123456789abcdef"),
    *("/v2", "/v2/models/birds", "/v2/models/birds/infer", "/v2/models/birds/versions/1/infer"),
    *("/v2/health/ready", "/../../etc/passwd", "/%2e%2e/x", "/api/%00", "/\xff", "/api/classes?"),
)
QUERIES = (
    "",
    "?",
    "?top=5",
    "?top=x",
    "?name=robin",
    "?name=%ff",
    "?limit=1e9",
    "?a&b=&=",
    "?name=",
)
HEADERS = (
    *("Origin: http://[", "Origin: null", "Origin: http://127.0.0.1", "Origin: \xff"),
    *("Authorization: Bearer \xff", "Authorization: ", "Accept: \0", "Range: bytes=9-1"),
    *(
        "If-Match: x",
        'If-Match: "99999999999999999999"',
        "Idempotency-Key: a b",
        "Expect: 100-continue",
    ),
    *("Content-Type: multipart/form-data", "Content-Type: multipart/form-data; boundary=x"),
    *("Content-Type: application/json", "Content-Type: \xff;;=", "Content-Encoding: gzip"),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: x", "Content-Length: -1"),
    *("Last-Event-ID: 1", "Inference-Header-Content-Length: 7", "X-Forwarded-For: \xff,,1"),
    *("Upgrade: websocket", "Cookie: a=b", "If-None-Match: *", "If-Modified-Since: never"),
    *(": empty", "no colon", " folded: x", "Sec-Fetch-Site: cross-site", "Range: bytes=0-1,3-4"),
)
HOSTS = (*("127.0.0.1",) * 30, "localhost:1", "[::1]", "[", "evil.example", "\xff", "")

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def part(name: str, content: bytes, file: bool = True) -> bytes:
    title = b'; filename="a\xff.png"' if file else b""
    disposition = b'Content-Disposition: form-data; name="' + name.encode() + b'"' + title
    return b"--x\r\n" + disposition + b"\r\n\r\n" + content + b"\r\n"


def make_body(rng: random.Random, image: bytes) -> bytes:
    """Return a form, JSON or bytes, sometimes with a few of them changed."""
    infer = b'{"inputs":[{"name":"image","shape":[1],"datatype":"BYTES","data":["aGk="]}]}'
    whole = rng.choice(
        (
            b"",
            part("images", image) + b"--x--\r\n",
            part("name", "okapi\u202e".encode(), False) + part("images", image) + b"--x--\r\n",
            part("name", b"\xff\xfe", False) + part("images", b"GIF89a") + b"--x--\r\n",
            b'{"name": "wren"}',
            b'{"name": "\\ud800"}',
            infer,
            infer[:40],
            b"[" * 2000,
            rng.randbytes(200),
        )
    )
    changed = bytearray(whole)
    for _ in range(rng.choice((0, 0, 1, 5))):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.choice((len(changed), len(changed), len(changed) // 2))])


def make_request(rng: random.Random, image: bytes) -> bytes:
    body = make_body(rng, image)
    lines = [f"{rng.choice(METHODS)} {rng.choice(PATHS)}{rng.choice(QUERIES)} HTTP/1.1"]
    lines += [f"Host: {rng.choice(HOSTS)}", "Connection: close"]
    lines += rng.sample(HEADERS, rng.choice((0, 0, 0, 1, 1, 3)))
    if rng.random() < 0.6:
        lines.append(
            "Content-Type: " + rng.choice(("multipart/form-data; boundary=x", "application/json"))
        )
    if rng.random() < 0.9:
        lines.append(f"Content-Length: {len(body) + rng.choice((0, 0, 0, 0, 0, 1, -1))}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def exchange(address: tuple[str, int], request: bytes) -> int:
    """Send a request; return the status, 0 if there is none."""
    found = b""
    with socket.create_connection(address, timeout=60) as connection:
        try:
            connection.sendall(request)
            while len(found) < 40 and (chunk := connection.recv(4096)):
                found = (found + chunk).removeprefix(CONTINUE)
        except (ConnectionResetError, BrokenPipeError):
            pass
    return int(found.split(b" ", 2)[1]) if found.startswith(b"HTTP/1.1 ") else 0


@pytest.fixture(scope="module")
def served(
    serving: Serving, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    model = tmp_path_factory.mktemp("fuzz") / "birds.fewmore"
    model.write_bytes(small_model.read_bytes())
    limits = ("--limit", "body-seconds=0.3", "--limit", "head-seconds=1")
    with serving(model, "--no-thumbnails", *limits) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.process.stderr.read()


def fuzz(served: Any, image: MakeImage, count: int, seed: int) -> "Counter[int]":
    rng = random.Random(seed)
    host, port = served.url.removeprefix("http://").split(":")
    done: Counter[int] = Counter()
    for _ in range(count):
        request = make_request(rng, image("robin", 1))
        status = exchange((host, int(port)), request)
        assert status != 500, request
        done[status] += 1
    assert httpx2.get(f"{served.url}/ready", timeout=60).status_code == 200
    return done


def test_some_raw_requests(served: Any, image: MakeImage):
    done = fuzz(served, image, 200, 0)
    assert done.keys() >= {200, 400, 404, 405, 422}


@pytest.mark.soak
def test_thousands_of_raw_requests(served: Any, image: MakeImage):
    done = fuzz(served, image, 2500, 1)
    print(f"{done.total()} raw requests, no answer of 500: {sorted(done.items())}")
