"""Test a real server process: durability, logs, and clients that are slow or broken."""

import asyncio
import contextlib
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from fewmore import IncrementalClassifier
from fewmore.service.app import create_app
from fewmore.service.batching import Batcher
from fewmore.service.limits import Limits
from fewmore.service.server import listen, protocol_with
from fewmore.service.store import Store
from fewmore.service.thumbnails import thumbnail_folder

Serving = Callable[..., AbstractContextManager[Any]]
Connect = Callable[[Any], Any]
MakeImage = Callable[..., bytes]

WITHOUT_MERGES = """
import fewmore.service.store
fewmore.service.store.MERGE_SECONDS = 3600
from fewmore.cli import main
main()
"""


def test_changes_survive_a_kill_and_a_stop(
    model: Path, serving: Serving, connect: Connect, image: MakeImage
):
    key = {"Idempotency-Key": "once"}
    with serving(model, program=("-c", WITHOUT_MERGES)) as served:
        client = connect(served)
        assert client.http.get("/ready").json()["version"] == 1
        first = client.teach("okapi", **key).json()
        assert (
            client.predict(image("okapi", 9)).json()["predictions"][0]["classes"][0]["name"]
            == "okapi"
        )
        wait_for_thumbnails(model, 3)
        served.kill()
    assert "okapi" not in IncrementalClassifier.load(model).classes_  # it is in the database alone
    with serving(model) as served:
        client = connect(served)
        assert client.classes()["okapi"] == 3
        assert client.version() == 2
        assert client.teach("okapi", **key).json() == first
        (okapi,) = client.http.get("/api/classes", params={"query": "okapi"}).json()["classes"]
        assert len(okapi["thumbnails"]) == 3
        assert client.http.get(okapi["thumbnails"][0]).status_code == 200
        assert client.teach("zebra").status_code == 200
        assert served.stop() == 0
        assert served.process.stderr.read() == ""
    assert IncrementalClassifier.load(model).classes_[-2:] == ["okapi", "zebra"]


def wait_for_thumbnails(model: Path, count: int) -> None:
    """Wait until the service has stored as many: it does so after its response."""
    until = time.monotonic() + 60
    while len(list(thumbnail_folder(model).glob("*.jpg"))) < count:
        assert time.monotonic() < until, "no thumbnail was stored"
        time.sleep(0.01)


def test_no_secret_is_logged(model: Path, serving: Serving, connect: Connect):
    token = "correct-horse-battery"
    with serving(model, FEWMORE_TOKEN=token) as served:
        client = connect(served)
        assert client.http.get("/api/model").status_code == 401
        assert client.teach("okapi", Authorization=f"Bearer {token}").status_code == 200
        assert client.teach("zebra", Authorization=f"Bearer {token}x").status_code == 401
        assert served.stop() == 0
        printed = served.process.stdout.read() + served.process.stderr.read()
    assert token not in printed


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_file_and_folder_are_synced_before_the_response(
    model: Path, serving: Serving, connect: Connect, tmp_path: Path
):
    """Check the order of the system calls."""
    trace = tmp_path / "trace"
    calls = "trace=openat,pwrite64,fsync,fdatasync,sendto,recvfrom,read,write,writev"
    options = [
        "-D",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-s",
        "160",
    ]  # -D: not as a parent process
    strace = ("strace", *options, "-e", calls, "-o", str(trace))
    with serving(model, before=strace) as served:
        assert connect(served).teach("okapi").status_code == 200
        served.stop()
    lines = trace.read_text(errors="replace").splitlines()
    changes, folder = re.escape(f"{model}.changes"), re.escape(str(model.parent))

    def first(pattern: str, since: int = 0) -> int:
        return next(
            number for number, line in enumerate(lines[since:], since) if re.search(pattern, line)
        )

    created = first(rf'openat\(.*"{changes}", .*O_CREAT')
    folder_synced = first(rf"(fsync|fdatasync)\(\d+<{folder}>", created)
    requested = first(r"(recvfrom|read)\(.*POST /api/classes")
    responded = first(r'(sendto|writev?)\(.*"HTTP/1\.1 200', requested)
    written = [
        number
        for number, line in enumerate(lines[requested:responded], requested)
        if re.search(rf"pwrite64\(\d+<{changes}-wal>", line)
    ]
    on_disk = first(rf"(fsync|fdatasync)\(\d+<{changes}-wal>", written[-1])
    assert created < folder_synced < requested < written[0] < on_disk < responded
    done = next(
        number
        for number, line in enumerate(lines[on_disk:], on_disk)
        if re.search(r"(fsync|fdatasync).*= 0", line)
    )
    assert done < responded


# Slow and broken clients


@contextlib.contextmanager
def limited(model: Path, **values: Any) -> Iterator[Any]:
    """Serve a model with such limits in a thread of this process; yield its address."""
    limits = Limits(**values)
    with running(create_app(Store(model), limits=limits, workers=1), limits) as address:
        yield address


@pytest.fixture
def service(model: Path) -> Iterator[Any]:
    """Return the address of a service with the usual limits."""
    with limited(model) as address:
        yield address


@contextlib.contextmanager
def running(app: Any, limits: Limits) -> Iterator[Any]:
    """Run an app in a thread of this process; yield its address."""
    config = uvicorn.Config(app, http=protocol_with(limits), ws="none", log_level="critical")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    with listen("127.0.0.1", 0) as at:
        # Its connections inherit this: what the client does not read stays with the service.
        at.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        thread = threading.Thread(target=lambda: server.run(sockets=[at]), daemon=True)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield at.getsockname()
        finally:  # else a failed assertion would be waited for without end
            server.should_exit = True
            thread.join(timeout=30)


def exchange(address: Any, *parts: bytes, in_turn: bool = False) -> bytes:
    """Send the parts, and return all that comes back until the connection is closed.

    In turn: each part is a request, and is sent when the one before has its whole response.
    """
    found = b""
    with socket.create_connection(address[:2], timeout=20) as connection:
        for number, part in enumerate(parts):
            if in_turn and number:
                found += read_response(connection, to=parts[number - 1])
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(part)  # if the service has closed it, what it said is read below
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                found += chunk
    return found


def read_response(connection: socket.socket, to: bytes) -> bytes:
    """Read the whole response to a request, and no more; it must give its length."""
    found, whole = b"", None
    while whole is None or len(found) < whole:
        chunk = connection.recv(65536)
        assert chunk, found
        found += chunk
        if head := re.match(rb"(?s).*?content-length: (\d+).*?\r\n\r\n", found):
            whole = head.end() + (0 if to.startswith(b"HEAD") else int(head[1]))
    return found


def fed(*parts: bytes) -> bytes:
    """Give the parts to a connection one by one; return what it sends before the app does."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def feed() -> bytes:
        extra = {"socket": Mock()}
        transport = Mock(get_extra_info=extra.get, is_closing=Mock(return_value=False))
        state = ServerState()
        config = uvicorn.Config(app, ws="none", log_config=None)
        protocol = protocol_with(Limits())(config=config, server_state=state, app_state={})
        protocol.connection_made(transport)
        for part in parts:
            protocol.data_received(part)
        protocol.connection_lost(None)
        await asyncio.gather(*state.tasks)
        return b"".join(call.args[0] for call in transport.write.call_args_list)

    return asyncio.run(feed())


HEAD = (
    b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n"
)


HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
KEPT_OPEN = HEALTH.replace(b"Connection: close\r\n", b"")


def test_a_head_that_does_not_come_ends_the_connection(model: Path):
    with limited(model, head_seconds=0.3) as address:
        assert exchange(address) == b""
        assert exchange(address, b"GET /hea") == b""
    with limited(model, head_seconds=2) as address:
        response = exchange(address, KEPT_OPEN, b"GET /hea", in_turn=True)
    assert response.startswith(b"HTTP/1.1 200")
    assert response.count(b"HTTP/1.1") == 1


def test_a_body_that_does_not_come_is_refused(model: Path):
    with limited(model, body_seconds=0.3) as address:
        found = exchange(address, HEAD + b"Content-Length: 100\r\n\r\n--x")
        assert found.startswith(b"HTTP/1.1 408")
        assert b"0.3 seconds" in found
        chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
        found = exchange(address, chunked, *[b"1\r\nx\r\n"] * 2)
        assert found.startswith(b"HTTP/1.1 408")


def test_requests_that_are_not_http_are_refused(service: Any):
    assert exchange(service, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert exchange(service, b"GET /" + b"x" * 100_000).startswith(b"HTTP/1.1 400")


def test_trailers_are_limited_as_heads_are():
    start = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    found = fed(start, *[b"X: yyyyyyyy\r\n" * 1000] * 2)
    assert found.startswith(b"HTTP/1.1 400")
    assert b"16384 bytes" in found


def test_requests_are_taken_one_after_the_other(service: Any):
    """A second request before the first response is not read: the connection is closed."""
    found = exchange(service, KEPT_OPEN * 3)
    assert found.startswith(b"HTTP/1.1 200")
    assert found.count(b"HTTP/1.1") == 1
    assert b"connection: close" in found


def test_a_request_after_the_last_byte_of_a_response_is_taken():
    """A client may have a whole response before the service says that it is complete."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-length", b"4")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"done", "more_body": True})
            await asyncio.sleep(0.3)
            await send({"type": "http.response.body", "body": b""})

    with running(app, Limits()) as address:
        found = exchange(address, KEPT_OPEN, HEALTH, in_turn=True)
    assert found.count(b"HTTP/1.1 200") == found.count(b"done") == 2


def test_a_request_after_head_is_taken(service: Any):
    """The service reads a file that it does not send, while the client has all that comes."""
    head = KEPT_OPEN.replace(b"GET /health", b"HEAD /api/model/file")
    found = exchange(service, head, HEALTH, in_turn=True)
    assert found.count(b"HTTP/1.1 200") == 2
    assert found.endswith(b'{"status":"alive"}')


def test_a_request_that_offers_another_protocol_is_answered_in_this_one(
    service: Any, image: MakeImage
):
    """Java's client offers HTTP/2 with its first request, also with one that has a body."""
    part = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
    body = part + image("a") + b"\r\n--x--\r\n"
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEA\r\n"
    request = HEAD + offer + b"Content-Length: %d\r\n\r\n" % len(body) + body
    found = exchange(service, request, HEALTH, in_turn=True)
    assert found.count(b"HTTP/1.1 200") == 2
    middle = request.index(b"Upgrade: h2c") + 3
    assert fed(request[:middle], request[middle:]).startswith(b"HTTP/1.1 400")


def test_a_large_body_is_refused_by_its_length_alone(service: Any):
    found = exchange(service, HEAD + b"Content-Length: 99999999999\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 413")


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere this machine has one loopback address"
)
def test_too_many_connections_are_closed_and_others_go_on(model: Path):
    limits = {"head_seconds": 60, "connections": 20, "client_connections": 10}
    with limited(model, **limits) as address:
        to = address[:2]
        with contextlib.ExitStack() as crowd:
            own = [crowd.enter_context(socket.create_connection(to, timeout=20)) for _ in range(40)]
            with socket.create_connection(to, timeout=20, source_address=("127.0.0.2", 0)) as other:
                other.sendall(HEALTH)  # meanwhile, from another address
                assert other.recv(65536).startswith(b"HTTP/1.1 200")
            for one in own[10:]:  # closed at once: a head may take longer than this waits
                with contextlib.suppress(ConnectionResetError):
                    assert one.recv(1) == b""
            for one in own[:10]:
                one.sendall(HEALTH)
                assert one.recv(65536).startswith(b"HTTP/1.1 200")
                while one.recv(65536):
                    pass
        assert exchange(address, HEALTH).startswith(b"HTTP/1.1 200")


def test_a_response_that_is_not_read_ends_the_connection(
    model: Path, caplog: pytest.LogCaptureFixture
):
    ask = b"GET /api/model/file HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with limited(model, send_seconds=0.3) as address, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(20)
        slow.connect(address[:2])
        slow.sendall(ask)
        until = time.monotonic() + 20
        while "did not read its response" not in caplog.text and time.monotonic() < until:
            time.sleep(0.05)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := slow.recv(65536):
                found += chunk
    assert found.startswith(b"HTTP/1.1 200")
    head, _, body = found.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    assert len(body) < int(length[1])
    assert "did not read its response" in caplog.text


def test_clients_that_go_away_leave_nothing_behind(service: Any, image: MakeImage):
    body = (
        b"--x\r\nContent-Disposition: form-data; name=images; filename=a\r\n\r\n"
        + image("a")
        + b"\r\n--x--\r\n"
    )
    for cut in (10, len(body) // 2, len(body)):
        with socket.create_connection(service[:2], timeout=20) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:cut])
    found = exchange(
        service, HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    assert found.startswith(b"HTTP/1.1 200")


def test_the_work_of_a_client_that_left_is_cancelled(
    service: Any, image: MakeImage, monkeypatch: pytest.MonkeyPatch
):
    left = threading.Event()

    async def predict(*_: Any) -> None:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            left.set()
            raise

    monkeypatch.setattr(Batcher, "predict", predict)
    body = (
        b"--x\r\nContent-Disposition: form-data; name=images; filename=a\r\n\r\n"
        + image("a")
        + b"\r\n--x--\r\n"
    )
    with socket.create_connection(service[:2], timeout=20) as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert left.wait(20)


def test_a_response_is_sent_at_once():
    """Check that Nagle's algorithm is off: it would delay the second packet by 40 ms."""
    config = uvicorn.Config(lambda scope: None, http="httptools")
    loop = asyncio.new_event_loop()
    with (
        listen("127.0.0.1", 0) as server,
        socket.create_connection(server.getsockname()) as _,
        server.accept()[0] as own,
    ):
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
        transport = Mock(get_extra_info={"socket": own}.get)
        protocol_with(Limits())(
            config=config, server_state=ServerState(), app_state={}, _loop=loop
        ).connection_made(transport)
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    loop.close()


FAULTS = """
import resource, threading
from fewmore.service.server import keep_memory
keep_memory()
def work():
    for _ in range(10):
        b"x" * 80_000_000
worker = threading.Thread(target=work)
worker.start()
worker.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_reused():
    """Check that a block that a thread allocates ten times comes from the system once."""
    ran = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert 80e6 < int(ran.stdout) < 400e6
