"""Decode one image: a path, the bytes of a file, a Pillow image, a numpy array or a tensor.

Arrays and tensors are (height, width), (height, width, channels) or (channels, height, width),
with 1, 3 or 4 channels: gray, RGB or RGBA. Where both ends could be the channels, an array has
them last and a tensor first. Values are uint8, uint16, bool, whole numbers in 0 … 255, or
floating-point in 0 … 1 or, where one is above 1, in 0 … 255.
"""

import io
import math
import re
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from fewmore.data.folders import from_printable, printable
from fewmore.errors import ImageError

ImageLike = str | Path | bytes | bytearray | Image.Image | np.ndarray | Tensor
Pixels = np.ndarray  # (3, height, width) uint8

CHANNELS = (1, 3, 4)
MAX_STORED_PIXELS = 100_000_000  # in an image after resizing
MAX_JPEG_PIXELS = 500_000_000  # in a JPEG file, which can be decoded at a fraction of its size

_HEIC = re.compile(rb".{4}ftyp(hei[cmsx]|hev[cmsx]|mif1|msf1)", re.DOTALL)  # first bytes of a file
JPEG = b"\xff\xd8"  # first bytes of a file
ZIP = b"PK\x03\x04"  # the same
_EXIF_ORIENTATION = 0x0112
_TRANSPOSE_OF_ORIENTATION = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(
    image: ImageLike,
    name: str | None = None,
    short_side: int | None = None,
    crop: int | None = None,
) -> Tensor:
    """Return an image as uint8 RGB of shape (3, height, width), upright.

    Transparent pixels become white. Of an animation, the first frame is returned.

    Args:
        image: a path, the bytes of a file, a Pillow image, a numpy array or a tensor.
        name: what an error message calls the image; by default its path.
        short_side: resize so that the short side has this length. A large JPEG file is then
            decoded at a fraction of its size.
        crop: keep the center, of this height and width, and not larger than the short side.
    """
    if isinstance(image, str | Path):
        name = name or printable(image)
        image = from_printable(Path(image).expanduser())
        _check_file(image, name)
    name = name or "the image"
    source: Path | bytes | Image.Image
    if isinstance(image, np.ndarray | Tensor):
        source = _pil_from_array(image, name)
    elif isinstance(image, bytearray):
        source = bytes(image)
    elif isinstance(image, Path | bytes | Image.Image):
        source = image
    else:
        raise ImageError(
            f"{name} is of type {type(image).__name__}: give a path, a file's bytes, "
            f"a Pillow image, a numpy array or a tensor"
        )
    with suppress_warnings():
        pixels = try_decode(source, short_side, crop=crop)
    if isinstance(pixels, str):
        raise ImageError(
            f"{name} cannot be read as an image ({pixels}): replace it, or leave it out"
        )
    return torch.from_numpy(pixels)


def _check_file(path: Path, name: str) -> None:
    """Refuse a path that leads to no file."""
    problem = "is not there"
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return
        problem = "is a folder, not an image" if stat.S_ISDIR(mode) else "is a pipe or a device"
    except (FileNotFoundError, NotADirectoryError, ValueError):
        pass
    except OSError as error:  # a folder that may not be entered, or a name that is too long
        raise ImageError(
            f"{name} cannot be read as an image ({error.strerror}): replace it, or leave it out"
        ) from error
    raise ImageError(f"{name} {problem}: give the path of an image file")


def try_decode(
    source: Path | bytes | Image.Image,
    short_side: int | None = None,
    square: int | None = None,
    enlarge: bool = True,
    crop: int | None = None,
) -> Pixels | str:
    """Decode a file, its bytes or a Pillow image into upright RGB; return the reason if it fails.

    Args:
        source: a path, the bytes of a file, or a Pillow image.
        short_side: resize so that the short side has this length.
        square: resize to this height and width.
        enlarge: whether an image whose short side is shorter is resized too.
        crop: keep the center, of this height and width.
    """
    try:
        if isinstance(source, Image.Image):
            return _pixels(source, short_side, square, enlarge, crop)
        if isinstance(source, Path) and not stat.S_ISREG(source.stat().st_mode):
            return "it is no file"  # to open a pipe waits for its other end
        with open(source, "rb") if isinstance(source, Path) else io.BytesIO(source) as stream:
            head = stream.read(12)
            if head.startswith(ZIP):
                return "it is a ZIP archive: unpack it, and give the folder"
            if _HEIC.match(head) and not _register_heic():
                return (
                    "it is a HEIC image, which takes one more package: "
                    "pip install 'fewmore[heic]'; or save it as JPEG"
                )
            stream.seek(0)
            with _open(stream, square or short_side) as file:
                return _pixels(file, short_side, square, enlarge, crop)
    except UnidentifiedImageError:
        return "it is empty, or of no known image format"
    except Image.DecompressionBombError:
        return f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
    except Exception as error:  # damaged bytes make decoders raise errors of many kinds
        system_reason = error.strerror if isinstance(error, OSError) else None
        return system_reason or str(error) or type(error).__name__


def count_pixels(data: bytes, short_side: int) -> int:
    """Return how many pixels decoding a file would hold in memory; 0 if it cannot be decoded."""
    try:
        with suppress_warnings(), io.BytesIO(data) as stream:
            if _HEIC.match(data[:12]):
                _register_heic()
            with _open(stream, short_side) as file:
                decoded = file.width * file.height
                if not file.info.get("progressive"):
                    return decoded
        with Image.open(io.BytesIO(data)) as file:  # all of it, whatever the fraction
            return file.width * file.height
    except Exception:  # `try_decode` says what is wrong with it
        return 0


def _open(stream: IO[bytes], side: int | None) -> Image.Image:
    """Open a file; a large JPEG is decoded at a fraction of its size, at least twice the side.

    Pillow's limit of pixels is for what is decoded, so such a file may have more.
    """
    try:
        file = Image.open(stream)
    except Image.DecompressionBombError:
        stream.seek(0)
        if stream.read(2) != JPEG:
            raise
        stream.seek(0)
        file = JpegImageFile(stream)
        # The decoder of a progressive file holds all of its pixels, whatever the fraction.
        if file.info.get("progressive") or file.width * file.height > MAX_JPEG_PIXELS:
            raise
    if side:
        file.draft(None, (2 * side, 2 * side))
    if file.width * file.height > 2 * (Image.MAX_IMAGE_PIXELS or math.inf):
        raise Image.DecompressionBombError
    return file


def to_uint8(values: np.ndarray) -> np.ndarray:
    """Convert brightness values to uint8: scale uint16, bool, and floating-point in 0 … 1.

    Other whole numbers, and floating-point ones of which one is above 1, are in 0 … 255 already.
    """
    if values.dtype == np.uint8:
        return values
    if values.dtype == bool:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype == np.uint16:
        return (values // 257).astype(np.uint8)
    is_whole = np.issubdtype(values.dtype, np.integer)
    if not is_whole and not np.issubdtype(values.dtype, np.floating):
        raise ValueError(
            f"its numbers are of type {values.dtype}, and must be whole, bool or floating-point"
        )
    low = float(values.min())
    high = float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("some of its numbers are infinite or not numbers")
    if low < 0 or high > 255:
        raise ValueError(
            f"its numbers go from {low:.4g} to {high:.4g}, and must lie in 0 … 255 or 0 … 1"
        )
    scale = 1 if is_whole or high > 1 else 255
    return (values.astype(np.float32) * scale).round().astype(np.uint8)


_suppression_lock = threading.Lock()
_suppression_users = 0  # the first one starts the suppression, the last one ends it
_suppression = ExitStack()


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings of odd but readable files.

    Warning filters belong to the whole process, so threads that decode at the same time share
    one suppression.
    """
    global _suppression_users
    with _suppression_lock:
        _suppression_users += 1
        if _suppression_users == 1:
            _suppression.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
    try:
        yield
    finally:
        with _suppression_lock:
            _suppression_users -= 1
            if not _suppression_users:
                _suppression.close()


@cache
def _register_heic() -> bool:
    """Let Pillow read HEIC files; return False if the optional package is not installed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def _pixels(
    image: Image.Image,
    short_side: int | None,
    square: int | None,
    enlarge: bool,
    crop: int | None,
) -> Pixels:
    if 0 in image.size:
        raise ValueError(f"it is {image.width} pixels wide and {image.height} high")
    image.load()  # of an animation, the first frame, or the one that the caller sought
    upright = _apply_exif_orientation(image, _to_rgb(image))
    if not enlarge and short_side:
        short_side = min(short_side, *upright.size)
    upright = _resize(upright, short_side, square)
    pixels = np.asarray(upright)
    if crop:
        top = (pixels.shape[0] - crop) // 2
        left = (pixels.shape[1] - crop) // 2
        pixels = pixels[top : top + crop, left : left + crop]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert to 8-bit RGB, with white where the image is transparent."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F":
        return Image.fromarray(to_uint8(np.asarray(image))).convert("RGB")
    if image.mode.startswith("I"):
        # 16-bit gray: Pillow's own conversion would clip it to the darkest 256 levels.
        gray = np.asarray(image)
        if gray.min() < 0 or gray.max() > 65535:
            raise ValueError(f"its grays go from {gray.min():,} to {gray.max():,}, beyond 16 bits")
        return Image.fromarray(to_uint8(gray.astype(np.uint16, copy=False))).convert("RGB")
    if image.has_transparency_data:
        background = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(background, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _apply_exif_orientation(file: Image.Image, image: Image.Image) -> Image.Image:
    """Rotate and mirror `image` as the EXIF entry of `file` says."""
    try:
        orientation = file.getexif().get(_EXIF_ORIENTATION)
    except Exception:  # a damaged EXIF block does not make the image unusable
        return image
    if orientation not in _TRANSPOSE_OF_ORIENTATION:
        return image
    return image.transpose(_TRANSPOSE_OF_ORIENTATION[orientation])


def _resize(image: Image.Image, short_side: int | None, square: int | None) -> Image.Image:
    width, height = image.size
    if square:
        width = height = square
    elif short_side:
        shorter = min(image.size)
        width = max(1, round(width * short_side / shorter))
        height = max(1, round(height * short_side / shorter))
    if width * height > MAX_STORED_PIXELS:
        raise ValueError(
            f"it would be stored as {width} × {height} pixels, more than {MAX_STORED_PIXELS:,}"
        )
    if (width, height) == image.size:
        return image
    return image.resize((width, height), Image.Resampling.BILINEAR)


def _pil_from_array(image: np.ndarray | Tensor, name: str) -> Image.Image:
    """Convert an array or a tensor to an 8-bit Pillow image."""
    channels_first = isinstance(image, Tensor)
    shape = tuple(image.shape)
    if len(shape) == 4:
        raise ImageError(
            f"{name} has the shape {shape}, and is a batch: give its images one by one"
        )
    if len(shape) not in (2, 3):
        raise ImageError(f"{name} has the shape {shape}, and must have two or three dimensions")
    if 0 in shape:
        raise ImageError(
            f"{name} has the shape {shape}, and so no pixels: replace it, or leave it out"
        )
    if isinstance(image, Tensor):
        image = image.detach().cpu()
        # numpy has no bfloat16.
        image = (image.float() if image.is_floating_point() else image).numpy()
    if image.ndim == 3:
        candidates = (0, 2) if channels_first else (2, 0)
        axes = [axis for axis in candidates if shape[axis] in CHANNELS]
        if not axes:
            raise ImageError(
                f"{name} has the shape {shape}, and an image has 1, 3 or 4 channels: "
                f"give (height, width), (height, width, channels) or (channels, height, width)"
            )
        image = np.moveaxis(image, axes[0], 2)
        image = image[:, :, 0] if image.shape[2] == 1 else image
    try:
        return Image.fromarray(np.ascontiguousarray(to_uint8(image)))
    except ValueError as error:
        raise ImageError(f"{name} cannot be used as an image ({error}): convert it first") from None
