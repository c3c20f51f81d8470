"""Fetch published files and unpack them: resumable, checked, and whole or not there at all.

While a file comes in, it is NAME.part beside its place; an interrupted transfer goes on from there. It gets its name only
after its checksum was right. An archive is unpacked into a temporary folder, which is renamed when it is complete.
"""

import errno
import hashlib
import http.client
import os
import ssl
import stat
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from fewmore.data.files import data_root
from fewmore.data.sources import WEIGHTS, File
from fewmore.errors import DataError, DownloadError, UnknownName

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where the server says so

BLOCK = 1 << 18
UNPACKED_BYTES = 16 << 30  # an archive that holds more is refused
UNPACKED_FILES = 1_000_000
LONGEST_PAUSE = 60.0  # seconds, between attempts


# A file of the table


def get(
    file: File, root: Path, on_progress: Progress | None = None
) -> Literal["fetched", "there", "different"]:
    """Have one file of the table below the data root; what a person put there is left alone, even where it differs."""
    target = root / file.to
    if file.unpacked is None and target.exists():
        return "different" if _wrong(target, file.sha256, file.md5) else "there"
    if file.unpacked is not None and (root / file.unpacked).exists():
        return "there"
    if not target.exists() or _wrong(target, file.sha256, file.md5):
        fetch(file.url, target, file.sha256, file.md5, on_progress)
    if file.unpacked is not None:
        unpack(target, root / file.unpacked, file.unpacked)
        target.unlink()
    return "fetched"


def pretrained_weights(
    backbone: str, root: Path | None = None, on_progress: Progress | None = None
) -> Path:
    """The file of a backbone's ImageNet weights, downloaded where it is not there yet."""
    if backbone not in WEIGHTS:
        raise UnknownName("backbone with ImageNet weights", backbone, WEIGHTS)
    file, folder = WEIGHTS[backbone], data_root(root)
    if get(file, folder, on_progress) == "different":
        raise DownloadError(
            f"{folder / file.to} is not the published file: remove it to have that downloaded"
        )
    return folder / file.to


# One file


class _Transient(Exception):
    """What may be gone at the next attempt."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause  # seconds that the server asks for


def fetch(
    url: str,
    target: Path,
    sha256: str | None = None,
    md5: str | None = None,
    on_progress: Progress | None = None,
    attempts: int = 5,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> None:
    """Fetch an address into a file, going on from where an earlier call stopped.

    `attempts` is how often it may fail in a row without a byte gained; the pause before the next one doubles each time.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise DownloadError(
            f"{url} is not an address that can be fetched: it must begin with http:// or https://"
        )
    part = target.with_name(target.name + ".part")
    by_hand = f"try again, or fetch it with a browser and save it as {target}"
    failures = 0
    while True:
        before = _size(part)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _transfer(url, part, timeout, on_progress)
            break
        except _Transient as error:
            failures = 1 if _size(part) > before else failures + 1
            if failures >= attempts:
                kept = f"; the {_size(part):,} bytes that came are kept" if _size(part) else ""
                raise DownloadError(
                    f"{url} could not be fetched after {attempts} attempts ({error}){kept}: {by_hand}"
                ) from error
            time.sleep(min(LONGEST_PAUSE, error.pause or pause * 2 ** (failures - 1)))
        except (HTTPError, URLError, ValueError) as error:
            raise DownloadError(f"{url} could not be fetched ({error}): {by_hand}") from error
        except OSError as error:
            raise DownloadError(
                f"{part} cannot be written ({error.strerror or error}): make room, or choose another --data-root"
            ) from error
    if wrong := _wrong(part, sha256, md5):
        part.unlink()
        raise DownloadError(
            f"what came from {url} is not the published file ({wrong}), and was removed: {by_hand}"
        )
    os.replace(part, target)


def _transfer(url: str, part: Path, timeout: float, on_progress: Progress | None) -> None:
    """One attempt: ask for what is missing and append it."""
    have = _size(part)
    headers = {"User-Agent": "fewmore", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        answer = urlopen(Request(url, headers=headers), timeout=timeout)
    except HTTPError as error:
        with error:
            if error.code == 416:  # nothing after what we have: complete, or of another file
                if error.headers.get("Content-Range") == f"bytes */{have}":
                    return
                part.unlink(missing_ok=True)
                raise _Transient("the file changed on the server") from error
            if error.code in (408, 425, 429) or error.code >= 500:
                after = error.headers.get("Retry-After") or ""
                raise _Transient(str(error), float(after) if after.isdecimal() else None) from error
            raise
    except (URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise
        raise _Transient(str(reason) or type(reason).__name__) from error
    with answer:
        resumed = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(
            f"bytes {have}-"
        )
        if answer.status == 206 and not resumed:
            raise _Transient("the server answered with another part of the file than was asked for")
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with open(part, "ab" if resumed else "wb") as file:
            while block := _block(answer):
                file.write(block)
                have += len(block)
                if on_progress:
                    on_progress(have, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and have < total:
        raise _Transient(f"the connection ended after {have:,} of {total:,} bytes")


def _block(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _Transient(str(error) or type(error).__name__) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _wrong(path: Path, sha256: str | None, md5: str | None) -> str | None:
    """How a file's checksum differs from the published one, or None."""
    for name, expected in (("sha256", sha256), ("md5", md5)):
        if expected is None:
            continue
        digest = hashlib.new(name, usedforsecurity=False)
        with open(path, "rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
        if digest.hexdigest() != expected:
            return f"its {name} is {digest.hexdigest()}, not {expected}"
    return None


# One archive


def unpack(archive: Path, to: Path, inside: str = "", most_bytes: int = UNPACKED_BYTES) -> None:
    """Make the folder `to` from a folder inside a .tar.gz, .tgz or .zip archive (by default, from all of it).

    Refused as a whole: names that lead out of the folder, links, devices, and more than `most_bytes` or a million files.
    """
    if to.exists():
        raise DataError(f"{to} is there already: move it away to have {archive} unpacked")
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{to.name}-", dir=to.parent) as temporary:
            whole = Path(temporary) / "whole"
            whole.mkdir()
            _extract(archive, whole, most_bytes)
            if not (whole / inside).is_dir():
                raise DataError(
                    f"{archive} has no folder {inside}: it is not the published archive; remove it and fetch it again"
                )
            (whole / inside).rename(to)
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        RuntimeError,
        NotImplementedError,
    ) as error:
        raise DataError(f"{archive} is damaged ({error}): remove it and fetch it again") from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = (
            "make room, or choose another --data-root" if full else "remove it and fetch it again"
        )
        raise DataError(
            f"{archive} cannot be unpacked ({error.strerror or error}): {remedy}"
        ) from error


def _extract(archive: Path, to: Path, most_bytes: int) -> None:
    unpacked = 0
    for number, (name, content) in enumerate(_members(archive), 1):
        path = to / _inner(archive, name)
        if number > UNPACKED_FILES:
            raise DataError(
                f"{archive} holds more than {UNPACKED_FILES:,} files: it is not a data set of ours; remove it"
            )
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with content, open(path, "xb") as file:
            while block := content.read(BLOCK):
                unpacked += len(block)
                if unpacked > most_bytes:
                    raise DataError(
                        f"{archive} unpacks to more than {most_bytes:,} bytes: it is not a data set of ours; remove it"
                    )
                file.write(block)


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Name and content of all that an archive holds; a folder has no content."""
    if archive.name.endswith((".tar.gz", ".tgz")):
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if not member.isfile() and not member.isdir():
                    raise DataError(
                        f"{archive} holds '{member.name}', which is a link or a device: refused; remove the archive"
                    )
                yield member.name, tar.extractfile(member) if member.isfile() else None
    elif archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as pack:
            for info in pack.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise DataError(
                        f"{archive} holds '{info.filename}', which is a link or a device: refused; remove the archive"
                    )
                yield info.filename, None if info.is_dir() else pack.open(info)
    else:
        raise DataError(f"{archive} is of no known kind: an archive ends in .tar.gz, .tgz or .zip")


def _inner(archive: Path, name: str) -> PurePosixPath:
    """The name as a path that stays inside the folder it is unpacked to."""
    path, elsewhere = PurePosixPath(name), PureWindowsPath(name)
    if (
        path.is_absolute()
        or elsewhere.drive
        or elsewhere.root
        or ".." in elsewhere.parts
        or "\0" in name
        or not name
    ):
        raise DataError(
            f"{archive} holds '{name}', which would lie outside the folder it is unpacked to: refused; remove the archive"
        )
    return path
