"""One image, in whatever form it comes: a path, a file's content, a Pillow image, a numpy array or a tensor.

Arrays and tensors are (height, width), (height, width, channels) or (channels, height, width), with 1, 3 or 4 channels: grey,
red, green and blue, and these with opacity. Where both ends could be the channels, an array has them last, a tensor first.
Numbers are uint8, uint16, bool, or floating-point in 0 … 1.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fewmore.data.files import attempt, eight_bits, quiet
from fewmore.errors import ImageError

ImageLike = str | Path | bytes | Image.Image | np.ndarray | Tensor

CHANNELS = (1, 3, 4)


def as_rgb(image: ImageLike, name: str | None = None, short_side: int | None = None) -> Tensor:
    """The image as uint8 (3, height, width): upright, in RGB, over white where it is transparent, the first frame if it moves.

    `name` is what an error calls it where it has no path. `short_side` shrinks or enlarges it, so that its short side has this length;
    a large JPEG file is then decoded at a fraction of its size.
    """
    if isinstance(image, str | Path):
        name, image = name or str(image), Path(image).expanduser()
        if not image.is_file():
            what = "is a folder, not an image" if image.is_dir() else "is not there"
            raise ImageError(f"{name} {what}: give the path of an image file")
    name = name or "the image"
    source: Path | bytes | Image.Image
    if isinstance(image, np.ndarray | Tensor):
        source = _image(image, name)
    elif isinstance(image, Path | bytes | Image.Image):
        source = image
    else:
        raise ImageError(
            f"{name} is of type {type(image).__name__}: give a path, a file's bytes, a Pillow image, a numpy array or a tensor"
        )
    with quiet():
        pixels = attempt(source, short_side)
    if isinstance(pixels, str):
        raise ImageError(
            f"{name} cannot be read as an image ({pixels}): replace it, or leave it out"
        )
    return torch.from_numpy(pixels)


def _image(given: np.ndarray | Tensor, name: str) -> Image.Image:
    """An array or a tensor as a Pillow image of eight bits."""
    first = isinstance(given, Tensor)
    shape = tuple(given.shape)
    if len(shape) not in (2, 3):
        what = (
            "is a batch: give its images one by one"
            if len(shape) == 4
            else "must have two or three dimensions"
        )
        raise ImageError(f"{name} has the shape {shape}, and {what}")
    if 0 in shape:
        raise ImageError(
            f"{name} has the shape {shape}, and so no pixels: replace it, or leave it out"
        )
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = (
            given.float() if given.is_floating_point() else given
        ).numpy()  # numpy has no bfloat16
    if given.ndim == 3:
        axes = [axis for axis in ((0, 2) if first else (2, 0)) if shape[axis] in CHANNELS]
        if not axes:
            raise ImageError(
                f"{name} has the shape {shape}, and an image has 1, 3 or 4 channels: "
                f"give (height, width), (height, width, channels) or (channels, height, width)"
            )
        given = np.moveaxis(given, axes[0], 2)
        given = given[:, :, 0] if given.shape[2] == 1 else given
    try:
        return Image.fromarray(np.ascontiguousarray(eight_bits(given)))
    except ValueError as error:
        raise ImageError(f"{name} cannot be used as an image ({error}): convert it first") from None
