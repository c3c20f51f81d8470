"""Test what an operator and a client's program rely on: logs, draining, methods, headers."""

import io
import json
import logging
import re
import signal
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image

from fewmore.errors import ConfigError, ExportError, ModelFileError
from fewmore.service.guard import Access
from fewmore.service.limits import Limits
from fewmore.service.logs import JSONFormatter
from fewmore.service.store import Store

Inside = Callable[..., AbstractContextManager[Any]]
Serving = Callable[..., AbstractContextManager[Any]]
MakeImage = Callable[..., bytes]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "service.md"
TOKEN = "a-token-of-some-length"


# Methods and routes


def test_head_is_answered_and_other_methods_are_405(client: Any):
    for path in ("/health", "/ready", "/api/model", "/", "/app.js"):
        response = client.http.head(path)
        assert (response.status_code, response.content) == (200, b""), path
    for method, path, allowed in (
        ("GET", "/api/sessions/undo", "POST"),
        ("GET", "/api/predict", "POST"),
        ("POST", "/health", "GET"),
        ("DELETE", "/api/model", "GET"),
    ):
        response = client.http.request(method, path)
        assert response.status_code == 405, (method, path)
        assert allowed in response.headers["allow"]
    assert client.http.get("/api/nothing").status_code == 404
    assert client.http.get("/api/model/").status_code == 404


def test_refused_requests_have_their_route_in_the_metrics(model: Path, inside: Inside):
    with inside(model, access=Access(TOKEN)) as client:
        client.http.get("/api/model")
        client.http.get("/api/thumbnails/0123456789abcdef", headers={"Authorization": "Bearer x"})
        headers = {"Authorization": f"Bearer {TOKEN}"}
        text = client.http.get("/metrics", headers=headers).text
    assert 'requests_total{method="GET",route="/api/model",status="401"} 1.0' in text
    assert 'route="/api/thumbnails/{thumbnail}",status="401"} 1.0' in text
    assert 'refused_tokens_total{reason="missing"} 1.0' in text
    assert 'refused_tokens_total{reason="wrong"} 1.0' in text


def test_operations_have_plain_names(client: Any):
    paths = client.http.get("/openapi.json").json()["paths"]
    names = [
        operation["operationId"] for methods in paths.values() for operation in methods.values()
    ]
    assert len(set(names)) == len(names)
    assert {"predict", "teach_class", "undo_change", "describe_model", "infer"} <= set(names)
    assert all(name.replace("_", "").isalpha() for name in names)
    change = paths["/api/classes"]["post"]["responses"]
    assert "Idempotent-Replay" in change["200"]["headers"]
    assert "Retry-After" in change["503"]["headers"]


# What is told to others


def test_no_path_is_told(
    client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_: object) -> None:
        raise ModelFileError("/home/me/secret.fewmore is damaged")

    monkeypatch.setattr(Store, "undo", fail)
    response = client.http.post("/api/sessions/undo")
    assert response.status_code == 500
    assert "secret" not in response.text
    assert "secret" in caplog.text


def test_names_can_be_seen(client: Any):
    for name in ("\u200b", "\ufeff\u200d", "a\u202egnp.exe", "\u2066x\u2069"):
        for response in (
            client.teach(name),
            client.http.patch("/api/classes?name=robin", json={"name": name}),
        ):
            assert response.status_code == 422
            assert response.json()["detail"].isascii()
    for name in ("👩\u200d🌾", "שלום", "\u0928\u094d", "é"):  # joined, right to left, combining
        assert client.teach(name).status_code == 200


def test_a_length_is_given_once(client: Any):
    headers = {"Transfer-Encoding": "chunked", "Content-Length": "5"}
    response = client.http.post("/api/sessions/undo", headers=headers)
    assert response.status_code == 400
    assert "twice" in response.json()["detail"]


# Images


def encode(image_format: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(buffer, image_format)
    return buffer.getvalue()


def test_formats_that_nobody_needs_are_refused(client: Any):
    for image_format in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        assert client.predict(encode(image_format)).status_code == 200, image_format
    for image_format in ("PCX", "SGI", "DDS", "EPS"):
        response = client.predict(encode(image_format))
        assert response.status_code == 422, image_format
        assert "of no known image format" in response.json()["detail"]


def test_uploads_need_no_temporary_files(
    client: Any, image: MakeImage, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)  # what a larger upload would be moved to
    large = image("robin", 1, 24) + b"\0" * 2_000_000
    assert client.predict(large).status_code == 200


# Logs


def test_logs_as_json():
    record = logging.LogRecord("fewmore.service", logging.WARNING, "", 0, "a %s\nb", ("1",), None)
    line = JSONFormatter().format(record)
    assert "\n" not in line
    content = json.loads(line)
    assert content["message"] == "a 1\nb"
    assert content["level"] == "warning"
    assert content["time"].endswith("Z")


def test_the_log_of_a_process_is_json(model: Path, serving: Serving):
    with serving(model, "--log-format", "json", FEWMORE_TOKEN=TOKEN) as served:
        httpx2.get(f"{served.url}/api/model", headers={"Authorization": "Bearer wrong"}, timeout=30)
        assert served.stop() == 0
        lines = served.process.stderr.read().splitlines()
    assert [json.loads(line)["message"] for line in lines] == [
        "a wrong token came from 127.0.0.1: 1 so far"
    ]


# Documentation


def table(heading: str) -> dict[str, str]:
    """Return the first table behind a heading of docs/service.md: its first two columns."""
    text = DOCS.read_text().partition(f"# {heading}\n")[2]
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|", text.partition("\n#")[0], re.M)
    return dict(rows)


def test_more_images_than_a_form_can_have_are_refused_at_the_start():
    assert Limits.parse(["images=1000"]).images == 1000
    with pytest.raises(ConfigError, match="'images=1001' is too large"):
        Limits.parse(["images=1001"])


def test_an_export_that_cannot_be_written_names_no_path(client: Any):
    def fail(_: Any, path: Path) -> None:
        raise ExportError(f"{path} cannot be written") from reason

    client.http.app.state.service.exports._writer = fail
    reason: Exception = OSError("No space left on device")
    refused = client.http.get("/api/model/onnx")
    assert refused.status_code == 503
    assert "model.onnx" not in refused.text
    reason = ValueError("an unknown layer")
    assert client.http.get("/api/model/onnx").status_code == 422


def test_the_documented_limits_are_the_defaults():
    documented = {
        name.strip("`"): float(value.replace(",", "")) for name, value in table("Limits").items()
    }
    assert documented == asdict(Limits())


def test_the_documented_metrics_are_there(client: Any):
    text = client.http.get("/metrics").text
    there = set(re.findall(r"^# TYPE (fewmore_\w+)", text, re.M))
    documented = re.findall(r"`(fewmore_\w+)`", "".join(table("Operation")))
    assert set(documented) == there


def test_changes_are_synced_by_sqlite(model: Path):
    """Check what a loss of power is survived by: see docs/service.md."""
    store = Store(model)
    connection = store._database._connection
    found = {
        name: connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "fullfsync")
    }
    store.close()
    assert found == {"journal_mode": "wal", "synchronous": 2, "fullfsync": 1}  # 2 is FULL


# The end


def test_what_outlasts_the_end_is_503(model: Path, serving: Serving):
    """Send half of a body, end the service, and wait."""
    with serving(model, "--limit", "end-seconds=1") as served:
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            slow.sendall(
                b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nhalf"
            )
            until = time.monotonic() + 30
            while not httpx2.get(f"{served.url}/ready", timeout=30).is_success:
                assert time.monotonic() < until
            served.process.send_signal(signal.SIGTERM)
            found = b""
            while chunk := slow.recv(65536):
                found += chunk
        assert served.process.wait(timeout=30) == -signal.SIGTERM
        assert found.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in found.lower()
        assert b"application/problem+json" in found
        assert "Traceback" not in served.process.stderr.read()
