"""Read images in a stream from files, folders, globs, tar archives, and addresses of fsspec.

A place is an image file or a tar archive of images, such as a shard of WebDataset. The places are
listed once; then a position, the number of a place and that of an image in it, says how far
reading came, and from any position it goes on.
"""

import glob
import itertools
import json
import os
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fewmore.data.folders import (
    IMAGE_SUFFIXES,
    is_of_other_kind,
    printable,
    unreadable,
    walk_files,
)
from fewmore.data.manifests import is_manifest, manifest_paths
from fewmore.errors import ConfigError, DataError, ImageError, first_line

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz")
CHUNK_BYTES = 16_000_000  # of images out of archives, which a chunk holds in memory
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")  # of shards: birds-{000..099}.tar
_GLOB = re.compile(r"[*?[]")

_DAMAGED = (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError)  # type: ignore[attr-defined]

Position = tuple[int, int]  # of the next image: number of its place, number within the archive


@dataclass(frozen=True)
class Place:
    """Name an image file, or an archive of images with its size."""

    address: str
    archive_bytes: int = 0  # 0: an image


@dataclass(frozen=True)
class Chunk:
    """Hold consecutive images, not decoded yet."""

    names: tuple[str, ...]
    images: tuple[str | bytes | ImageError, ...]  # a path, a file's bytes, or why there are none
    end: Position  # where the next chunk begins
    archive_bytes: int  # of archives that were read, up to the end


@dataclass(frozen=True)
class Piece:
    """Hold consecutive places that are read by one process of several."""

    places: tuple[Place, ...]
    start: Position  # of the first image
    archive_bytes: int  # of the archives before the first place

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Yield all images, so many at a time."""
        return read_chunks(self.places, size, self.start, self.archive_bytes)


# Listing


def list_places(given: Sequence[str], others: Counter[str] | None = None) -> Iterator[Place]:
    """List the images and archives that were given: as files, folders, globs, lists or addresses.

    A glob and a range of numbers such as birds-{000..099}.tar may be in any of them. Files of other
    kinds in folders are left out, and counted in `others` by how their names end.
    """
    others = Counter() if others is None else others
    for text in given:
        for address in _expand_range(text):
            found = False
            for place in _list(address, others):
                found = True
                yield place
            if not found:
                raise DataError(
                    f"{address} has no images in it: give a folder that has some "
                    f"({', '.join(sorted(IMAGE_SUFFIXES))} or .tar), or images"
                )


def _expand_range(text: str) -> Iterator[str]:
    if (match := _RANGE.search(text)) is None:
        yield text
        return
    first, last = match.groups()
    if int(last) < int(first):
        raise DataError(
            f"{text} has no numbers in it, because {last} comes before {first}: "
            f"give {text[: match.start()]}{{{last}..{first}}}{text[match.end() :]}"
        )
    for number in range(int(first), int(last) + 1):
        middle = str(number).zfill(len(first))
        yield from _expand_range(text[: match.start()] + middle + text[match.end() :])


def _list(address: str, others: Counter[str]) -> Iterator[Place]:
    return _list_remote(address) if "://" in address else _list_local(address, others)


def _list_local(text: str, others: Counter[str]) -> Iterator[Place]:
    path = Path(text).expanduser()
    if is_manifest(path, labeled=False) and not _is_no_list(path):
        yield from (Place(str(image)) for image in manifest_paths(path))
    elif os.path.isdir(path):  # a path that cannot be looked at is an image that cannot be read
        yield from _list_folder(path, others)
    elif _GLOB.search(text) and not os.path.exists(path):
        files = sorted(glob.glob(str(path), recursive=True))
        yield from (_local_place(file) for file in files if os.path.isfile(file))
    else:
        yield _local_place(str(path))


def _list_folder(folder: Path, others: Counter[str]) -> Iterator[Place]:
    try:
        for file in map(Path, walk_files(str(folder), recursive=True)):
            if file.suffix.lower() in IMAGE_SUFFIXES or _is_archive(file.name):
                yield _local_place(str(file))
            elif is_of_other_kind(file):
                others[file.suffix.lower()] += 1
    except OSError as error:
        raise unreadable(error, folder) from error


def _is_no_list(path: Path) -> bool:
    """Say whether a .txt is something else, perhaps an image: it must not stop the others."""
    if path.suffix.lower() != ".txt":
        return False
    try:
        path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return True
    return False


def _local_place(path: str) -> Place:
    if not _is_archive(path):
        return Place(path)
    try:
        return Place(path, max(1, os.path.getsize(path)))
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}): give an archive of images"
        ) from error


def _list_remote(address: str) -> Iterator[Place]:
    with _reachable(address):
        system, path = _import_fsspec(address).core.url_to_fs(address)
        if "*" in path:  # a question mark begins the query of a web address
            entries = system.glob(path, detail=True)
        elif system.isdir(path):
            entries = system.find(path, detail=True)
        else:
            entries = {path: system.info(path)}
        is_single = list(entries) == [path]
        for name, about in sorted(entries.items()):
            is_image = Path(name).suffix.lower() in IMAGE_SUFFIXES
            if about.get("type") == "directory" or Path(name).name.startswith("."):
                continue
            if _is_archive(name):
                yield Place(system.unstrip_protocol(name), max(1, about.get("size") or 0))
            elif is_image or is_single:
                yield Place(system.unstrip_protocol(name))


def _is_archive(address: str) -> bool:
    return address.lower().endswith(ARCHIVE_SUFFIXES)


class PlaceList:
    """Keep a list of places in a file: millions of them would fill the memory.

    Whatever is added to a folder later, the list stays, and so do positions in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.images = 0  # outside of archives
        self.archive_bytes = 0
        for place in self.places():
            self.images += not place.archive_bytes
            self.archive_bytes += place.archive_bytes

    @classmethod
    def write(cls, path: Path, places: Iterable[Place]) -> "PlaceList":
        """Write places to a file, which is there when it is complete."""
        unfinished = path.with_name(f"{path.name}.new")
        with unfinished.open("w", encoding="utf-8") as file:
            for place in places:
                file.write(json.dumps([place.address, place.archive_bytes]) + "\n")
        os.replace(unfinished, path)
        return cls(path)

    def places(self, first: int = 0) -> Iterator[Place]:
        """Yield the places from a number on."""
        with self.path.open(encoding="utf-8") as file:
            for line in itertools.islice(file, first, None):
                yield Place(*json.loads(line))

    def chunks(self, size: int, start: Position = (0, 0)) -> Iterator["Chunk"]:
        """Yield all images from a position on, so many at a time."""
        return read_chunks(self.places(start[0]), size, start, self._bytes_before(start))

    def pieces(self, size: int, start: Position = (0, 0)) -> Iterator[Piece]:
        """Yield the places from a position on: an archive alone, of images so many at a time."""
        number, skipped = start
        done = self._bytes_before(start)
        piece: list[Place] = []
        for place in self.places(number):
            if piece and (place.archive_bytes or piece[0].archive_bytes or len(piece) == size):
                yield Piece(tuple(piece), (number, skipped), done)
                number, skipped = number + len(piece), 0
                done += piece[0].archive_bytes
                piece = []
            piece.append(place)
        if piece:
            yield Piece(tuple(piece), (number, skipped), done)

    def _bytes_before(self, start: Position) -> int:
        return sum(place.archive_bytes for place in itertools.islice(self.places(), start[0]))


# Reading


def read_chunks(
    places: Iterable[Place], size: int, start: Position = (0, 0), archive_bytes: int = 0
) -> Iterator[Chunk]:
    """Yield all images from a position on, so many at a time.

    Files stay paths until they are decoded. What cannot be read becomes an `ImageError`.

    Args:
        places: those from the position on.
        size: images in a chunk, at most.
        start: the position of the first image.
        archive_bytes: of the archives before its place.
    """
    names: list[str] = []
    images: list[str | bytes | ImageError] = []
    read = 0
    end = start
    done = archive_bytes
    for name, image, end, done in _read_images(places, start, archive_bytes):
        names.append(printable(name))
        images.append(image)
        read += len(image) if isinstance(image, bytes) else 0
        if len(names) == size or read >= CHUNK_BYTES:
            yield Chunk(tuple(names), tuple(images), end, done)
            names, images, read = [], [], 0
    if names:
        yield Chunk(tuple(names), tuple(images), end, done)


def _read_images(
    places: Iterable[Place], start: Position, archive_bytes: int
) -> Iterator[tuple[str, str | bytes | ImageError, Position, int]]:
    """Yield name and image, with the position after it and the bytes of archives up to there."""
    first, skipped = start
    for number, place in enumerate(places, first):
        if not place.archive_bytes:
            yield place.address, place.address, (number + 1, 0), archive_bytes
            continue
        done = skipped if number == first else 0
        for name, image, offset in _read_archive(place, done):
            done += 1
            end = (number + 1, 0) if isinstance(image, ImageError) else (number, done)
            yield name, image, end, archive_bytes + min(offset, place.archive_bytes)
        archive_bytes += place.archive_bytes


class _StrictInfo(tarfile.TarInfo):
    """Read a member's header; a damaged one is an error, where tarfile takes it for the end."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "_StrictInfo":
        try:
            return super().fromtarfile(archive)
        except _DAMAGED as error:
            raise tarfile.ReadError(str(error)) from None


def _read_archive(place: Place, skipped: int) -> Iterator[tuple[str, bytes | ImageError, int]]:
    """Yield name, bytes and offset of an archive's images, but for the first ones.

    If the archive is damaged, or cannot be opened, an error is the last of them.
    """
    number = 0
    try:
        with (
            open_binary(place.address) as stream,
            tarfile.open(fileobj=stream, mode="r|*", tarinfo=_StrictInfo) as archive,
        ):
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # or all of them are kept
                name = Path(member.name)
                is_image = name.suffix.lower() in IMAGE_SUFFIXES and not name.name.startswith(".")
                file = archive.extractfile(member) if member.isfile() and is_image else None
                if file is None:
                    continue
                data = file.read() if number >= skipped else b""
                number += 1
                if number > skipped:
                    yield f"{place.address}/{member.name}", data, member.offset_data
    except (tarfile.TarError, OSError, EOFError, zlib.error, DataError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        text = f"{place.address} cannot be read beyond its {number:,} images ({reason})"
        if not number:
            text = f"{place.address} cannot be read ({reason})"
        yield place.address, ImageError(printable(text)), place.archive_bytes


@contextmanager
def open_binary(address: str) -> Iterator[IO[bytes]]:
    """Open a file, or what is at an address."""
    if "://" not in address:
        with open(address, "rb") as local:
            yield local
        return
    with _reachable(address), _import_fsspec(address).open(address, "rb") as remote:
        yield remote


@contextmanager
def _reachable(address: str) -> Iterator[None]:
    """Turn the errors of file systems, which are of many kinds, into a sentence."""
    try:
        yield
    except (DataError, ConfigError, tarfile.TarError):
        raise
    except Exception as error:
        reason = first_line(error)
        raise DataError(f"{address} cannot be read ({reason})") from error


def _import_fsspec(address: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(
            f"{address} takes a package that is not installed: pip install 'fewmore[remote]'"
        ) from error
    return fsspec
