"""Report errors as `application/problem+json` (RFC 9457), with the library's own messages.

Below /v2 they look as the Open Inference Protocol says: `{"error": …}`.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from fewmore.errors import ConfigError, FewmoreError, ModelFileError, StateError, UnknownName
from fewmore.service.limits import Busy
from fewmore.service.store import Outdated

MEDIA_TYPE = "application/problem+json"
INFERENCE_PATH = "/v2"
RETRY_SOON = {"Retry-After": "1"}
MOST_ERRORS = 5  # of one invalid request that a message names
PLAIN_DETAILS = {  # instead of Starlette's own
    "Not Found": "there is nothing here: GET /openapi.json lists what there is",
    "Method Not Allowed": "that cannot be done here: see GET /openapi.json",
}

log = logging.getLogger("fewmore.service")


class ProblemResponse(Response):
    """Say what is wrong, as the path's protocol wants it."""

    media_type = MEDIA_TYPE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not f"{scope['path']}/".startswith(f"{INFERENCE_PATH}/"):
            await super().__call__(scope, receive, send)
            return
        kept = ("content-length", "content-type")
        headers = {name: text for name, text in self.headers.items() if name not in kept}
        error = {"error": json.loads(bytes(self.body))["detail"]}
        status = 400 if self.status_code == 422 else self.status_code
        await JSONResponse(error, status, headers)(scope, receive, send)


def problem(
    status: int, detail: str, headers: Mapping[str, str] | None = None, **members: object
) -> Response:
    """Build the response that says what is wrong; `members` are added to the standard ones."""
    known = {member.value for member in HTTPStatus}
    title = HTTPStatus(status).phrase if status in known else "Error"
    standard = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    content = {**standard, **members}
    return ProblemResponse(json.dumps(content).encode(), status, dict(headers or {}))


def status_of(error: FewmoreError) -> int:
    """Choose a status: unknown name 404, refused by the current state 409, invalid input 422."""
    if isinstance(error, UnknownName):
        return 404
    return 409 if isinstance(error, (ConfigError, StateError)) else 422


def add_handlers(app: FastAPI) -> None:
    """Turn every expected exception of a route into a problem response."""
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _validation_problem)
    app.add_exception_handler(FewmoreError, _fewmore_problem)
    app.add_exception_handler(Outdated, _outdated_problem)
    app.add_exception_handler(ClientDisconnect, _gone_problem)
    app.add_exception_handler(Busy, _busy_problem)


async def _http_problem(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    detail = PLAIN_DETAILS.get(error.detail, error.detail)
    return problem(error.status_code, detail, error.headers)


async def _validation_problem(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    messages = []
    for part in error.errors()[:MOST_ERRORS]:
        where = ".".join(map(str, part["loc"][1:])) or part["loc"][0]
        messages.append(f"{where}: {_plain_message(part)}")
    listed = "; ".join(messages)
    detail = f"the request is not as it should be ({listed}): GET /openapi.json describes it"
    return problem(422, detail)


def _plain_message(part: Mapping[str, Any]) -> str:
    """Say what is wrong with a part of a request, in the sender's words where it is common."""
    if "UploadFile" in part["msg"]:
        return "a text came instead of a file; curl sends one by -F images=@FILE"
    if part["type"] == "model_attributes_type" and part["loc"] == ("body",):
        return "it is not JSON, or lacks the header Content-Type: application/json"
    return str(part["msg"])


async def _fewmore_problem(_: Request, error: Exception) -> Response:
    if not isinstance(error, FewmoreError):
        raise error
    if isinstance(error, ModelFileError):
        log.error("%s", error)  # it names paths, which are nobody else's business
        return problem(
            500, "the model file or its store cannot be used: the service's log says why"
        )
    return problem(status_of(error), str(error))


async def _outdated_problem(_: Request, error: Exception) -> Response:
    if not isinstance(error, Outdated):
        raise error
    changes = [asdict(change) for change in error.between]
    return problem(412, str(error), version=error.version, changes=changes)


async def _gone_problem(_: Request, error: Exception) -> Response:
    return problem(400, "the client went away before the response was there")


async def _busy_problem(_: Request, error: Exception) -> Response:
    detail = "more is waiting than can be done soon: try again in a second"
    return problem(503, detail, RETRY_SOON)
