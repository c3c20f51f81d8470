"""Test that two clients do not undo or overwrite each other's changes, and that they follow."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
from starlette.responses import PlainTextResponse

from fewmore.service.guard import Access, Guard
from fewmore.service.limits import Limits
from fewmore.service.metrics import Metrics

Inside = Callable[..., AbstractContextManager[Any]]
Serving = Callable[..., AbstractContextManager[Any]]


def for_version(version: int | str) -> dict[str, str]:
    return {"If-Match": f'"{version}"'}


def test_undo_takes_back_no_other_change_than_the_one_it_was_made_for(client: Any):
    first = client.teach("okapi").json()
    second = client.teach("zebra").json()
    http = client.http
    refused = http.post("/api/sessions/undo", headers=for_version(first["version"]))
    assert refused.status_code == 412
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert problem["version"] == second["version"]
    (between,) = problem["changes"]
    assert (between["version"], between["change"]) == (3, "learning of zebra")
    assert between["when"].endswith("Z")
    assert "made for version 2, and the model has version 3" in problem["detail"]
    assert "learning of zebra" in problem["detail"]
    assert {"okapi", "zebra"} <= client.classes().keys()
    undone = http.post("/api/sessions/undo", headers=for_version(second["version"]))
    assert "zebra" in undone.json()["undone"]
    refused = http.post("/api/sessions/undo", headers=for_version(2))
    assert [one["change"] for one in refused.json()["changes"]] == [
        "learning of zebra",
        "undo of the learning of zebra",
    ]
    assert "okapi" in client.classes()


def test_every_change_can_say_which_version_it_is_for(client: Any):
    http = client.http
    client.teach("okapi")
    stale, current = for_version(1), for_version(2)
    rename = {"params": {"name": "okapi"}, "json": {"name": "giraffe"}}
    assert client.teach("zebra", **stale).status_code == 412
    assert client.teach("okapi", add=True, **stale).status_code == 412
    assert http.patch("/api/classes", headers=stale, **rename).status_code == 412
    assert http.delete("/api/classes?name=okapi", headers=stale).status_code == 412
    assert client.version() == 2
    assert http.patch("/api/classes", headers=current, **rename).status_code == 200
    assert http.delete("/api/classes?name=giraffe", headers=for_version(3)).status_code == 200
    assert client.teach("zebra", **for_version(4)).json()["version"] == 5
    assert client.teach("yak", **{"If-Match": "*"}).status_code == 200
    for wrong in ("5", 'W/"5"', '"x"', '""', '"5", "6"'):
        assert http.post("/api/sessions/undo", headers={"If-Match": wrong}).status_code == 422


def test_a_retried_change_gets_its_response_though_the_version_is_another(client: Any):
    sent = {**for_version(1), "Idempotency-Key": "once"}
    first = client.teach("okapi", **sent)
    again = client.teach("okapi", **sent)
    assert again.json() == first.json()
    assert again.headers["idempotent-replay"] == "true"


def test_what_came_between_is_known_after_a_restart(model: Path, inside: Inside):
    with inside(model) as client:
        client.teach("okapi")
    with inside(model) as client:
        refused = client.http.post("/api/sessions/undo", headers=for_version(1))
        assert [one["change"] for one in refused.json()["changes"]] == ["learning of okapi"]


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_changes_are_followed(model: Path, serving: Serving, connect: Callable[[Any], Any]):
    with serving(model) as served:
        client = connect(served)
        follower = httpx2.Client(base_url=served.url, timeout=30)
        with follower.stream("GET", "/api/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.headers["cache-control"] == "no-store"
            found = events(stream.iter_lines())
            assert next(found) == {"version": 1}
            client.teach("okapi")
            event = next(found)
            assert (event["version"], event["change"]) == (2, "learning of okapi")
            client.http.post("/api/sessions/undo")
            assert next(found)["change"] == "undo of the learning of okapi"
            with follower.stream("GET", "/api/events", headers={"Last-Event-ID": "1"}) as late:
                missed = events(late.iter_lines())
                assert [next(missed)["version"] for _ in range(2)] == [2, 3]

            def read_on() -> None:
                assert list(found) == []

            ended = threading.Thread(target=read_on, daemon=True)
            ended.start()
            assert served.stop() == 0  # followers do not hold it up
            ended.join(timeout=30)
            assert not ended.is_alive()
        assert served.process.stderr.read() == ""
        follower.close()


def test_a_stream_ends_after_some_time(model: Path, inside: Inside):
    with inside(model, limits=Limits(event_seconds=0)) as client:
        text = client.http.get("/api/events").text
    assert 'event: version\nid: 1\ndata: {"version": 1}\n\n' in text


@pytest.mark.parametrize("version", ["x", "-1", "1" * 16])
def test_an_event_id_must_be_a_version(client: Any, version: str):
    response = client.http.get("/api/events", headers={"Last-Event-ID": version})
    assert response.status_code == 422


def test_followers_leave_room_for_requests():
    """Follow changes and send a request from one address, where one request is allowed."""
    statuses: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/api/events":
            await ask("/api/model")
        await PlainTextResponse("")(scope, receive, send)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def ask(path: str) -> None:
        headers = [(b"host", b"127.0.0.1")]
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
        await guard({**scope, "client": ("127.0.0.1", 1)}, Mock(), send)

    guard = Guard(app, Access(), Limits(per_client=1), Metrics())
    asyncio.run(ask("/api/events"))
    assert statuses == [200, 200]
