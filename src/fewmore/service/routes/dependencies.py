"""Declare what routes receive: the service, class names, uploaded images and idempotency keys.

The token and the size of a request are checked before, by the middleware in `guard.py`: it must
refuse a request before its body is read, and it protects the page and the OpenAPI document too.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, File, Form, Header, Query, Request, Response, UploadFile
from pydantic import WithJsonSchema
from starlette import datastructures
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fewmore.classifier.classes import MAX_NAME_LENGTH
from fewmore.service import idempotency
from fewmore.service.idempotency import JSON
from fewmore.service.limits import Limits
from fewmore.service.problems import RETRY_SOON
from fewmore.service.state import Service
from fewmore.service.store import Outcome

T = TypeVar("T")


async def get_service(request: Request) -> Service:
    """Return the service that the app was created with. Async: FastAPI runs others in threads."""
    service: Service = request.app.state.service
    return service


ServiceState = Annotated[Service, Depends(get_service)]

_NAME: dict[str, Any] = {
    "min_length": 1,
    "max_length": MAX_NAME_LENGTH,
    "description": "The class's name.",
    "examples": ["okapi"],
}
QueryName = Annotated[str, Query(**_NAME)]
FormName = Annotated[str, Form(**_NAME)]

_ImageFile = Annotated[
    UploadFile,
    WithJsonSchema(
        {"type": "string", "format": "binary", "contentMediaType": "application/octet-stream"}
    ),
]
ImageFiles = Annotated[
    list[_ImageFile],
    File(min_length=1, description="Image files, of any format and size."),
]

KeyHeader = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description=(
            "A name for this request. "
            "The same request with the same key gets the same response, and is applied once."
        ),
        examples=["0f8fad5b-d9cb-469f-a165-70867728950e"],
    ),
]

VersionHeader = Annotated[
    str | None,
    Header(
        pattern=r'^(\*|"[0-9]{1,15}")$',
        description=(
            "The version of the model that the change was made for, in quotes. "
            "If the model has another one, nothing is changed, and 412 says what came between."
        ),
        examples=['"7"'],
    ),
]


@dataclass(frozen=True)
class ChangeRequest:
    """Collect what every route that changes the model receives."""

    service: ServiceState
    response: Response
    idempotency_key: KeyHeader = None
    if_match: VersionHeader = None

    def identify(self, *parts: str) -> idempotency.Request:
        """Return the key of a request with this content, and the version that it is for."""
        key = idempotency.IdempotencyKey.of(self.idempotency_key, *parts)
        version = None if self.if_match in (None, "*") else int(str(self.if_match).strip('"'))
        return idempotency.Request(key, version)

    async def make(self, work: Callable[[], Outcome]) -> JSON:
        """Make the change in turn with others, and return the response."""
        return await self.service.change(work, self.response)


NewChange = Annotated[ChangeRequest, Depends()]


def check_running(service: Service) -> None:
    """Refuse a request while the service starts or ends."""
    if not (service.ready and service.batcher.alive):
        raise HTTPException(503, "the service is starting or ending", RETRY_SOON)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do a request's work, and cancel it if the client goes away before it is done."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())  # the body is read: nothing else can come
    gone.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        if gone.done():
            raise ClientDisconnect from None
        raise
    finally:
        gone.cancel()


def client_of(request: Request) -> str:
    """Return the address that a request came from."""
    return request.client.host if request.client else ""


def image_titles(count: int, name: str | None = None) -> list[str]:
    """Return what messages call the images of a request, all of one class."""
    of = "" if name is None else f" of {name}"
    return [f"image {number}{of}" for number in range(1, count + 1)]


async def read_images(
    uploads: Sequence[datastructures.UploadFile], titles: Sequence[str], limits: Limits
) -> list[bytes]:
    """Read uploaded files, if there are not too many and none is too large."""
    if len(uploads) > limits.images:
        raise HTTPException(
            422,
            f"{len(uploads)} images were sent, and at most {limits.images} can be at a time: "
            "send fewer",
        )
    images = []
    for title, upload in zip(titles, uploads, strict=True):
        if (upload.size or 0) > limits.image_bytes:
            raise HTTPException(
                413,
                f"{title} has {upload.size:,} bytes, "
                f"and at most {limits.image_bytes:,} can be: make it smaller",
            )
        images.append(await upload.read())
    return images
