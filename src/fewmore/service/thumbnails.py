"""Store thumbnails of taught images in a folder beside the model file.

A thumbnail's name is the content hash of its image. A class knows the hashes of its images, so no
index is needed: renaming, forgetting and undoing leave the folder as it is, and thumbnails that no
class can show again are removed. They can be spared: they are written after the response, and not
synced to the disk.
"""

import io
import os
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from PIL import Image
from torch import Tensor

SIDE = 96  # pixels
PER_CLASS = 12  # that are listed
NAME = re.compile("[0-9a-f]{16}")


class Thumbnails:
    """Read and write the folder; without one, keep nothing and find nothing."""

    def __init__(self, folder: Path | None, read_only: bool = False) -> None:
        self.folder = folder
        self._read_only = read_only
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._unwritten: dict[str, Tensor] = {}
        if folder is not None and not read_only:
            with suppress(OSError):  # a full disk costs only the thumbnails
                folder.mkdir(mode=0o700, exist_ok=True)
        if folder is not None and folder.is_dir():
            self._known = {path.stem for path in folder.glob("*.jpg") if NAME.fullmatch(path.stem)}

    @classmethod
    def beside(cls, model: Path, keep: bool) -> "Thumbnails":
        """Open the folder of a model file, as private as that; or remove what it holds."""
        folder = thumbnail_folder(model)
        if not keep:
            if folder.is_dir():
                cls(folder).remove_except(())
                with suppress(OSError):  # something else is in it
                    folder.rmdir()
            return cls(None)
        thumbnails = cls(folder)
        if not model.stat().st_mode & 0o077:
            with suppress(OSError):
                folder.chmod(0o700)
        return thumbnails

    def add(self, images: Iterable[tuple[int, Tensor]]) -> None:
        """Take square images (3, s, s) by content hash; `write` stores them."""
        if self.folder is None or self._read_only:
            return
        with self._lock:
            for content_hash, square in images:
                name = thumbnail_name(content_hash)
                if name not in self._known:
                    self._known.add(name)
                    self._unwritten[name] = square

    def write(self) -> None:
        """Store the images that were added. A full disk costs only the thumbnails."""
        while True:
            with self._lock:
                name = next(iter(self._unwritten), None)
                square = self._unwritten[name] if name is not None else None
            if name is None or square is None or self.folder is None:
                return
            path = self.folder / f"{name}.jpg"
            temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
            try:
                temporary.write_bytes(_jpeg(square))
                with self._lock:
                    if self._unwritten.pop(name, None) is not None:  # else removed meanwhile
                        os.replace(temporary, path)
            except OSError:
                with self._lock:
                    self._unwritten.pop(name, None)
                    self._known.discard(name)
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def names(self, hashes: Iterable[int]) -> list[str]:
        """List the names of those that exist, up to a limit."""
        if not self._known:
            return []
        names = sorted(map(thumbnail_name, hashes))
        return [name for name in names if name in self._known][:PER_CLASS]

    def __contains__(self, name: str) -> bool:
        """Return whether there is one of this name."""
        return name in self._known

    def read(self, name: str) -> bytes | None:
        """Return the JPEG file's content, or None if there is none."""
        with self._lock:
            if self.folder is None or name not in self._known:
                return None
            square = self._unwritten.get(name)
        if square is not None:
            return _jpeg(square)
        try:
            content = (self.folder / f"{name}.jpg").read_bytes()
        except OSError:  # the file was removed by hand
            content = b""
        if not content:  # or a power failure came before it was written
            self._known.discard(name)
            return None
        return content

    def remove_except(self, hashes: Iterable[int]) -> None:
        """Remove all but these."""
        kept = set(map(thumbnail_name, hashes))
        with self._lock:
            for name in self._known - kept:
                self._known.discard(name)
                self._unwritten.pop(name, None)
                if self.folder is not None:
                    with suppress(OSError):
                        (self.folder / f"{name}.jpg").unlink(missing_ok=True)


def thumbnail_folder(model: Path) -> Path:
    """Return the folder that belongs to a model file."""
    return model.with_name(model.name + ".thumbnails")


def thumbnail_name(content_hash: int) -> str:
    """Format a content hash as sixteen hexadecimal digits."""
    return f"{content_hash % 2**64:016x}"


def hash_of(name: str) -> int:
    """Return the content hash, signed, that `thumbnail_name` has formatted."""
    value = int(name, 16)
    return value - 2**64 if value >= 2**63 else value


def _jpeg(square: Tensor) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(square.permute(1, 2, 0).contiguous().numpy())
    image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
