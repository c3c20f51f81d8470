"""Unpack archives safely: all of an archive, or nothing."""

import errno
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from fewmore.errors import DataError
from fewmore.io import BLOCK

MAX_BYTES = 16 << 30  # an archive that holds more is refused
MAX_FILES = 1_000_000

Member = tuple[str, IO[bytes] | None]  # name and content; a folder has none

_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error),
    *(EOFError, RuntimeError, NotImplementedError),
)


def unpack(archive: Path, target: Path, inside: str = "", max_bytes: int = MAX_BYTES) -> None:
    """Make the folder `target` from a folder inside a .tar.gz, .tgz or .zip archive.

    It is unpacked into a temporary folder, which is renamed when it is complete. An archive is
    refused as a whole if it has names that lead out of the folder, links or devices, or more than
    `max_bytes` or a million files.

    Args:
        archive: the file to unpack.
        target: the folder to make, which must not exist.
        inside: the folder inside the archive; by default all of it.
        max_bytes: the largest total size of the unpacked files.
    """
    if target.exists():
        raise DataError(f"{target} is there already: move it away to have {archive} unpacked")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
            whole = Path(temporary) / "whole"
            whole.mkdir()
            _extract(archive, whole, max_bytes)
            if not (whole / inside).is_dir():
                raise DataError(
                    f"{archive} has no folder {inside}: it is not the published archive; "
                    f"remove it and fetch it again"
                )
            (whole / inside).rename(target)
    except _DAMAGED as error:
        raise DataError(f"{archive} is damaged ({error}): remove it and fetch it again") from error
    except OSError as error:
        remedy = "remove it and fetch it again"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "make room, or choose another --data-root"
        raise DataError(
            f"{archive} cannot be unpacked ({error.strerror or error}): {remedy}"
        ) from error


def _extract(archive: Path, folder: Path, max_bytes: int) -> None:
    unpacked = 0
    for number, (name, content) in enumerate(_members(archive), 1):
        path = folder / _relative_path(archive, name)
        if number > MAX_FILES:
            raise DataError(
                f"{archive} holds more than {MAX_FILES:,} files: "
                f"it is not a data set of ours; remove it"
            )
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with content, open(path, "xb") as file:
            while block := content.read(BLOCK):
                unpacked += len(block)
                if unpacked > max_bytes:
                    raise DataError(
                        f"{archive} unpacks to more than {max_bytes:,} bytes: "
                        f"it is not a data set of ours; remove it"
                    )
                file.write(block)


def _members(archive: Path) -> Iterator[Member]:
    """Return all members of an archive, one by one."""
    if archive.name.endswith((".tar.gz", ".tgz")):
        return _members_of_tar(archive)
    if archive.name.endswith(".zip"):
        return _members_of_zip(archive)
    raise DataError(f"{archive} is of no known kind: an archive ends in .tar.gz, .tgz or .zip")


def _members_of_tar(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            if not member.isfile() and not member.isdir():
                raise _special_file(archive, member.name)
            yield member.name, tar.extractfile(member) if member.isfile() else None


def _members_of_zip(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as zip_file:
        for info in zip_file.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _special_file(archive, info.filename)
            yield info.filename, None if info.is_dir() else zip_file.open(info)


def _special_file(archive: Path, name: str) -> DataError:
    return DataError(
        f"{archive} holds '{name}', which is a link or a device: refused; remove the archive"
    )


def _relative_path(archive: Path, name: str) -> PurePosixPath:
    """Return the name as a path that stays inside the folder it is unpacked to."""
    path = PurePosixPath(name)
    windows_path = PureWindowsPath(name)
    if (
        path.is_absolute()
        or windows_path.drive
        or windows_path.root
        or ".." in windows_path.parts
        or "\0" in name
        or not name
    ):
        raise DataError(
            f"{archive} holds '{name}', which would lie outside the folder it is unpacked to: "
            f"refused; remove the archive"
        )
    return path
