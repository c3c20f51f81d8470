"""Fetch published files: resumable, checked, and complete or absent.

While a file is transferred it is NAME.part beside its target; an interrupted transfer resumes from
there. It gets its name only after its checksum was right.
"""

import http.client
import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from fewmore.data.archives import unpack
from fewmore.data.paths import data_root
from fewmore.data.sources import WEIGHTS, File
from fewmore.errors import DownloadError, UnknownName
from fewmore.io import BLOCK, file_hash

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in total if the server says so

MAX_PAUSE = 60.0  # seconds between attempts

_weights_lock = threading.Lock()  # of runs side by side, one fetches the weights


def fetch_file(
    file: File, root: Path, on_progress: Progress | None = None
) -> Literal["fetched", "there", "different"]:
    """Fetch one published file below the data root, and unpack it if it is an archive.

    A file that is there already is not replaced, even where it differs.
    """
    target = root / file.path
    if file.unpacked is None and target.exists():
        problem = _checksum_problem(target, file.sha256, file.md5)
        return "different" if problem and file_hash(target) not in file.copies else "there"
    if file.unpacked is not None and (root / file.unpacked).exists():
        return "there"
    if not target.exists() or _checksum_problem(target, file.sha256, file.md5):
        fetch(file.url, target, file.sha256, file.md5, on_progress)
    if file.unpacked is not None:
        unpack(target, root / file.unpacked, file.unpacked)
        target.unlink()
    return "fetched"


def pretrained_weights(
    backbone: str, root: Path | None = None, on_progress: Progress | None = None
) -> Path:
    """Return the file of a backbone's ImageNet weights, downloaded if it is not there."""
    if backbone not in WEIGHTS:
        others = "the others are trained from scratch, with weights none"
        raise UnknownName("backbone with ImageNet weights", backbone, WEIGHTS, others)
    file = WEIGHTS[backbone]
    folder = data_root(root)
    path = folder / file.path
    get = f"fewmore data get {backbone}" + (f" --data-root {root}" if root else "")
    try:
        with _weights_lock:
            outcome = fetch_file(file, folder, on_progress)
    except DownloadError as error:
        raise DownloadError(
            f"the ImageNet weights of {backbone} are not at {path}: {error}, or run `{get}`"
        ) from error
    if outcome == "different":
        raise DownloadError(
            f"{path} is not the published file of {backbone}'s ImageNet weights (its sha256 is "
            f"{file_hash(path)}): remove it and run `{get}`"
        )
    return path


class _TransientError(Exception):
    """Report a failure that the next attempt may not meet."""

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
    """Fetch a URL into a file, resuming where an earlier call stopped.

    Args:
        url: an http or https address.
        target: the file to write.
        sha256: the expected checksum.
        md5: the expected checksum.
        on_progress: called with the bytes so far and in total.
        attempts: failures in a row, without a byte gained, before giving up.
        timeout: seconds without an answer that count as a failure.
        pause: seconds before the second attempt; the pause doubles each time.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise DownloadError(
            f"{url} is not an address that can be fetched: it must begin with http:// or https://"
        )
    part = target.with_name(target.name + ".part")
    by_hand = f"try again, or fetch it with a browser and save it as {target}"
    failures = 0
    if on_progress:  # attempts that fail take a while
        on_progress(_size(part), None)
    while True:
        size_before = _size(part)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _transfer(url, part, timeout, on_progress)
            break
        except _TransientError as error:
            failures = 1 if _size(part) > size_before else failures + 1
            if failures >= attempts:
                kept = f"; the {_size(part):,} bytes that came are kept" if _size(part) else ""
                raise DownloadError(
                    f"{url} could not be fetched after {attempts} attempts ({error}){kept}: "
                    f"{by_hand}"
                ) from error
            time.sleep(min(MAX_PAUSE, error.pause or pause * 2 ** (failures - 1)))
        except (HTTPError, URLError, ValueError) as error:
            raise DownloadError(f"{url} could not be fetched ({error}): {by_hand}") from error
        except OSError as error:
            raise DownloadError(
                f"{part} cannot be written ({error.strerror or error}): "
                f"make room, or choose another --data-root"
            ) from error
    if problem := _checksum_problem(part, sha256, md5):
        part.unlink()
        raise DownloadError(
            f"what came from {url} is not the published file ({problem}), and was removed: "
            f"{by_hand}"
        )
    os.replace(part, target)


def _transfer(url: str, part: Path, timeout: float, on_progress: Progress | None) -> None:
    """Make one attempt: request what is missing and append it."""
    received = _size(part)
    response = _open(url, part, received, timeout)
    if response is None:
        return
    with response:
        content_range = response.headers.get("Content-Range") or ""
        resumed = response.status == 206 and content_range.startswith(f"bytes {received}-")
        if response.status == 206 and not resumed:
            raise _TransientError(
                "the server answered with another part of the file than was asked for"
            )
        received = received if resumed else 0
        length = response.headers.get("Content-Length")
        total = received + int(length) if length else None
        with open(part, "ab" if resumed else "wb") as file:
            while block := _read_block(response):
                file.write(block)
                received += len(block)
                if on_progress:
                    on_progress(received, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and received < total:
        raise _TransientError(f"the connection ended after {received:,} of {total:,} bytes")


def _open(url: str, part: Path, received: int, timeout: float) -> http.client.HTTPResponse | None:
    """Request the bytes after the first `received`; return None where there are no more."""
    headers = {"User-Agent": "fewmore", "Accept-Encoding": "identity"}
    if received:
        headers["Range"] = f"bytes={received}-"
    try:
        response: http.client.HTTPResponse = urlopen(Request(url, headers=headers), timeout=timeout)
        return response
    except HTTPError as error:
        with error:
            if error.code == 416:  # no bytes after ours: complete, or of another file
                if error.headers.get("Content-Range") == f"bytes */{received}":
                    return None
                part.unlink(missing_ok=True)
                raise _TransientError("the file changed on the server") from error
            if error.code in (408, 425, 429) or error.code >= 500:
                after = error.headers.get("Retry-After") or ""
                pause = float(after) if after.isdecimal() else None
                raise _TransientError(str(error), pause) from error
            raise
    except (URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise
        raise _TransientError(str(reason) or type(reason).__name__) from error


def _read_block(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _TransientError(str(error) or type(error).__name__) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _checksum_problem(path: Path, sha256: str | None, md5: str | None) -> str | None:
    """Say how a file's checksum differs from the published one, or return None."""
    for algorithm, expected in (("sha256", sha256), ("md5", md5)):
        if expected is None:
            continue
        actual = file_hash(path, algorithm)
        if actual != expected:
            return f"its {algorithm} is {actual}, not {expected}"
    return None
