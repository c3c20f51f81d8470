"""Image files: listed in folders, decoded by threads, kept decoded in a cache that is read through memory mapping.

Decoding streams pixels to a file and holds only a few images at a time, so a set larger than memory is read like any
other. An entry of the cache is a folder with `pixels` (all images, one after the other) and `shapes.npy`; it is made in
a temporary folder and renamed, so it is whole or not there, and it may be deleted at any time.
"""

import hashlib
import io
import os
import re
import shutil
import tempfile
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from fewmore.data.images import ImageSet, Ragged, Storage
from fewmore.errors import DataError, ImageError, MissingData

Progress = Callable[[int, int], None]  # done, total
Pixels = np.ndarray  # (3, height, width) uint8
T = TypeVar("T")
R = TypeVar("R")

SUFFIXES = frozenset(
    {
        ".avif",
        ".bmp",
        ".gif",
        ".heic",
        ".heif",
        ".jfif",
        ".jpeg",
        ".jpg",
        ".pgm",
        ".png",
        ".ppm",
        ".tif",
        ".tiff",
        ".webp",
    }
)
FORMAT = 1  # of a cache entry
UNFINISHED = "unfinished-"  # how the name of an entry begins while it is written
NAMED = 5  # broken images or missing files that a message names
CHUNK = 16  # images a thread decodes at a time
STORED_PIXELS = 100_000_000  # of one image, as it is stored

_HEIC = re.compile(rb".{4}ftyp(hei[cmsx]|hev[cmsx]|mif1|msf1)", re.DOTALL)  # how such a file begins
_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def cache_folder() -> Path:
    """Where fewmore keeps what it can make again: $FEWMORE_CACHE, or ~/.cache/fewmore."""
    return Path(os.environ.get("FEWMORE_CACHE") or "~/.cache/fewmore").expanduser()


def data_root(given: Path | None = None) -> Path:
    """Where benchmarks lie: the folder given, else $FEWMORE_DATA, else `data` in the cache folder."""
    chosen = given or os.environ.get("FEWMORE_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder() / "data"


# One image


def attempt(
    source: Path | bytes | Image.Image, short_side: int | None = None, square: int | None = None
) -> Pixels | str:
    """The pixels of a file, of a file's content or of a Pillow image, upright and in RGB; or why there are none.

    `short_side` resizes it so that the short side has this length; `square` makes it this high and this wide.
    """
    try:
        if isinstance(source, Image.Image):
            return _pixels(source, short_side, square)
        with open(source, "rb") if isinstance(source, Path) else io.BytesIO(source) as stream:
            if _HEIC.match(stream.read(12)) and not _reads_heic():
                return "it is a HEIC image, which takes one more package: pip install 'fewmore[heic]'; or save it as JPEG"
            stream.seek(0)
            with Image.open(stream) as file:
                if side := square or short_side:
                    file.draft(
                        None, (2 * side, 2 * side)
                    )  # a large JPEG is decoded at a fraction of its size, never below twice the goal
                return _pixels(file, short_side, square)
    except UnidentifiedImageError:
        return "it is empty, or of no known image format"
    except Image.DecompressionBombError:
        return f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
    except Exception as error:  # damaged bytes make decoders raise errors of many kinds
        return (
            (error.strerror if isinstance(error, OSError) else None)
            or str(error)
            or type(error).__name__
        )


@cache
def _reads_heic() -> bool:
    """Whether Pillow can be taught to read HEIC, by a package that need not be there."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def _pixels(image: Image.Image, short_side: int | None, square: int | None) -> Pixels:
    if 0 in image.size:
        raise ValueError(f"it is {image.width} pixels wide and {image.height} high")
    image.load()  # of an animation, the first frame, or the one that the caller went to
    upright = _resized(_upright(image, _rgb(image)), short_side, square)
    return np.ascontiguousarray(np.asarray(upright).transpose(2, 0, 1))


def _rgb(image: Image.Image) -> Image.Image:
    """Eight bits each of red, green and blue; what is transparent becomes white."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F":
        return Image.fromarray(eight_bits(np.asarray(image))).convert("RGB")
    if image.mode.startswith(
        "I"
    ):  # 16 bits of grey, which Pillow would clip to the darkest 256 levels
        grey = np.asarray(image).astype(np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise ValueError(f"its greys go from {grey.min():,} to {grey.max():,}, beyond 16 bits")
        return Image.fromarray(eight_bits(grey.astype(np.uint16))).convert("RGB")
    if image.has_transparency_data:
        paper = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(paper, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def eight_bits(values: np.ndarray) -> np.ndarray:
    """Brightness as uint8: 16 bits are scaled, and so are floating-point numbers, which must lie in 0 … 1."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == bool:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype == np.uint16:
        return (values // 257).astype(np.uint8)
    if not np.issubdtype(values.dtype, np.floating):
        raise ValueError(
            f"its numbers are of type {values.dtype}, and must be uint8, uint16, bool or floating-point"
        )
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("some of its numbers are infinite or not numbers")
    if low < 0 or high > 1:
        raise ValueError(
            f"its floating-point numbers go from {low:.4g} to {high:.4g}, and must lie in 0 … 1"
        )
    return (values.astype(np.float32) * 255).round().astype(np.uint8)


def _upright(file: Image.Image, image: Image.Image) -> Image.Image:
    """The image turned as the file's EXIF entry says."""
    try:
        orientation = file.getexif().get(_ORIENTATION)
    except Exception:  # a damaged EXIF block does not make the image unusable
        return image
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def _resized(image: Image.Image, short_side: int | None, square: int | None) -> Image.Image:
    size = image.size
    if square:
        size = (square, square)
    elif short_side:
        width, height = size
        size = (
            max(1, round(width * short_side / min(size))),
            max(1, round(height * short_side / min(size))),
        )
    if size[0] * size[1] > STORED_PIXELS:
        raise ValueError(
            f"it would be stored as {size[0]} × {size[1]} pixels, more than {STORED_PIXELS:,}"
        )
    return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)


_silence = threading.Lock()
_listeners = 0  # of the silence: the first one makes it, the last one ends it
_noise = ExitStack()


@contextmanager
def quiet() -> Iterator[None]:
    """Pillow warns of odd but readable files; what matters becomes an error of ours.

    Warnings are filtered for the whole process, so threads that decode side by side share one silence.
    """
    global _listeners
    with _silence:
        _listeners += 1
        if _listeners == 1:
            _noise.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
    try:
        yield
    finally:
        with _silence:
            _listeners -= 1
            if not _listeners:
                _noise.close()


# Many images


@dataclass(frozen=True)
class Listing:
    """Image files and their labels, not yet decoded."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def counts(self) -> tuple[int, ...]:
        """How many images each class has."""
        number = Counter(self.labels)
        return tuple(number[label] for label in range(len(self.class_names)))

    def keys(self) -> tuple[str, ...]:
        """CLASS/FILE of each image, as the official session lists name it."""
        return tuple(
            f"{self.class_names[label]}/{path.name}"
            for path, label in zip(self.paths, self.labels, strict=True)
        )


def read(
    listing: Listing,
    short_side: int | None = None,
    square: int | None = None,
    on_progress: Progress | None = None,
) -> ImageSet:
    """The images of a listing, from the cache where they were decoded before."""
    if not len(listing):
        raise DataError("there are no images to read: the list of files is empty")
    entry = cache_folder() / "images" / _key(listing.paths, short_side, square)
    storage = _open(entry, len(listing))
    if storage is None:
        shutil.rmtree(entry, ignore_errors=True)  # a damaged entry
        _write(listing.paths, entry, short_side, square, on_progress)
        storage = _open(entry, len(listing))
    elif on_progress:
        on_progress(len(listing), len(listing))
    if storage is None:
        raise DataError(
            f"the decoded images in {entry} cannot be read back: check the disk, or set FEWMORE_CACHE to a folder on another one"
        )
    return ImageSet.of(storage, listing.labels, listing.class_names)


def _key(paths: Sequence[Path], short_side: int | None, square: int | None) -> str:
    """A name that changes with the files and with what is made of them."""
    digest = hashlib.sha256(f"{FORMAT} {short_side} {square}\n".encode())
    missing = []
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError:
            missing.append(path)
            continue
        digest.update(
            os.fsencode(os.path.abspath(path)) + f"\0{stat.st_size} {stat.st_mtime_ns}\n".encode()
        )
    if missing:
        raise MissingData(
            f"{_some(missing, 'images are', 'image is')} missing: put them there, or remove them from the list that names them"
        )
    return digest.hexdigest()[:32]


def _open(entry: Path, count: int) -> Storage | None:
    """The entry's images, or None where it is not there or damaged."""
    try:
        shapes = np.load(entry / "shapes.npy", allow_pickle=False)
        # Mapped for reading only: a private writable mapping counts as memory, and a set larger than that would be refused.
        pixels = np.memmap(entry / "pixels", np.uint8, "r")
    except (OSError, ValueError, EOFError):
        return None
    if shapes.shape != (count, 2) or 3 * int(shapes.prod(1).sum()) != pixels.size:
        return None
    with quiet():  # torch warns that the memory is not writable; nothing writes to a storage
        buffer = torch.from_numpy(np.asarray(pixels))
    heights, widths = torch.from_numpy(shapes).unbind(1)
    if len(np.unique(shapes, axis=0)) == 1:
        return buffer.view(count, 3, int(heights[0]), int(widths[0]))
    sizes = 3 * heights * widths
    return Ragged(buffer, sizes.cumsum(0) - sizes, heights, widths)


def _write(
    paths: Sequence[Path],
    entry: Path,
    short_side: int | None,
    square: int | None,
    on_progress: Progress | None,
) -> None:
    """Decode files into a new entry; all that cannot be decoded are named in one error."""

    def decode_chunk(chunk: Sequence[Path]) -> list[Pixels | str]:
        return [attempt(path, short_side, square) for path in chunk]

    chunks = [paths[start : start + CHUNK] for start in range(0, len(paths), CHUNK)]
    shapes: list[tuple[int, int]] = []
    broken: list[str] = []
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        _sweep(entry.parent)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=entry.parent) as temporary:
            unfinished = Path(temporary) / "entry"
            unfinished.mkdir()
            with quiet(), open(unfinished / "pixels", "wb") as file:
                for decoded in in_order(decode_chunk, chunks):
                    for pixels in decoded:
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
                    f"{_some(broken, 'images', 'image')} cannot be read: replace or remove them"
                )
            np.save(unfinished / "shapes.npy", np.array(shapes, dtype=np.int64))
            try:
                unfinished.rename(entry)
            except OSError:
                if not entry.exists():  # otherwise another process was faster
                    raise
    except OSError as error:
        raise DataError(
            f"the decoded images cannot be written below {entry.parent} ({error.strerror or error}): "
            f"make room there, or set FEWMORE_CACHE to another folder"
        ) from error


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed left behind."""
    for left in folder.glob(f"{UNFINISHED}*"):
        if left.stat().st_mtime < time.time() - 24 * 3600:
            shutil.rmtree(left, ignore_errors=True)


def in_order(work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
    """The results of tasks in their order, worked out ahead by threads; at most two for each thread wait in memory."""
    if len(tasks) <= 1:  # a single one needs no threads
        yield from map(work, tasks)
        return
    threads = os.cpu_count() or 1
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for task in tasks:
                waiting.append(pool.submit(work, task))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _some(things: Sequence[object], many: str, one: str) -> str:
    """How many there are, and the first few by name."""
    named = ", ".join(str(thing) for thing in things[:NAMED])
    more = f" and {len(things) - NAMED:,} more" if len(things) > NAMED else ""
    return f"{len(things):,} {one if len(things) == 1 else many} ({named}{more})"


# A folder of classes


def list_folder(folder: Path, seed: int = 0) -> tuple[Listing, Listing]:
    """Training and test images of a folder with one sub-folder a class.

    Where it has sub-folders `train` and `test`, each of them has one sub-folder a class; otherwise a fifth of each class,
    at least one image, is held out as test. Which ones depends on the seed and the files' names.
    """
    with _readable(folder := folder.expanduser()):
        return _list_folder(folder, seed)


def list_classes(folder: Path) -> Listing:
    """All images of a folder with one sub-folder a class, of which there must be some."""
    with _readable(folder := folder.expanduser()):
        return _list_classes(folder, least=1)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Say so where a folder, or what lies in it, cannot be listed."""
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "is not there"
        raise MissingData(
            f"{folder} {what}: give a folder that has one sub-folder a class, with that class's images in it"
        )
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{error.filename} cannot be read ({error.strerror}): check who may read it"
        ) from error


def _list_folder(folder: Path, seed: int) -> tuple[Listing, Listing]:
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        train, test = _list_classes(folder / "train"), _list_classes(folder / "test")
        for here, there, name in ((train, test, "test"), (test, train, "train")):
            if absent := sorted(set(here.class_names) - set(there.class_names)):
                raise DataError(
                    f"{folder / name} lacks the classes {', '.join(absent)}: train and test must have the same sub-folders"
                )
    else:
        train, test = _hold_out(_list_classes(folder), seed)
    _refuse_overlap(train, test)
    return train, test


def _list_classes(folder: Path, least: int = 2) -> Listing:
    classes = sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if len(classes) < least:
        raise DataError(
            f"{folder} has {len(classes)} sub-folders, and at least {least} {'class is' if least == 1 else 'classes are'} needed: "
            f"make one sub-folder a class, and put that class's images into it"
        )
    paths, labels = [], []
    for label, own in enumerate(classes):
        visible = sorted(path for path in own.iterdir() if not path.name.startswith("."))
        images = [path for path in visible if path.suffix.lower() in SUFFIXES and path.is_file()]
        if not images:
            others = sorted(
                {path.suffix.lower() or path.name for path in visible if path.is_file()}
            )
            found = (
                f"only files of other kinds: {', '.join(others[:NAMED])}"
                if others
                else "only folders"
                if visible
                else "nothing"
            )
            raise DataError(
                f"class folder {own} has no images ({found}): put images straight into it ({', '.join(sorted(SUFFIXES))}), or remove it"
            )
        paths += images
        labels += [label] * len(images)
    return Listing(tuple(paths), tuple(labels), tuple(own.name for own in classes))


def _hold_out(every: Listing, seed: int) -> tuple[Listing, Listing]:
    """Train and test; an image's place in its class's draw is a hash of names, so other images do not change it."""
    by_class: dict[int, list[Path]] = {}
    for path, label in zip(every.paths, every.labels, strict=True):
        by_class.setdefault(label, []).append(path)
    test: set[Path] = set()
    for label, paths in by_class.items():
        name = every.class_names[label]
        if len(paths) < 2:
            raise DataError(
                f"class '{name}' has one image, {paths[0]}, and needs at least 2, one to train and one to test with: "
                f"add images, or remove the class's folder"
            )
        drawn = sorted(
            paths,
            key=lambda path: hashlib.sha256(os.fsencode(f"{seed}/{name}/{path.name}")).digest(),
        )
        test.update(drawn[: max(1, len(paths) // 5)])

    def part(chosen: bool) -> Listing:
        kept = [
            (path, label)
            for path, label in zip(every.paths, every.labels, strict=True)
            if (path in test) == chosen
        ]
        return Listing(
            tuple(path for path, _ in kept), tuple(label for _, label in kept), every.class_names
        )

    return part(False), part(True)


def _refuse_overlap(train: Listing, test: Listing) -> None:
    """No image may be in two classes, nor in train and test. Only files of equal size are compared, by their content."""
    places = [
        (path, listing.class_names[label], part)
        for listing, part in ((train, "train"), (test, "test"))
        for path, label in zip(listing.paths, listing.labels, strict=True)
    ]
    by_size: dict[int, list[tuple[Path, str, str]]] = {}
    for place in places:
        by_size.setdefault(place[0].stat().st_size, []).append(place)
    alike = [place for group in by_size.values() if len(group) > 1 for place in group]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        contents = list(
            pool.map(lambda place: hashlib.sha256(place[0].read_bytes()).digest(), alike)
        )
    first: dict[bytes, tuple[Path, str, str]] = {}
    for place, content in zip(alike, contents, strict=True):
        path, *where = place
        other, *elsewhere = first.setdefault(content, place)
        if where != elsewhere:
            what = "two classes" if where[0] != elsewhere[0] else "train and test"
            raise DataError(
                f"overlapping: {other} and {path} are the same image in {what}: remove one of them"
            )
