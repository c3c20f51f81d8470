"""Errors as `application/problem+json` (RFC 9457), with the library's own sentences."""

import json
from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

from fewmore.errors import ConfigError, FewmoreError, ModelFileError, UnknownName

MEDIA_TYPE = "application/problem+json"
BUSY = {"Retry-After": "1"}


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that says what is wrong."""
    title = HTTPStatus(status).phrase if status in {one.value for one in HTTPStatus} else "Error"
    body = json.dumps(
        {"type": "about:blank", "title": title, "status": status, "detail": detail}
    ).encode()
    return Response(body, status, dict(headers or {}), MEDIA_TYPE)


def status_of(error: FewmoreError) -> int:
    """A name that is not known is 404, a state that does not allow it 409, a file's trouble 500, other input 422."""
    if isinstance(error, UnknownName):
        return 404
    if isinstance(error, ConfigError):
        return 409
    return 500 if isinstance(error, ModelFileError) else 422
