"""An app on a socket, with connections that may not dawdle."""

import asyncio
import contextlib
import ctypes
import logging
import os
import socket

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from fewmore.errors import ConfigError
from fewmore.service.limits import Limits

KEEP_ALIVE = 10  # seconds that an idle connection is kept
LAST_ANSWERS = 10  # seconds that answers under way are waited for at the end
LARGEST_HEAD = 16_384  # bytes
KEPT_MEMORY = 2**30  # bytes of freed memory that the process keeps

log = logging.getLogger("fewmore.service")


def protocol(limits: Limits) -> type[H11Protocol]:
    """HTTP/1.1 that closes connections beyond a number, those whose request's head does not come, and those that take no answer."""

    class Impatient(H11Protocol):
        watched: object = None  # the request after which a head is waited for
        untaken: asyncio.TimerHandle | None = (
            None  # runs while a part of an answer waits for the client
        )

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # An answer's head and body are two packets: without this the second waits 40 ms for the client to acknowledge the first.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport.set_write_buffer_limits(
                high=0
            )  # so that writing pauses as soon as anything is left behind
            own = sum(_address(one) == _address(self) for one in self.connections)
            if len(self.connections) > limits.connections or own > limits.client_connections:
                self.connections.discard(
                    self
                )  # it is lost a moment later, and must not count against those that come meanwhile
                transport.abort()
            else:
                self._watch()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.untaken = self.loop.call_later(limits.send_seconds, self._give_up)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._forgive()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forgive()
            super().connection_lost(exc)

        def _forgive(self) -> None:
            if self.untaken is not None:
                self.untaken.cancel()

        def _give_up(self) -> None:
            log.warning(
                "a client did not take its answer within %g seconds: closed", limits.send_seconds
            )
            self.transport.abort()  # closing would wait for what it does not take

        def data_received(self, data: bytes) -> None:
            if (
                self.cycle is not None
                and self.cycle.response_complete
                and self.watched is not self.cycle
            ):
                self._watch()
            super().data_received(data)

        def _watch(self) -> None:
            self.watched = self.cycle
            self.loop.call_later(limits.head_seconds, self._close_unless_after, self.cycle)

        def _close_unless_after(self, cycle: object) -> None:
            if self.cycle is cycle and not self.transport.is_closing():
                self.transport.close()

    return Impatient


def _address(connection: object) -> str:
    """Of a client, without its port."""
    client = getattr(connection, "client", None)
    return client[0] if client else ""


def listening(host: str, port: int) -> socket.socket:
    """A socket at this address; port 0 takes any that is free."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(
            f"the service cannot listen at {host}, port {port} ({getattr(error, 'strerror', None) or error}): "
            f"give another port with --port (0 takes any that is free), or another address with --host"
        ) from error


def keep_memory() -> None:
    """Let this process use its freed memory again, where the C library is glibc.

    Else each of a batch's larger maps is given back to the system when it is freed, and comes anew and cleared, page by page, in the
    next batch, which is a good part of a backbone's time. All threads share one pool, because one of their own holds no block above
    64 MiB; so this must come before there are others.
    """
    trim_threshold, mmap_max, arena_max = -1, -4, -8  # as malloc.h numbers them
    if os.name == "posix" and hasattr(libc := ctypes.CDLL(None), "gnu_get_libc_version"):
        libc.mallopt(trim_threshold, KEPT_MEMORY)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(arena_max, 1)


def serve(app: FastAPI, at: socket.socket, limits: Limits | None = None) -> None:
    """Answer until the process is told to end."""
    logging.getLogger("python_multipart").setLevel(
        logging.CRITICAL
    )  # a broken form is the client's affair, and is answered
    config = uvicorn.Config(
        app,
        http=protocol(limits or Limits()),
        ws="none",
        loop="asyncio",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=LAST_ANSWERS,
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )
    with contextlib.suppress(KeyboardInterrupt):  # which is raised once more after all is closed
        uvicorn.Server(config).run(sockets=[at])
