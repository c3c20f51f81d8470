"""What stands before the routes: who may ask, how much, and for how long; and what every answer carries.

A request's body is read here, whole, against the clock and the limits, before any route sees it: a slow or endless one costs a timer
and the bytes it sent. Loopback is no secret place: every web page that a person visits can send requests there. So the Host must be one
of ours, and what changes or costs something is refused where its Origin is another.
"""

import asyncio
import hmac
import logging
import time
from collections import Counter
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fewmore.service.limits import Limits
from fewmore.service.metrics import Metrics
from fewmore.service.problems import BUSY, problem

log = logging.getLogger("fewmore.service")

SAFE = ("GET", "HEAD", "OPTIONS")
METHODS = (
    *SAFE,
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
)  # that are counted by name: a client can make up endlessly many
OPEN = ("/health", "/ready")  # need no token, whatever else does
WITHOUT_CHANGE = ("/api/predict",)  # of the others
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self'; "
        "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self)",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """Who may ask. Without a token everybody who reaches the service may do everything."""

    token: str | None = None
    private: bool = False  # reading takes the token as well
    hosts: tuple[str, ...] | None = LOOPBACK  # that a request may name; None: any

    @property
    def needed_for(self) -> str:
        return "none" if self.token is None else "everything" if self.private else "changes"

    def guards(self, method: str, path: str) -> bool:
        """Whether a request takes the token."""
        if self.token is None or path in OPEN:
            return False
        changes = method not in SAFE and path not in WITHOUT_CHANGE
        return changes or (
            self.private and (path.startswith("/api/") or path in ("/metrics", "/openapi.json"))
        )


class Guard:
    """The middleware. Pure ASGI: nothing between it and the routes but them."""

    def __init__(self, app: ASGIApp, access: Access, limits: Limits, metrics: Metrics) -> None:
        self.app, self.access, self.limits, self.metrics = app, access, limits, metrics
        self._under_way: Counter[str] = Counter()  # requests by client
        self._bytes = 0  # of bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        started = False
        page = not scope["path"].startswith("/api/")

        async def answer(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                given = {name.lower() for name, _ in message["headers"]}
                own = {**HEADERS, "Cache-Control": "no-cache" if page else "no-store"}
                extra = [(name.lower().encode(), value.encode()) for name, value in own.items()]
                message = {
                    **message,
                    "headers": [
                        *message["headers"],
                        *(one for one in extra if one[0] not in given),
                    ],
                }
            await send(message)

        client = (scope.get("client") or ("", 0))[0]
        self._under_way[client] += 1
        body = _Body()
        try:
            refusal = self._refused(scope, client)
            if refusal is None and scope["method"] not in SAFE:
                refusal = await self._read(scope, receive, body)
            await (refusal or self.app)(
                scope, body.replay(receive) if scope["method"] not in SAFE else receive, answer
            )
        except Exception:
            log.exception("%s %r failed", scope["method"], scope["path"])
            if started:
                raise
            await problem(
                500, "the service failed at this request, and its log says why: nothing was changed"
            )(scope, receive, answer)
        finally:
            self._bytes -= body.size
            self._under_way[client] -= 1
            if not self._under_way[client]:
                del self._under_way[client]
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.observe(method, _route(scope), status, time.perf_counter() - began)

    def _refused(self, scope: Scope, client: str) -> Response | None:
        """Why a request may not be, from its head alone."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if self._under_way[client] > self.limits.per_client:
            return problem(
                429,
                f"more than {self.limits.per_client} requests of yours are under way: wait for some of them",
                BUSY,
            )
        host = headers.get(b"host", "")
        if self.access.hosts is not None and _name(host) not in self.access.hosts:
            return problem(
                400,
                f"this service is not {host[:100]!r}: ask it by the address it was started with",
            )
        if (
            scope["method"] not in SAFE
            and (origin := headers.get(b"origin")) is not None
            and urlsplit(origin).netloc != host
        ):
            return problem(
                403,
                "the request comes from another site's page: use the page that this service gives",
            )
        if self.access.token is not None and self.access.guards(scope["method"], scope["path"]):
            kind, _, given = headers.get(b"authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(
                given.strip().encode(), self.access.token.encode()
            ):
                why = "is not the right one" if given else "is missing"
                detail = f"the token {why}: send the header Authorization: Bearer TOKEN, with the token that was printed at the start"
                return problem(401, detail, {"WWW-Authenticate": "Bearer"})
        return None

    async def _read(self, scope: Scope, receive: Receive, body: "_Body") -> Response | None:
        """Read a body, or say why not. What is left unread is given up with the connection."""
        limits, close = self.limits, {"Connection": "close"}
        too_large = f"the request has more than {limits.body_bytes:,} bytes: send fewer or smaller images at a time"
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if length.isdigit() and int(length) > limits.body_bytes:
            return problem(413, too_large, close)
        until = time.monotonic() + limits.body_seconds
        try:
            while True:
                message = await asyncio.wait_for(receive(), until - time.monotonic())
                if message["type"] == "http.disconnect":
                    return problem(400, "the request ended too early", close)
                chunk = message.get("body", b"")
                body.chunks.append(chunk)
                body.size += len(chunk)
                self._bytes += len(chunk)
                if body.size > limits.body_bytes:
                    return problem(413, too_large, close)
                if self._bytes > limits.bytes_under_way:
                    return problem(
                        503,
                        "too many images are being sent at the moment: try again",
                        {**BUSY, **close},
                    )
                if not message.get("more_body", False):
                    return None
        except asyncio.TimeoutError:
            return problem(
                408,
                f"the request was not there after {limits.body_seconds:g} seconds: send it faster, or less of it",
                close,
            )


class _Body:
    """What came, to be given to the routes in one piece."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size = 0

    def replay(self, receive: Receive) -> Receive:
        whole: bytes | None = b"".join(self.chunks)
        self.chunks.clear()

        async def again() -> Message:
            nonlocal whole
            if whole is None:
                return await receive()
            message = {"type": "http.request", "body": whole, "more_body": False}
            whole = None
            return message

        return again


def _name(host: str) -> str:
    """A Host header without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _route(scope: Scope) -> str:
    """A route's pattern; never the path itself, of which there are endlessly many."""
    return getattr(scope.get("route"), "path", None) or "other"
