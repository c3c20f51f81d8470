"""Decide who may send requests, how large and for how long; add headers to every response.

A request's body is read here, whole, against the clock and the limits, before any route sees it: a
slow or endless one costs a timer and the bytes it sent. A service on localhost is not private:
every web page that a person visits can send requests there. So the Host header must name this
service, and requests that change or cost something are refused if they come from another Origin.
The names are always checked: a page may give its own name our address (DNS rebinding).
"""

import asyncio
import hmac
import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import anyio
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fewmore.service.limits import Limits
from fewmore.service.metrics import Metrics
from fewmore.service.problems import RETRY_SOON, problem
from fewmore.service.proxy import LOOPBACK, PublicURL, is_address

log = logging.getLogger("fewmore.service")

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# The metrics name only these: a client could invent any number of others.
KNOWN_METHODS = (*SAFE_METHODS, "POST", "PUT", "PATCH", "DELETE")
OPEN_PATHS = ("/health", "/ready", "/v2/health/live", "/v2/health/ready")  # never need a token
# What has data of the model: these paths, and all below these prefixes.
DATA_PATHS = ("/metrics", "/openapi.json", "/v2")
DATA_PREFIXES = ("/api/", "/v2/")
EVENTS_PATH = "/api/events"
FREE_WRONG_TOKENS = 10  # that a client may send before it waits for each response
WRONG_TOKEN_SECONDS = 1.0
MOST_CLIENTS = 1000  # clients whose wrong tokens are counted
PLAIN_BYTES = 256 * 1024  # in a body without images, which is parsed while others wait
CLOSE = {"Connection": "close"}
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"permissions-policy", b"camera=(self)"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
PAGE_HEADERS = (*HEADERS, (b"cache-control", b"no-cache"))
DATA_HEADERS = (*HEADERS, (b"cache-control", b"no-store"))


@dataclass(frozen=True)
class Access:
    """Hold who may send requests. Without a token, everybody may do everything."""

    token: str | None = None
    public_reading: bool = False  # reading and predicting need no token
    hosts: tuple[str, ...] = LOOPBACK  # names that the Host header may have; addresses always can
    public_urls: tuple[PublicURL, ...] = ()
    image_origins: tuple[str, ...] = ()  # from which images may be fetched by URL

    @property
    def token_scope(self) -> Literal["none", "changes", "everything"]:
        """Return what the token is needed for."""
        if self.token is None:
            return "none"
        return "changes" if self.public_reading else "everything"

    def needs_token(self, method: str, path: str) -> bool:
        """Return whether a request needs the token."""
        if self.token is None or path in OPEN_PATHS:
            return False
        if method not in SAFE_METHODS and not _is_prediction(path):
            return True
        return not self.public_reading and (path in DATA_PATHS or path.startswith(DATA_PREFIXES))

    def has_host(self, header: str) -> bool:
        """Return whether a Host header names this service."""
        host = _host_name(header)
        public = (url.host for url in self.public_urls)
        return host in self.hosts or host in public or is_address(host)

    def has_origin(self, origin: str, host: str) -> bool:
        """Return whether an Origin header is that of our own page, at this Host."""
        origins = {url.origin for url in self.public_urls}
        if host in {url.netloc for url in self.public_urls}:
            return origin in origins  # the scheme must be the public one, too
        return origin in origins or _netloc(origin) == host


def _is_prediction(path: str) -> bool:
    """Return whether a POST to this path changes nothing."""
    return _is_inference(path) or path in ("/api/predict", "/api/predict/urls")


def _is_inference(path: str) -> bool:
    return path.startswith("/v2/models/") and path.endswith("/infer")


def _is_embedded(method: str, headers: Mapping[bytes, str]) -> bool:
    """Return whether another site's page uses this, as an image: a link to it may be followed."""
    target = (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest"))
    is_link = method == "GET" and target == ("navigate", "document")
    return headers.get(b"sec-fetch-site") == "cross-site" and not is_link


class Guard:
    """Check every request before the routes. Pure ASGI middleware, so that it reads the body."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        limits: Limits,
        metrics: Metrics,
        paths: Collection[str] = (),
    ) -> None:
        self.app = app
        self.access = access
        self.limits = limits
        self.metrics = metrics
        self._paths = frozenset(path for path in paths if "{" not in path)
        self._patterns = [(compile_path(path)[0], path) for path in paths if "{" in path]
        self._under_way: Counter[str] = Counter()  # requests by client
        self._body_bytes = 0  # of all requests under way
        self._wrong_tokens: dict[str, int] = {}  # by client, since the last right one

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        client = (scope.get("client") or ("", 0))[0]
        method = scope["method"] if scope["method"] in KNOWN_METHODS else "other"
        if scope["path"] == EVENTS_PATH:
            client += " events"  # those who follow changes do not use up the requests
        elif method == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        body = _Body()
        is_data = scope["path"].startswith(DATA_PREFIXES)
        sender = _Sender(send, DATA_HEADERS if is_data else PAGE_HEADERS)
        self._under_way[client] += 1
        try:
            await self._respond(scope, receive, sender, client, body)
        except asyncio.CancelledError:
            if not sender.started:
                detail = "the service is ending, and this took too long: send it again later"
                await problem(503, detail, {**RETRY_SOON, **CLOSE})(scope, receive, sender)
        except Exception:
            log.exception("%s %r failed", scope["method"], scope["path"])
            if sender.started:
                raise
            detail = "the service failed at this request, and its log says why: nothing was changed"
            await problem(500, detail)(scope, receive, sender)
        finally:
            self._body_bytes -= body.size
            self._under_way[client] -= 1
            if not self._under_way[client]:
                del self._under_way[client]
            seconds = time.perf_counter() - began
            self.metrics.observe(method, self._route(scope["path"]), sender.status, seconds)

    def _route(self, path: str) -> str:
        """Return the route's pattern; the path itself would give endlessly many metrics."""
        if path in self._paths:
            return path
        return next((route for regex, route in self._patterns if regex.match(path)), "other")

    async def _respond(
        self, scope: Scope, receive: Receive, send: Send, client: str, body: "_Body"
    ) -> None:
        refusal = self._check_head(scope, client)
        is_guess = self._wrong_tokens.get(client, 0) > FREE_WRONG_TOKENS
        if refusal is not None and refusal.status_code == 401 and is_guess:
            await asyncio.sleep(WRONG_TOKEN_SECONDS)  # who guesses tokens waits for each response
        if scope["method"] in SAFE_METHODS:
            await (refusal or self.app)(scope, receive, send)
            return
        if refusal is None:
            refusal = await self._read_body(scope, receive, body)
        await (refusal or self.app)(scope, body.replay(receive), send)

    def _check_head(self, scope: Scope, client: str) -> Response | None:
        """Return why a request is refused, judging by its head alone; None if it is not."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        method = scope["method"]
        host = headers.get(b"host", "")
        origin = headers.get(b"origin")
        if self._under_way[client] > self.limits.per_client:
            return problem(
                429,
                f"more than {self.limits.per_client} requests of yours are under way: "
                "wait for some of them",
                RETRY_SOON,
            )
        if not self.access.has_host(host):
            return problem(
                400,
                f"this service is not {host[:100]!r}: ask it by the address it was started with, "
                "or start it with --public-url",
            )
        if b"content-length" in headers and b"transfer-encoding" in headers:
            detail = "the request gives its length twice, by Content-Length and Transfer-Encoding"
            return problem(400, detail, CLOSE)  # a proxy may have read it otherwise
        is_own = origin is None or self.access.has_origin(origin, host)
        foreign = method not in SAFE_METHODS and not is_own
        is_data = scope["path"].startswith(DATA_PREFIXES)
        if foreign or (is_data and _is_embedded(method, headers)):
            return problem(
                403,
                "the request comes from another site's page: use the page that this service gives",
            )
        if self.access.needs_token(method, scope["path"]):
            return self._check_token(headers, client)
        return None

    def _check_token(self, headers: Mapping[bytes, str], client: str) -> Response | None:
        kind, _, token = headers.get(b"authorization", "").partition(" ")
        expected = (self.access.token or "").encode()
        if kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), expected):
            self._wrong_tokens.pop(client, None)
            return None
        self.metrics.refuse_token("wrong" if token else "missing")
        if token:
            self._count_wrong_token(client)
        return problem(
            401,
            f"the token {'is not the right one' if token else 'is missing'}: send the header "
            "Authorization: Bearer TOKEN, with the token that the service was started with",
            {"WWW-Authenticate": "Bearer"},
        )

    def _count_wrong_token(self, client: str) -> None:
        """Count and log the wrong tokens of a client: the first ones, then some of many."""
        count = self._wrong_tokens.pop(client, 0) + 1
        self._wrong_tokens[client] = count
        if len(self._wrong_tokens) > MOST_CLIENTS:
            del self._wrong_tokens[next(iter(self._wrong_tokens))]
        if count <= FREE_WRONG_TOKENS or count % 100 == 0:
            log.warning("a wrong token came from %s: %s so far", client, count)

    async def _read_body(self, scope: Scope, receive: Receive, body: "_Body") -> Response | None:
        """Read a body, or return why not. What is left unread is dropped with the connection."""
        limits = self.limits
        headers = dict(reversed(scope["headers"]))  # of several, routes read the first
        most = limits.body_bytes
        advice = "send fewer or smaller images at a time"
        is_form = headers.get(b"content-type", b"").lower().startswith(b"multipart/form-data")
        if not (is_form or _is_inference(scope["path"])):
            most = min(most, PLAIN_BYTES)
            advice = "send images as multipart/form-data, and of everything else less at a time"
        too_large = f"the request has more than {most:,} bytes: {advice}"
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > most:
            return problem(413, too_large, CLOSE)
        with anyio.move_on_after(limits.body_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return problem(400, "the request ended too early", CLOSE)
                self._body_bytes += body.add(message.get("body", b""))
                if body.size > most:
                    return problem(413, too_large, CLOSE)
                if self._body_bytes > limits.bytes_under_way:
                    detail = "too many images are being sent at the moment: try again"
                    return problem(503, detail, {**RETRY_SOON, **CLOSE})
                if not message.get("more_body", False):
                    return None
        return problem(
            408,
            f"the request was not there after {limits.body_seconds:g} seconds: "
            "send it faster, or less of it",
            CLOSE,
        )


class _Body:
    """Collect a body, and pass it on to the routes in one piece."""

    def __init__(self) -> None:
        self.size = 0
        self._chunks: list[bytes] = []

    def add(self, chunk: bytes) -> int:
        """Append a chunk, and return its length."""
        self._chunks.append(chunk)
        self.size += len(chunk)
        return len(chunk)

    def replay(self, receive: Receive) -> Receive:
        """Return a `receive` that gives the body first."""
        whole: bytes | None = b"".join(self._chunks)
        self._chunks.clear()

        async def receive_body() -> Message:
            nonlocal whole
            if whole is None:
                return await receive()
            message = {"type": "http.request", "body": whole, "more_body": False}
            whole = None
            return message

        return receive_body


class _Sender:
    """Send a response with our headers, but for those that it sets itself; remember its status."""

    def __init__(self, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.status = 500
        self.started = False
        self._send = send
        self._headers = headers

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.started = True
            present = {name.lower() for name, _ in message["headers"]}
            missing = [header for header in self._headers if header[0] not in present]
            message = {**message, "headers": [*message["headers"], *missing]}
        await self._send(message)


def _netloc(origin: str) -> str:
    """Return the host and port of an Origin header."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _host_name(host: str) -> str:
    """Return a Host header without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
