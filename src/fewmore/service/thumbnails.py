"""Small images of what was taught, in a folder beside the model file, each named by its image's fingerprint.

A class knows its images' fingerprints, so no table is needed: renaming, forgetting and undoing leave the folder as it is, and what no
class can ever show again is swept away.
"""

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path

from PIL import Image
from torch import Tensor

from fewmore.io import write_bytes

SIDE = 96  # pixels
SHOWN = 12  # a class


class Thumbnails:
    """The folder; without one nothing is kept and nothing found."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._known: set[str] = set()
        if folder is not None:
            folder.mkdir(exist_ok=True)
            self._known = {path.stem for path in folder.glob("*.jpg")}

    def keep(self, images: Iterable[tuple[int, Tensor]]) -> None:
        """Keep squares (3, s, s) by their fingerprints. A full disk costs the thumbnail, never the lesson."""
        for number, square in images:
            name = name_of(number)
            if self.folder is not None and name not in self._known:
                with contextlib.suppress(OSError):
                    write_bytes(self.folder / f"{name}.jpg", _jpeg(square))
                    self._known.add(name)

    def of(self, numbers: Iterable[int]) -> list[str]:
        """The names of those that are there."""
        return (
            [name for name in sorted(map(name_of, numbers)) if name in self._known][:SHOWN]
            if self._known
            else []
        )

    def read(self, name: str) -> bytes | None:
        if self.folder is None or name not in self._known:
            return None
        try:
            return (self.folder / f"{name}.jpg").read_bytes()
        except OSError:  # somebody tidied up
            self._known.discard(name)
            return None

    def sweep(self, numbers: Iterable[int]) -> None:
        """Remove all but these."""
        for name in self._known - set(map(name_of, numbers)):
            if self.folder is not None:
                with contextlib.suppress(OSError):
                    (self.folder / f"{name}.jpg").unlink(missing_ok=True)
                    self._known.discard(name)


def name_of(number: int) -> str:
    """Sixteen hexadecimal digits."""
    return f"{number % 2**64:016x}"


def _jpeg(square: Tensor) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(square.permute(1, 2, 0).contiguous().numpy())
    image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
