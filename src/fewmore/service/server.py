"""Run the app under uvicorn with a timeout for everything that a connection may wait for."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fewmore.errors import ConfigError
from fewmore.service.events import END_RESPONSE
from fewmore.service.limits import Limits
from fewmore.service.proxy import TrustedProxies

KEEP_ALIVE = 10  # seconds that an idle connection stays open
LARGEST_HEAD = 16_384  # bytes
UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
KEPT_MEMORY = 2**30  # bytes of freed memory that the process keeps

log = logging.getLogger("fewmore.service")


@dataclass(frozen=True)
class TLS:
    """Hold a certificate and its key, for a service that speaks HTTPS itself."""

    certificate: Path
    key: Path | None = None  # None: it is in the certificate's file

    def check(self) -> None:
        """Refuse files that cannot be used."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self.certificate, self.key, password=lambda: b""
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            files = self.certificate if self.key is None else f"{self.certificate} and {self.key}"
            raise ConfigError(
                f"{files} cannot be used for TLS ({reason}): give PEM files, a certificate with "
                "--tls-cert and its key without a password with --tls-key"
            ) from error


def tls_files(certificate: Path | None, key: Path | None) -> TLS | None:
    """Check the files of a service that speaks HTTPS; None if there are none."""
    if certificate is None:
        if key is not None:
            raise ConfigError("--tls-key is the key of a certificate: give that with --tls-cert")
        return None
    tls = TLS(certificate, key)
    tls.check()
    return tls


class LimitedProtocol(HttpToolsProtocol):
    """Limit the number of connections, how long they wait, and how large a request's head is.

    Connections beyond a number are closed, and so are those whose request's head does not arrive in
    time, and those whose client does not read the response. A trusted proxy may have as many
    connections as all clients together.
    """

    limits: Limits
    proxies: TrustedProxies
    head_bytes = 0  # since a head or a piece of a body was complete: also trailers of chunks
    watched: object = None  # the request after which the next head is awaited
    send_timer: asyncio.TimerHandle | None = None  # runs while the client has to read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None:  # an IPv4 address at a socket for both
            self.client = (self.client[0].removeprefix("::ffff:"), self.client[1])
        # A response's head and body are two packets: without this, the second waits 40 ms for
        # the client to acknowledge the first.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=1)  # pause as soon as anything is left unsent
        limits = self.limits
        client = sum(_address(other) == _address(self) for other in self.connections)
        most = limits.connections if _address(self) in self.proxies else limits.client_connections
        if len(self.connections) > limits.connections or client > most:
            # Uncount it now: it is lost only a moment later, when others may have arrived.
            self.connections.discard(self)
            transport.abort()
        else:
            self._await_head()

    def shutdown(self) -> None:
        """End a response that has no end of its own; its route says how."""
        super().shutdown()
        scope: dict[str, Any] = {} if self.cycle is None else {**self.cycle.scope}
        scope.get(END_RESPONSE, lambda: None)()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP; whoever waits for the rest of a body is told so."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            super().send_400_response(msg)
            return
        if not cycle.more_body:  # the bytes came after a request: its response is the last one
            cycle.keep_alive = False
            return
        if cycle.response_started:
            self.transport.close()
        else:
            super().send_400_response(msg)
        cycle.disconnected = True
        cycle.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.send_timer = self.loop.call_later(self.limits.send_seconds, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_send_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_send_timer()
        super().connection_lost(exc)

    def _stop_send_timer(self) -> None:
        if self.send_timer is not None:
            self.send_timer.cancel()

    def _abort(self) -> None:
        seconds = self.limits.send_seconds
        log.warning("a client did not read its response within %g seconds: closed", seconds)
        self.transport.abort()  # closing would wait for the client to read

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            data = _without_upgrade(data)
        self.head_bytes += len(data)
        super().data_received(data)
        cycle = self.cycle
        if self.transport.is_closing():
            return
        if self.head_bytes > LARGEST_HEAD:
            self.send_400_response(f"The head is larger than {LARGEST_HEAD} bytes.")
        elif cycle is not None and cycle.response_complete and self.watched is not cycle:
            self._await_head()  # the next head has begun

    def on_message_begin(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            # A client that knows the length may have all of a response before it is complete here;
            # of a response to HEAD, it has all with the head.
            is_read = cycle.chunked_encoding is False and not cycle.expected_content_length
            has_all = is_read or cycle.scope["method"] == "HEAD"
            if not (cycle.response_started and has_all):
                raise RuntimeError("requests are taken one after the other")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.head_bytes = 0
        if self.parser.should_upgrade():  # the parser would not read the body of such a request
            raise RuntimeError("the offer of another protocol came in pieces")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.head_bytes = 0
        super().on_message_complete()

    def _await_head(self) -> None:
        self.watched = self.cycle
        self.loop.call_later(self.limits.head_seconds, self._close_if_still_at, self.cycle)

    def _close_if_still_at(self, cycle: object) -> None:
        if self.cycle is cycle and not self.transport.is_closing():
            self.transport.close()


def protocol_with(limits: Limits, proxies: TrustedProxies | None = None) -> type[HttpToolsProtocol]:
    """Create the HTTP/1.1 protocol of a service with these limits."""
    values = {"limits": limits, "proxies": proxies or TrustedProxies()}
    return type("Protocol", (LimitedProtocol,), values)


def _without_upgrade(data: bytes) -> bytes:
    """Remove the Upgrade header of a request: no other protocol is accepted."""
    end = max(data.find(b"\r\n\r\n"), 0)
    if UPGRADE.search(data, 0, end) is None:
        return data
    return UPGRADE.sub(b"", data[:end]) + data[end:]


def _address(connection: object) -> str:
    """Return a client's address without its port."""
    client = getattr(connection, "client", None)
    return client[0] if client else ""


def listen(host: str, port: int) -> socket.socket:
    """Open a socket at this address; port 0 takes any free one."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, backlog=1024, dualstack_ipv6=both)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"the service cannot listen at {host}, port {port} ({reason}): give another port with "
            "--port (0 takes any that is free), or another address with --host"
        ) from error


def keep_memory() -> None:
    """Let this process reuse its freed memory, where the C library is glibc.

    Otherwise glibc returns a batch's larger feature maps to the system when they are freed, and the
    next batch gets new memory that the kernel clears page by page, which costs a good part of a
    backbone's time. All threads share one arena, because a thread's own arena holds no block above
    64 MiB; so this must be called before other threads start.
    """
    trim_threshold, mmap_max, arena_max = -1, -4, -8  # the numbers in malloc.h
    if os.name == "posix" and hasattr(libc := ctypes.CDLL(None), "gnu_get_libc_version"):
        libc.mallopt(trim_threshold, KEPT_MEMORY)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(arena_max, 1)


def serve(
    app: ASGIApp,
    listener: socket.socket,
    limits: Limits,
    proxies: TrustedProxies,
    tls: TLS | None = None,
) -> None:
    """Run the app until the process is interrupted."""
    gc.collect()
    gc.freeze()  # what is there now stays: a full collection would look at all of it, for 0.1 s
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = limits.head_seconds  # type: ignore[attr-defined]
    config = uvicorn.Config(
        app,
        http=protocol_with(limits, proxies),
        ws="none",
        loop="asyncio" if tls else "auto",  # uvloop's TLS has a timeout of its own, of a minute
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies.networks),
        forwarded_allow_ips=proxies.for_uvicorn(),
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=limits.end_seconds,
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after its shutdown
        uvicorn.Server(config).run(sockets=[listener])
