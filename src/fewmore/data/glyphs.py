"""glyphs, the built-in benchmark: images of characters, drawn from the fonts that matplotlib's wheel ships.

100 classes, 3×32×32 pixels, nothing to download. Each image is one character in random colours, size, place, slant,
weight, sharpness and noise. Train and test share no font family, so a classifier must have learnt the letter, not
the typeface. The classes are chosen so that none is another one turned or mirrored: images turned by a quarter
can serve as classes of their own, and nothing here is ever flipped.
"""

import hashlib
import math
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, DataError, MissingData, UnknownName

VERSION = 1  # raise it whenever the same seed gives other pixels: it is part of the cache's name
TRAIN = 100  # images a class
TEST = 25
SIDE = 32  # pixels
DETAIL = 2  # drawn this many times larger, then averaged down
EM = 64  # size of type at which a character's outline is kept

# Chosen by how alike two characters can look in any font, turned and mirrored (tests/data/test_glyphs.py measures it), and by eye.
# Within a script, capitals and small letters, common and rare ones are mixed, because the last ones come as new classes.
SCRIPTS = {
    "digits": "2 4 3 7 6",
    "Latin": "K ß J Ö D þ W Æ ŋ V Ž P ʤ U Å ê Š Œ Ř Ł É ﬁ",
    "Greek": "λ ξ α φ τ ϖ ζ Ϛ μ",
    "Cyrillic": "Д ђ Я Җ ы Ї Ѣ Ѭ Щ њ Ґ Й Ю Љ Џ Ѱ",
    "Armenian": "Ֆ խ Ճ Ը թ Պ չ ծ Է Ի զ Հ Շ Ջ Վ Դ",
    "Georgian": "დ ჭ რ უ ლ ც ფ ჩ ქ",
    "signs": "& ♥ ½ £ ♂ ¶ № √ ‽ € ♪ † ™ ≤ ⌂ ¥ ♫ ± ₹ © ♀ ¢ ‰",
}


def _interleave(groups: list[list[str]]) -> tuple[str, ...]:
    """All members, each group spread evenly over the whole: any stretch of it holds every group in proportion."""
    placed = [
        ((i + 0.5) / len(group), member) for group in groups for i, member in enumerate(group)
    ]
    return tuple(member for _, member in sorted(placed, key=lambda one: one[0]))


CLASSES: tuple[str, ...] = _interleave([letters.split() for letters in SCRIPTS.values()])

# No family is in both, though some signs have one form in all of DejaVu. Outside ASCII, Computer Modern's places hold other characters.
FONTS = {
    "train": (
        *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
        *(
            "DejaVuSansMono",
            "DejaVuSansMono-Bold",
            "DejaVuSansMono-Oblique",
            "DejaVuSansMono-BoldOblique",
        ),
    ),
    "test": (
        *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
        *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
        *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
    ),
}


@dataclass(frozen=True)
class Difficulty:
    """How far each distortion may go; every image draws its own strength of each, evenly."""

    turn: float = 12.0  # degrees to either side
    shear: float = 0.2  # sideways lean, as a part of the height
    stretch: float = 0.15  # wider or narrower by at most this part
    smallest: float = 0.5  # the longer side of a character, as a part of the image's side
    largest: float = 0.8
    shift: float = 0.1  # off the centre, as a part of the image's side
    stroke: int = (
        2  # thicker by at most this much on either side of a stroke, in 1/64 of the size of type
    )
    blur: float = 1.0  # standard deviation, in pixels
    contrast: float = 0.5  # brightness between ink and paper at least, where black to white is 1
    noise: float = 0.1  # standard deviation at most, where black to white is 1

    def __post_init__(self) -> None:
        wrong = [
            f"{name} must not be negative, but is {value}"
            for name, value in vars(self).items()
            if value < 0
        ]
        if not 0 < self.smallest <= self.largest:
            wrong.append(
                f"smallest must lie above 0 and not above largest, but they are {self.smallest} and {self.largest}"
            )
        if self.contrast > 0.7:
            wrong.append(
                f"contrast must be at most 0.7, or no two colours are found that have it, but is {self.contrast}"
            )
        if wrong:
            raise ConfigError("; ".join(wrong))


DIFFICULTY = Difficulty()


def draw(
    split: Literal["train", "test"],
    per_class: int,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
    difficulty: Difficulty = DIFFICULTY,
) -> ImageSet:
    """Draw a set, class by class. An image depends on seed, split, character and its number in the class alone."""
    if split not in FONTS:
        raise UnknownName("split of glyphs", split, FONTS)
    _check(seed, per_class=per_class)
    images = np.empty((len(CLASSES), per_class, 3, SIDE, SIDE), np.uint8)
    for label, character in enumerate(CLASSES):
        fonts = fonts_of(split, character)
        for number in range(per_class):
            rng = np.random.default_rng((seed, list(FONTS).index(split), ord(character), number))
            images[label, number] = _image(character, fonts, difficulty, rng)
        if on_progress:
            on_progress((label + 1) * per_class, len(CLASSES) * per_class)
    return _labelled(torch.from_numpy(images).flatten(0, 1))


def load(
    folder: Path,
    train_per_class: int = TRAIN,
    test_per_class: int = TEST,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[ImageSet, ImageSet]:
    """The training and the test set: drawn the first time, afterwards read from a file below `folder`."""
    _check(seed, train_per_class=train_per_class, test_per_class=test_per_class)
    # Strengths are in the name too, so that turning one never meets the images of another.
    strengths = hashlib.sha256(repr(DIFFICULTY).encode()).hexdigest()[:8]
    file = (
        Path(folder)
        / f"glyphs-v{VERSION}-{strengths}-{train_per_class}+{test_per_class}-seed{seed}.safetensors"
    )
    kept = _read(file, train_per_class, test_per_class)
    if kept:
        return kept
    first, both = (len(CLASSES) * n for n in (train_per_class, train_per_class + test_per_class))
    train = draw(
        "train", train_per_class, seed, on_progress and (lambda done, _: on_progress(done, both))
    )
    test = draw(
        "test",
        test_per_class,
        seed,
        on_progress and (lambda done, _: on_progress(first + done, both)),
    )
    _write(file, train, test)
    return train, test


@cache
def fonts_of(split: str, character: str) -> tuple[str, ...]:
    """The fonts of a split that hold a character."""
    return tuple(
        f
        for f in FONTS[split]
        if holds(f, character) and (character.isascii() or not f.startswith("cm"))
    )


def holds(font: str, character: str) -> bool:
    """Whether a font draws a character otherwise than one that no font can hold."""
    undefined, own = (_font(font).getmask(c, mode="L") for c in ("\uffff", character))
    return own.getbbox() is not None and (
        own.size != undefined.size or bytes(own) != bytes(undefined)
    )


@cache
def mask(font: str, character: str, stroke: int = 0) -> Image.Image:
    """A character's ink at the size EM, as grey levels, with a rim of two empty pixels."""
    canvas = Image.new("L", (3 * EM, 3 * EM))
    ImageDraw.Draw(canvas).text(
        (EM, EM // 2), character, fill=255, font=_font(font), stroke_width=stroke
    )
    left, top, right, bottom = canvas.getbbox() or (2, 2, 3, 3)
    return canvas.crop((left - 2, top - 2, right + 2, bottom + 2))


def _image(
    character: str, fonts: tuple[str, ...], difficulty: Difficulty, rng: np.random.Generator
) -> np.ndarray:
    """One image, (3, SIDE, SIDE) uint8."""
    ink = mask(fonts[rng.integers(len(fonts))], character, int(rng.integers(difficulty.stroke + 1)))
    matrix = _affine(ink.size, difficulty, rng)
    placed = ink.transform(
        (SIDE * DETAIL, SIDE * DETAIL), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
    )
    blurred = placed.reduce(DETAIL).filter(
        ImageFilter.GaussianBlur(rng.uniform(0, difficulty.blur))
    )
    coverage = np.asarray(blurred, np.float32) / 255
    ink_colour, paper_colour = _colours(difficulty.contrast, rng)
    image: np.ndarray = paper_colour + (ink_colour - paper_colour) * coverage
    image += rng.uniform(0, difficulty.noise) * rng.standard_normal(image.shape, np.float32)
    image.clip(0, 1, out=image)
    return (image * 255 + 0.5).astype(np.uint8)


def _affine(
    size: tuple[int, int], difficulty: Difficulty, rng: np.random.Generator
) -> tuple[float, ...]:
    """Pillow's six numbers: where in a mask of this size a pixel of the enlarged image comes from."""
    turn = math.radians(rng.uniform(-1, 1) * difficulty.turn)
    shear = rng.uniform(-1, 1) * difficulty.shear
    width = 1 + rng.uniform(-1, 1) * difficulty.stretch
    scale = rng.uniform(difficulty.smallest, difficulty.largest) * SIDE * DETAIL / max(size)
    x, y = (0.5 + rng.uniform(-1, 1, size=2) * difficulty.shift) * SIDE * DETAIL
    cos, sin = math.cos(turn) / scale, math.sin(turn) / scale
    # Lean and width, after turning and scaling back: [[1/width, shear], [0, 1]] · [[cos, sin], [-sin, cos]]
    a, b, c, d = cos / width - shear * sin, sin / width + shear * cos, -sin, cos
    return a, b, size[0] / 2 - a * x - b * y, c, d, size[1] / 2 - c * x - d * y


def _colours(contrast: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Any two colours, (3, 1, 1) each, that differ enough in brightness."""
    while True:
        ink, paper = rng.random((2, 3), np.float32)
        if abs((ink - paper) @ np.array([0.299, 0.587, 0.114], np.float32)) >= contrast:
            return ink[:, None, None], paper[:, None, None]


@cache
def _font(name: str) -> ImageFont.FreeTypeFont:
    matplotlib = find_spec("matplotlib")  # finds the package without importing it
    for place in (matplotlib and matplotlib.submodule_search_locations) or []:
        file = Path(place) / "mpl-data" / "fonts" / "ttf" / f"{name}.ttf"
        if (
            file.is_file()
        ):  # the basic layout is the same whether or not the Raqm library is installed
            return ImageFont.truetype(str(file), EM, layout_engine=ImageFont.Layout.BASIC)
    raise MissingData(
        f"the font {name}.ttf, which comes with matplotlib, is not there, and glyphs are drawn from it: "
        f"pip install --force-reinstall matplotlib"
    )


def _check(seed: int, **counts: int) -> None:
    wrong = [
        f"{name} must be at least 1, not {value}" for name, value in counts.items() if value < 1
    ]
    if seed < 0:
        wrong.append(f"seed must not be negative, but is {seed}")
    if wrong:
        raise ConfigError("; ".join(wrong))


def _labelled(images: Tensor) -> ImageSet:
    """Images that lie class by class, as many of each, with their labels."""
    labels = torch.arange(len(CLASSES)).repeat_interleave(len(images) // len(CLASSES))
    return ImageSet.of(images, labels, CLASSES)


def _read(
    file: Path, train_per_class: int, test_per_class: int
) -> tuple[ImageSet, ImageSet] | None:
    """The two sets that a file keeps, or None where it is missing, damaged or not what it should be."""
    try:
        with safe_open(file, framework="pt") as stored:
            train, test = stored.get_tensor("train"), stored.get_tensor("test")
            checksum = (stored.metadata() or {}).get("crc32")
    except (OSError, SafetensorError):
        return None
    shapes = [(len(CLASSES) * n, 3, SIDE, SIDE) for n in (train_per_class, test_per_class)]
    if [train.shape, test.shape] != shapes or checksum != _checksum(train, test):
        return None
    return _labelled(train), _labelled(test)


def _write(file: Path, train: ImageSet, test: ImageSet) -> None:
    """Keep two sets in a file, in one step, so that no reader ever meets half of it."""
    images = {
        name: one.storage
        for name, one in (("train", train), ("test", test))
        if isinstance(one.storage, Tensor)
    }
    unfinished = file.with_suffix(f".{os.getpid()}.unfinished")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file(images, unfinished, metadata={"crc32": _checksum(*images.values())})
            os.replace(unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"the glyphs were drawn but cannot be kept in {file.parent} ({error}): set FEWMORE_CACHE to a folder that you may write to"
        ) from error


def _checksum(*images: Tensor) -> str:
    checksum = 0
    for one in images:
        checksum = zlib.crc32(one.numpy().data, checksum)
    return f"{checksum:08x}"
