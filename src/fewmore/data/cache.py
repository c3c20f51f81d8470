"""Keep decoded images in a cache that is read through memory mapping.

Decoding streams pixels to a file and holds only a few images in memory, so a set larger than
memory is read like any other. A cache entry is a folder with `pixels` (all images, one after the
other) and `shapes.npy`. It is written to a temporary folder and then renamed, so it is complete
or absent, and it may be deleted at any time.
"""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from fewmore.data.decode import Pixels, suppress_warnings, try_decode
from fewmore.data.folders import MAX_NAMED, Listing
from fewmore.data.images import ImageSet, Ragged, Storage
from fewmore.data.paths import cache_folder
from fewmore.data.threads import threaded_map
from fewmore.errors import DataError, ImageError, MissingData

Progress = Callable[[int, int], None]  # images done, images in total

FORMAT = 2  # version of a cache entry
UNFINISHED = "unfinished-"  # prefix of an entry while it is written
CHUNK = 16  # images that a thread decodes at a time


def load_images(
    listing: Listing,
    short_side: int | None = None,
    square: int | None = None,
    on_progress: Progress | None = None,
) -> ImageSet:
    """Load the images of a listing, from the cache if they were decoded before.

    Args:
        listing: the image files and their labels.
        short_side: shrink each image so that its short side has this length; an image whose
            short side is shorter stays as it is.
        square: resize each image to this height and width.
        on_progress: called with the number of images done and in total.
    """
    if not len(listing):
        raise DataError("there are no images to read: the list of files is empty")
    key = _cache_key(listing.paths, short_side, square)
    entry = cache_folder() / "images" / key
    storage = _open_entry(entry, len(listing))
    if storage is None:
        shutil.rmtree(entry, ignore_errors=True)  # a damaged entry
        _write_entry(listing.paths, entry, short_side, square, on_progress)
        storage = _open_entry(entry, len(listing))
    elif on_progress:
        on_progress(len(listing), len(listing))
    if storage is None:
        raise DataError(
            f"the decoded images in {entry} cannot be read back: check the disk, "
            f"or set FEWMORE_CACHE to a folder on another one"
        )
    return ImageSet.from_images(storage, listing.labels, listing.class_names)


def _cache_key(paths: Sequence[Path], short_side: int | None, square: int | None) -> str:
    """Return a key that changes with the files and with how they are stored."""
    digest = hashlib.sha256(f"{FORMAT} {short_side} {square}\n".encode())
    missing = []
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError:
            missing.append(path)
            continue
        version = f"\0{stat.st_size} {stat.st_mtime_ns}\n"
        digest.update(os.fsencode(os.path.abspath(path)) + version.encode())
    if missing:
        raise MissingData(
            f"{_count_and_names(missing, 'image is missing', 'images are missing')}: put them "
            "there, or remove them from the list that names them"
        )
    return digest.hexdigest()[:32]


def _open_entry(entry: Path, count: int) -> Storage | None:
    """Map the images of an entry, or return None where it is absent or damaged."""
    try:
        shapes = np.load(entry / "shapes.npy", allow_pickle=False)
        # Map it read-only: a private writable mapping counts as memory, and the system would
        # refuse it for a set larger than memory.
        pixels = np.memmap(entry / "pixels", np.uint8, "r")
    except (OSError, ValueError, EOFError):
        return None
    if shapes.shape != (count, 2) or 3 * int(shapes.prod(1).sum()) != pixels.size:
        return None
    with suppress_warnings():  # torch warns of read-only memory, and nothing writes to a storage
        buffer = torch.from_numpy(np.asarray(pixels))
    heights, widths = torch.from_numpy(shapes).unbind(1)
    if len(np.unique(shapes, axis=0)) == 1:
        return buffer.view(count, 3, int(heights[0]), int(widths[0]))
    sizes = 3 * heights * widths
    return Ragged(buffer, sizes.cumsum(0) - sizes, heights, widths)


def _write_entry(
    paths: Sequence[Path],
    entry: Path,
    short_side: int | None,
    square: int | None,
    on_progress: Progress | None,
) -> None:
    """Decode files into a new entry; one error names all files that cannot be decoded."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(entry.parent)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=entry.parent) as temporary:
            unfinished = Path(temporary) / "entry"
            unfinished.mkdir()
            pixels_file = unfinished / "pixels"
            shapes = _decode_to_file(paths, pixels_file, short_side, square, on_progress)
            np.save(unfinished / "shapes.npy", np.array(shapes, dtype=np.int64))
            try:
                unfinished.rename(entry)
            except OSError:
                if not entry.exists():  # otherwise another process was faster
                    raise
    except OSError as error:
        raise DataError(
            f"the decoded images cannot be written below {entry.parent} "
            f"({error.strerror or error}): make room there, set FEWMORE_CACHE to another folder, "
            f"or store smaller images (--set transform.stored=PIXELS)"
        ) from error


def _decode_to_file(
    paths: Sequence[Path],
    file_path: Path,
    short_side: int | None,
    square: int | None,
    on_progress: Progress | None,
) -> list[tuple[int, int]]:
    """Decode files with threads, write all pixels to one file, and return heights and widths."""

    def decode_chunk(start: int) -> list[Pixels | str]:
        chunk = paths[start : start + CHUNK]
        return [try_decode(path, short_side, square, False) for path in chunk]

    shapes: list[tuple[int, int]] = []
    broken: list[str] = []
    with suppress_warnings(), open(file_path, "wb") as file:
        for chunk in threaded_map(decode_chunk, range(0, len(paths), CHUNK)):
            for pixels in chunk:
                if isinstance(pixels, str):
                    broken.append(f"{paths[len(shapes)]} ({pixels})")
                    shapes.append((0, 0))
                    continue
                shapes.append((pixels.shape[1], pixels.shape[2]))
                if not broken:
                    file.write(pixels.data)
            if on_progress:
                on_progress(len(shapes), len(paths))
        file.flush()
        os.fsync(file.fileno())
    if broken:
        raise ImageError(
            f"{_count_and_names(broken, 'image cannot be read', 'images cannot be read')}: "
            "replace or remove them"
        )
    return shapes


def _remove_stale(folder: Path) -> None:
    """Remove unfinished entries that killed processes left behind."""
    for path in folder.glob(f"{UNFINISHED}*"):
        if path.stat().st_mtime < time.time() - 24 * 3600:
            shutil.rmtree(path, ignore_errors=True)


def _count_and_names(items: Sequence[object], singular: str, plural: str) -> str:
    """Say how many items there are, and name the first few."""
    named = ", ".join(str(item) for item in items[:MAX_NAMED])
    more = f" and {len(items) - MAX_NAMED:,} more" if len(items) > MAX_NAMED else ""
    return f"{len(items):,} {singular if len(items) == 1 else plural} ({named}{more})"
