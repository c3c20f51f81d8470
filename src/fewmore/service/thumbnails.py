"""Store thumbnails of taught images in a folder beside the model file.

A thumbnail's name is the content hash of its image. A class knows the hashes of its images, so no
index is needed: renaming, forgetting and undoing leave the folder as it is, and thumbnails that no
class can show again are removed.
"""

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path

from PIL import Image
from torch import Tensor

from fewmore.io import write_bytes

SIDE = 96  # pixels
PER_CLASS = 12  # that are listed


class Thumbnails:
    """Read and write the folder; without one, keep nothing and find nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._known: set[str] = set()
        if folder is not None:
            folder.mkdir(exist_ok=True)
            self._known = {path.stem for path in folder.glob("*.jpg")}

    def add(self, images: Iterable[tuple[int, Tensor]]) -> None:
        """Store square images (3, s, s) by content hash. A full disk costs only the thumbnail."""
        for content_hash, square in images:
            name = thumbnail_name(content_hash)
            if self.folder is not None and name not in self._known:
                with contextlib.suppress(OSError):
                    write_bytes(self.folder / f"{name}.jpg", _jpeg(square))
                    self._known.add(name)

    def names(self, hashes: Iterable[int]) -> list[str]:
        """List the names of those that exist, up to a limit."""
        if not self._known:
            return []
        names = sorted(map(thumbnail_name, hashes))
        return [name for name in names if name in self._known][:PER_CLASS]

    def read(self, name: str) -> bytes | None:
        """Return the JPEG file's content, or None if there is none."""
        if self.folder is None or name not in self._known:
            return None
        try:
            return (self.folder / f"{name}.jpg").read_bytes()
        except OSError:  # the file was removed by hand
            self._known.discard(name)
            return None

    def remove_except(self, hashes: Iterable[int]) -> None:
        """Remove all but these."""
        for name in self._known - set(map(thumbnail_name, hashes)):
            if self.folder is not None:
                with contextlib.suppress(OSError):
                    (self.folder / f"{name}.jpg").unlink(missing_ok=True)
                    self._known.discard(name)


def thumbnail_folder(model: Path) -> Path:
    """Return the folder that belongs to a model file."""
    return model.with_name(model.name + ".thumbnails")


def thumbnail_name(content_hash: int) -> str:
    """Format a content hash as sixteen hexadecimal digits."""
    return f"{content_hash % 2**64:016x}"


def _jpeg(square: Tensor) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(square.permute(1, 2, 0).contiguous().numpy())
    image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
