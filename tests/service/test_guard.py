"""Test the guard alone: the bytes, the seconds and the requests that it counts."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from fewmore.service.guard import PLAIN_BYTES, Access, Guard
from fewmore.service.limits import Limits
from fewmore.service.metrics import Metrics

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/api/predict",
    "headers": [(b"host", b"localhost")],
}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body."""
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})


async def fail(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("broken")


def make_guard(app: Any = echo, **limits: Any) -> Guard:
    return Guard(app, Access(), Limits(**limits), Metrics())


def chunks(*parts: bytes, pause: float = 0.0) -> Callable[[], Awaitable[Message]]:
    """Return a `receive` that gives the parts of a body, one after another."""
    left = list(parts)

    async def receive() -> Message:
        await asyncio.sleep(pause)
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    return receive


async def ask(guard: Guard, receive: Receive, client: str = "10.0.0.1", **scope: Any) -> int:
    """Send a request, and return the status of the response."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await guard({**SCOPE, "client": (client, 1), **scope}, receive, send)
    status: int = sent[0]["status"]
    return status


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 30))


@pytest.mark.parametrize("app", [echo, fail])
def test_the_bytes_of_a_request_that_is_over_are_given_back(app: Any):
    guard = make_guard(app, bytes_under_way=100, body_bytes=80)

    async def requests() -> list[int]:
        return [await ask(guard, chunks(b"x" * 40, b"x" * 30)) for _ in range(5)]

    assert run(requests()) == [200 if app is echo else 500] * 5


def test_the_bytes_of_refused_requests_are_given_back():
    guard = make_guard(bytes_under_way=100, body_bytes=80)

    async def requests() -> list[int]:
        too_large = [await ask(guard, chunks(b"x" * 60, b"x" * 60)) for _ in range(5)]
        return [*too_large, await ask(guard, chunks(b"x" * 80))]

    assert run(requests()) == [413] * 5 + [200]


@pytest.mark.parametrize(
    ("path", "kinds", "size", "status"),
    [
        ("/api/predict/urls", ["application/json"], 64 * 2048, 200),
        ("/api/predict/urls", ["application/json"], PLAIN_BYTES + 1, 413),
        ("/api/predict", ["application/x-www-form-urlencoded"], PLAIN_BYTES + 1, 413),
        ("/api/predict", ["multipart/form-data; boundary=x"], PLAIN_BYTES + 1, 200),
        ("/api/predict/urls", ["text/plain", "multipart/form-data"], PLAIN_BYTES + 1, 413),
        ("/v2/models/birds/infer", ["application/json"], PLAIN_BYTES + 1, 200),
    ],
)
def test_only_images_make_a_body_large(path: str, kinds: list[str], size: int, status: int):
    headers = [*SCOPE["headers"], *((b"content-type", kind.encode()) for kind in kinds)]
    answered = ask(make_guard(), chunks(b"x" * size), path=path, headers=headers)
    assert run(answered) == status


def test_bodies_under_way_count_together():
    guard = make_guard(bytes_under_way=100, body_bytes=80)

    async def requests() -> list[int]:
        waits, go_on = asyncio.Event(), asyncio.Event()
        first_part, second_part = chunks(b"x" * 60, b"x"), chunks(b"x")
        parts = iter((first_part, second_part))

        async def receive() -> Message:
            part = next(parts)
            if part is second_part:
                waits.set()
                await go_on.wait()
            return await part()

        slow = asyncio.create_task(ask(guard, receive))
        await waits.wait()
        meanwhile = await ask(guard, chunks(b"x" * 60))
        go_on.set()
        return [meanwhile, await slow, await ask(guard, chunks(b"x" * 60))]

    assert run(requests()) == [503, 200, 200]


def test_the_deadline_is_for_the_whole_body():
    """Send a chunk every tenth of a second: each is early enough, all of them are not."""
    guard = make_guard(body_seconds=0.5)
    assert run(ask(guard, chunks(*[b"x"] * 20, pause=0.1))) == 408


def test_a_client_may_have_as_many_requests_as_the_limit_says():
    guard = make_guard(per_client=2)

    async def requests() -> list[int]:
        three = [ask(guard, chunks(b"x", pause=0.1)) for _ in range(3)]
        other = ask(guard, chunks(b"x", pause=0.1), "10.0.0.2")
        together = await asyncio.gather(*three, other)
        return [*together, await ask(guard, chunks(b"x"))]

    assert run(requests()) == [200, 200, 429, 200, 200]
