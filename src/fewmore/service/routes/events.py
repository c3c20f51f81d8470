"""Send changes to those who follow them, as server-sent events."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse

from fewmore.service.events import END_RESPONSE
from fewmore.service.guard import EVENTS_PATH
from fewmore.service.openapi import problems, text_response
from fewmore.service.routes.dependencies import ServiceState
from fewmore.service.state import Service

HEARTBEAT_SECONDS = 15.0  # so that both sides notice a lost connection

router = APIRouter(tags=["model"])


@router.get(
    EVENTS_PATH,
    response_class=StreamingResponse,
    responses={
        200: text_response("Server-sent events, without end.", "text/event-stream"),
        **problems(400, 422, 429, private=True),
    },
)
async def follow_events(
    service: ServiceState,
    request: Request,
    last_event_id: Annotated[
        str | None,
        Header(
            pattern="^[0-9]{1,15}$",
            description="The version that the client knows: changes since then are sent first.",
            examples=["7"],
        ),
    ] = None,
) -> StreamingResponse:
    """Follow the changes of the model: `event: change`, `id` and `data` with version and change.

    The first event says what the version is now.
    """
    request.scope[END_RESPONSE] = service.events.end
    known = None if last_event_id is None else int(last_event_id)
    headers = {"X-Accel-Buffering": "no"}  # nginx would hold the events back
    return StreamingResponse(_stream(service, known), 200, headers, "text/event-stream")


async def _stream(service: Service, known: int | None) -> AsyncIterator[str]:
    until = time.monotonic() + service.limits.event_seconds
    yield "retry: 2000\n\n"
    if known is None:
        known = service.store.current.version
        yield _event("version", known, {"version": known})
    while not service.events.ended and time.monotonic() < until:
        version = service.store.current.version
        if version != known:
            changes = service.store.changes_since(known)
            for change in changes:
                yield _event("change", change.version, asdict(change))
            if not changes or changes[-1].version != version:  # another program's, or an older one
                yield _event("version", version, {"version": version})
            known = version
            continue
        await service.events.wait(min(HEARTBEAT_SECONDS, max(0.0, until - time.monotonic())))
        if service.store.current.version == known:
            yield ": nothing new\n\n"


def _event(kind: str, version: int, data: dict[str, object]) -> str:
    return f"event: {kind}\nid: {version}\ndata: {json.dumps(data)}\n\n"
