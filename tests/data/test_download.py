"""Download from a local server that misbehaves on request, and unpack hostile archives."""

import gzip
import hashlib
import io
import os
import socket
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fewmore.data import archives, download, sources
from fewmore.data.archives import unpack
from fewmore.data.download import fetch, fetch_file, pretrained_weights
from fewmore.data.sources import SOURCES, WEIGHTS, File
from fewmore.errors import DataError, DownloadError, UnknownName

CONTENT = bytes(range(256)) * 4000  # 1 MB, a few blocks
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


@dataclass
class Server:
    """Hold the files of the server, how it misbehaves, and the requests it got."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True  # whether it honours Range
    cut: list[int] = field(default_factory=list)  # the next answers end after so many bytes
    status: list[int] = field(default_factory=list)  # the next answers are these errors
    # Path and Range of each request.
    requests: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server(files={"/file": CONTENT})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested = self.headers.get("Range")
            state.requests.append((self.path, requested))
            if state.status:
                self.send_response(state.status.pop(0))
                self.send_header("Retry-After", "0")
                self.end_headers()
                return
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "/file")
                self.end_headers()
                return
            if self.path not in state.files:
                self.send_error(404)
                return
            whole = state.files[self.path]
            start = (
                int(requested.removeprefix("bytes=").removesuffix("-"))
                if requested and state.ranges
                else 0
            )
            if start and start >= len(whole):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(whole)}")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
            self.send_header("Content-Length", str(len(whole) - start))
            self.end_headers()
            self.wfile.write(whole[start:][: state.cut.pop(0) if state.cut else None])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.address = f"http://127.0.0.1:{http.server_address[1]}"
        yield state
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses between attempts instead of sleeping."""
    taken: list[float] = []
    monkeypatch.setattr(download.time, "sleep", taken.append)
    return taken


def part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


# One file


def test_a_file_arrives_whole_and_checked(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "file"
    seen: list[tuple[int, int | None]] = []
    fetch(
        f"{server.address}/file",
        target,
        sha256=SHA256,
        md5=MD5,
        on_progress=lambda *now: seen.append(now),
    )
    assert target.read_bytes() == CONTENT
    assert not part(target).exists()
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert seen == sorted(seen)
    assert len(seen) > 2


def test_a_redirect_is_followed(server: Server, tmp_path: Path) -> None:
    fetch(f"{server.address}/moved", tmp_path / "file", sha256=SHA256)
    assert [path for path, _ in server.requests] == ["/moved", "/file"]


def test_a_broken_connection_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cut = [300_000, 200_000]
    fetch(f"{server.address}/file", tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [requested for _, requested in server.requests] == [
        None,
        "bytes=300000-",
        "bytes=500000-",
    ]


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(server: Server, tmp_path: Path) -> None:
    server.cut = [300_000, 0, 0]
    target = tmp_path / "file"
    with pytest.raises(
        DownloadError,
        match=r"after 2 attempts .*300,000 bytes that came are kept",
    ):
        fetch(f"{server.address}/file", target, sha256=SHA256, attempts=2)
    assert part(target).read_bytes() == CONTENT[:300_000]
    assert not target.exists()
    server.cut = []
    fetch(f"{server.address}/file", target, sha256=SHA256)
    assert target.read_bytes() == CONTENT
    assert server.requests[-1] == ("/file", "bytes=300000-")


def test_a_server_without_ranges_starts_anew(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.cut = [300_000]
    fetch(f"{server.address}/file", tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.requests) == 2


def test_a_part_that_is_complete_only_needs_checking(server: Server, tmp_path: Path) -> None:
    part(tmp_path / "file").write_bytes(CONTENT)
    fetch(f"{server.address}/file", tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_dropped(server: Server, tmp_path: Path) -> None:
    part(tmp_path / "file").write_bytes(CONTENT + b"more")
    fetch(f"{server.address}/file", tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "sums", [{"sha256": "0" * 64}, {"md5": "0" * 32}, {"sha256": SHA256, "md5": "0" * 32}]
)
def test_a_file_with_a_wrong_checksum_is_removed(
    server: Server, tmp_path: Path, sums: dict[str, str]
) -> None:
    with pytest.raises(
        DownloadError,
        match=r"is not the published file \(its (sha256|md5) is \w+, not 0+\), and was removed",
    ):
        fetch(f"{server.address}/file", tmp_path / "file", **sums)
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_another_file_is_caught(server: Server, tmp_path: Path) -> None:
    part(tmp_path / "file").write_bytes(b"x" * 1000)
    with pytest.raises(DownloadError, match="not the published file"):
        fetch(f"{server.address}/file", tmp_path / "file", sha256=SHA256)
    fetch(f"{server.address}/file", tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_transient_errors_are_retried_with_longer_pauses(
    server: Server, tmp_path: Path, pauses: list[float]
) -> None:
    server.status = [503, 500, 429]
    fetch(f"{server.address}/file", tmp_path / "file", sha256=SHA256)
    assert (tmp_path / "file").exists()
    assert pauses == [1.0, 2.0, 4.0]


def test_permanent_errors_are_not_retried(server: Server, tmp_path: Path) -> None:
    with pytest.raises(
        DownloadError, match=r"could not be fetched \(HTTP Error 404.*save it as .*file"
    ):
        fetch(f"{server.address}/nothing", tmp_path / "file")
    assert len(server.requests) == 1


def test_nobody_answers(tmp_path: Path, pauses: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(DownloadError, match=r"could not be fetched after 3 attempts \(.*refused"):
        fetch(f"http://127.0.0.1:{port}/file", tmp_path / "file", attempts=3)
    assert len(pauses) == 2


def test_a_server_that_falls_silent_runs_into_the_timeout(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(DownloadError, match="timed out"):
            fetch(f"http://127.0.0.1:{port}/file", tmp_path / "file", attempts=1, timeout=0.05)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/x", "nonsense"])
def test_only_web_addresses_are_fetched(tmp_path: Path, url: str) -> None:
    with pytest.raises(DownloadError, match="must begin with http"):
        fetch(url, tmp_path / "file")


def test_a_disk_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        DownloadError, match=r"cannot be written .*: make room, or choose another --data-root"
    ):
        fetch(f"{server.address}/file", tmp_path / "file" / "below")


# One archive


def tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info


def zipped(path: Path, members: dict[str, bytes], mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return path


@pytest.mark.parametrize("kind", ["tar.gz", "tgz", "zip"])
def test_the_folder_inside_becomes_the_folder(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / f"a.{kind}"
    if kind == "zip":
        zipped(archive, {"set/": b"", "set/deep/file": CONTENT, "other": b"2"})
    else:
        tar(
            archive,
            [
                (entry("set", tarfile.DIRTYPE), b""),
                (entry("./set/deep/file"), CONTENT),
                (entry("other"), b"2"),
            ],
        )
    unpack(archive, tmp_path / "to" / "set", "set")
    unpack(archive, tmp_path / "all")
    assert (tmp_path / "to" / "set" / "deep" / "file").read_bytes() == CONTENT
    assert sorted(os.listdir(tmp_path / "to")) == ["set"]
    assert sorted(os.listdir(tmp_path / "all")) == ["other", "set"]


HOSTILE = {
    "absolute.tar.gz": [(entry("/tmp/escaped"), b"x")],
    "parent.tar.gz": [(entry("set/../../escaped"), b"x")],
    "backslash.tar.gz": [(entry("..\\escaped"), b"x")],
    "drive.tar.gz": [(entry("C:/escaped"), b"x")],
    "symlink.tar.gz": [
        (entry("set/link", tarfile.SYMTYPE, "/etc"), b""),
        (entry("set/link/escaped"), b"x"),
    ],
    "hardlink.tar.gz": [(entry("set/link", tarfile.LNKTYPE, "/etc/passwd"), b"")],
    "device.tar.gz": [(entry("set/null", tarfile.CHRTYPE), b"")],
    "pipe.tar.gz": [(entry("set/pipe", tarfile.FIFOTYPE), b"")],
    "twice.tar.gz": [(entry("set/file"), b"1"), (entry("set/file"), b"2")],
    "file-as-folder.tar.gz": [(entry("set/file"), b"1"), (entry("set/file/below"), b"2")],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tar_is_refused(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "in"
    inner.mkdir()
    tar(inner / name, [(entry("set/good"), b"1"), *HOSTILE[name]])
    with pytest.raises(DataError, match=name):
        unpack(inner / name, inner / "set", "set")
    assert os.listdir(inner) == [name]
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("../escaped", 0),
        ("/escaped", 0),
        ("a\\..\\..\\b", 0),
        ("link", stat.S_IFLNK | 0o777),
        ("fifo", stat.S_IFIFO),
    ],
)
def test_a_hostile_zip_is_refused(tmp_path: Path, name: str, mode: int) -> None:
    archive = zipped(tmp_path / "a.zip", {name: b"/etc"}, mode)
    with pytest.raises(DataError, match="refused; remove the archive"):
        unpack(archive, tmp_path / "to")
    assert os.listdir(tmp_path) == ["a.zip"]


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / f"a.{kind}"
    zeros = bytes(3_000_000)
    if kind == "zip":
        zipped(archive, {"one": zeros, "two": zeros})
    else:
        tar(archive, [(entry("one"), zeros), (entry("two"), zeros)])
    assert archive.stat().st_size < 20_000
    with pytest.raises(DataError, match="unpacks to more than 5,000,000 bytes"):
        unpack(archive, tmp_path / "to", max_bytes=5_000_000)
    assert os.listdir(tmp_path) == [archive.name]


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_FILES", 3)
    with pytest.raises(DataError, match="holds more than 3 files"):
        unpack(zipped(tmp_path / "a.zip", {str(i): b"" for i in range(4)}), tmp_path / "to")


@pytest.mark.parametrize("name", ["cut.tar.gz", "cut.zip", "text.tar.gz", "text.zip", "short.tgz"])
def test_a_damaged_archive_is_refused(tmp_path: Path, name: str) -> None:
    archive = tmp_path / name
    if "cut" in name:
        (
            zipped(archive, {"set/file": os.urandom(9000)})
            if name.endswith("zip")
            else tar(archive, [(entry("set/file"), os.urandom(9000))])
        )
        archive.write_bytes(archive.read_bytes()[:5000])
    elif "short" in name:
        archive.write_bytes(gzip.compress(b"no tar inside"))
    else:
        archive.write_text("no archive")
    with pytest.raises(DataError, match=r"remove it and fetch it again"):
        unpack(archive, tmp_path / "set", "set")
    assert os.listdir(tmp_path) == [name]


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    with pytest.raises(DataError, match="is there already: move it away"):
        unpack(zipped(tmp_path / "a.zip", {"one": b"1"}), tmp_path / "to")


def test_other_archives_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ends in \.tar\.gz, \.tgz or \.zip"):
        unpack(tmp_path / "a.rar", tmp_path / "to")


def test_an_archive_without_the_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no folder set"):
        unpack(zipped(tmp_path / "a.zip", {"one": b"1"}), tmp_path / "set", "set")


# The table


def test_fetch_file_fetches_once_and_keeps_existing_files(server: Server, tmp_path: Path) -> None:
    file = File(f"{server.address}/file", "lists/file", sha256=SHA256)
    assert fetch_file(file, tmp_path) == "fetched"
    assert fetch_file(file, tmp_path) == "there"
    (tmp_path / "lists" / "file").write_text("my own")
    assert fetch_file(file, tmp_path) == "different"
    assert (tmp_path / "lists" / "file").read_text() == "my own"
    assert len(server.requests) == 1


def test_fetch_file_unpacks_an_archive_and_removes_it(server: Server, tmp_path: Path) -> None:
    archive = tar(tmp_path / "made.tgz", [(entry("set/file"), CONTENT)]).read_bytes()
    server.files["/set.tgz"] = archive
    file = File(
        f"{server.address}/set.tgz",
        "set.tgz",
        sha256=hashlib.sha256(archive).hexdigest(),
        unpacked="set",
    )
    root = tmp_path / "root"
    assert fetch_file(file, root) == "fetched"
    assert fetch_file(file, root) == "there"
    assert os.listdir(root) == ["set"]
    assert len(server.requests) == 1


def test_fetch_file_unpacks_an_archive_that_was_fetched_before(
    server: Server, tmp_path: Path
) -> None:
    tar(tmp_path / "set.tgz", [(entry("set/file"), CONTENT)])
    sha256 = hashlib.sha256((tmp_path / "set.tgz").read_bytes()).hexdigest()
    file = File(f"{server.address}/set.tgz", "set.tgz", sha256=sha256, unpacked="set")
    assert fetch_file(file, tmp_path) == "fetched"
    assert os.listdir(tmp_path) == ["set"]
    assert server.requests == []


def test_pretrained_weights(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        WEIGHTS, "resnet18", File(f"{server.address}/file", "weights/w.pth", sha256=SHA256)
    )
    path = pretrained_weights("resnet18", tmp_path)
    assert path == tmp_path / "weights" / "w.pth"
    assert path.read_bytes() == CONTENT
    path.write_text("other")
    with pytest.raises(DownloadError, match="is not the published file") as caught:
        pretrained_weights("resnet18", tmp_path)
    assert str(caught.value) == (
        f"{path} is not the published file of resnet18's ImageNet weights (its sha256 is "
        f"{hashlib.sha256(b'other').hexdigest()}): remove it and run "
        f"`fewmore data get resnet18 --data-root {tmp_path}`"
    )
    with pytest.raises(UnknownName, match=r"is named .resnet20.: .* with weights none"):
        pretrained_weights("resnet20", tmp_path)


def test_weights_that_cannot_be_fetched(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the sentence says where they were looked for, and what to do."""
    monkeypatch.setitem(WEIGHTS, "resnet18", File(f"{server.address}/gone", "w.pth", sha256=SHA256))
    monkeypatch.setenv("FEWMORE_DATA", str(tmp_path))
    with pytest.raises(DownloadError) as caught:
        pretrained_weights("resnet18")
    sentence = str(caught.value)
    assert sentence.startswith(f"the ImageNet weights of resnet18 are not at {tmp_path / 'w.pth'}:")
    assert sentence.endswith(f"save it as {tmp_path / 'w.pth'}, or run `fewmore data get resnet18`")


def test_runs_side_by_side_fetch_weights_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WEIGHTS, "resnet18", File(f"{server.address}/file", "w.pth", sha256=SHA256))
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: pretrained_weights("resnet18", tmp_path), range(8)))
    assert set(paths) == {tmp_path / "w.pth"}
    assert len(server.requests) == 1


def test_a_known_copy_of_the_weights_serves_as_well(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"the weights without a layer that is not used"
    copies = (hashlib.sha256(content).hexdigest(),)
    file = File(f"{server.address}/file", "w.pth", sha256=SHA256, copies=copies)
    monkeypatch.setitem(WEIGHTS, "resnet18", file)
    (tmp_path / "w.pth").write_bytes(content)
    assert pretrained_weights("resnet18", tmp_path).read_bytes() == content
    assert server.requests == []
    (tmp_path / "w.pth").write_bytes(content + b".")
    with pytest.raises(DownloadError, match="is not the published file"):
        pretrained_weights("resnet18", tmp_path)


def test_every_file_of_the_table_has_a_checksum_and_a_place_of_its_own() -> None:
    for source in SOURCES.values():
        for file in source.files:
            assert file.url.startswith("https://")
            assert len(file.sha256 or "") == 64 or len(file.md5 or "") == 32
            assert not Path(file.path).is_absolute()
            assert ".." not in Path(file.path).parts
        assert len({file.path for file in source.files}) == len(source.files)
    lists = [
        file
        for source in SOURCES.values()
        for file in source.files
        if file.path.startswith("index_list")
    ]
    assert len(lists) == len({file.sha256 for file in lists}) == 9 + 9 + 2 + 11
    assert sources.RESNET18.sha256 is not None
    assert sources.RESNET18.sha256[:8] in sources.RESNET18.url
