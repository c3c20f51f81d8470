"""Render glyphs, the built-in benchmark: characters from the fonts of matplotlib's wheel.

100 classes, 3 × 24 × 24 pixels, nothing to download. Each image is one character in a random font,
dark on light in random colors, of random size, place, slant, weight, sharpness and noise; train and
test images are sampled alike. No class is a rotation or a mirror image of another one: images
rotated by 90 degrees can serve as classes of their own, and nothing here is ever flipped.

Methods are developed on this benchmark, so it is made to be stable: with other fonts in the test,
or with light characters among the dark ones, results of the recipe `quick` differ between seeds by
several points (docs/log.md).
"""

import hashlib
import math
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
from safetensors.torch import save
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, DataError, MissingData, UnknownName
from fewmore.io import write_bytes

VERSION = 2  # part of the cache key: raise it whenever the same seed gives other pixels
TRAIN_PER_CLASS = 200
TEST_PER_CLASS = 50
SIDE = 24  # pixels
SUPERSAMPLING = 2  # images are rendered this many times larger, then averaged down
FONT_SIZE = 64  # at which a character's mask is rendered

Progress = Callable[[int, int], None]  # images done, images in total

# Characters that look different in every font, also when rotated or mirrored: measured in
# tests/data/test_glyphs.py, and checked by eye. Within a script, capitals and small letters,
# common and rare ones are mixed, because the last ones become new classes.
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
    """Merge groups so that any stretch of the result holds every group in proportion."""
    placed = [
        ((i + 0.5) / len(group), member) for group in groups for i, member in enumerate(group)
    ]
    return tuple(member for _, member in sorted(placed, key=lambda pair: pair[0]))


CLASSES: tuple[str, ...] = _interleave([letters.split() for letters in SCRIPTS.values()])

FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold"),
    *("DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
)
OWN_FONTS = Path(__file__).parent / "fonts"  # cmti10, which matplotlib has from 3.11 on
SPLITS = ("train", "test")  # an image's randomness depends on its split


@dataclass(frozen=True)
class Difficulty:
    """Hold the largest strength of each distortion; every image samples its own, uniformly."""

    rotation: float = 12.0  # degrees to either side
    shear: float = 0.2  # horizontal, as a fraction of the height
    stretch: float = 0.15  # wider or narrower by at most this fraction
    smallest: float = 0.5  # the longer side of a character, as a fraction of the image's side
    largest: float = 0.8
    shift: float = 0.1  # off the center, as a fraction of the image's side
    stroke: int = 2  # added to either side of a stroke, in 1/64 of the font size
    blur: float = 1.0  # standard deviation, in pixels
    contrast: float = 0.5  # smallest difference in brightness, where black to white is 1
    noise: float = 0.1  # largest standard deviation, where black to white is 1

    def __post_init__(self) -> None:
        problems = [
            f"{name} must not be negative, but is {value}"
            for name, value in vars(self).items()
            if value < 0
        ]
        if not 0 < self.smallest <= self.largest:
            problems.append(
                f"smallest must lie above 0 and not above largest, "
                f"but they are {self.smallest} and {self.largest}"
            )
        if self.contrast > 0.7:
            problems.append(
                f"contrast must be at most 0.7, or no two colors are found that have it, "
                f"but is {self.contrast}"
            )
        if problems:
            raise ConfigError("; ".join(problems))


DIFFICULTY = Difficulty()


def render(
    split: Literal["train", "test"],
    per_class: int,
    seed: int = 0,
    on_progress: Progress | None = None,
    difficulty: Difficulty = DIFFICULTY,
) -> ImageSet:
    """Render a set, class by class.

    An image depends on seed, split, character and its number in the class alone.
    """
    if split not in SPLITS:
        raise UnknownName("split of glyphs", split, SPLITS)
    _check(seed, per_class=per_class)
    images = np.empty((len(CLASSES), per_class, 3, SIDE, SIDE), np.uint8)
    for label, character in enumerate(CLASSES):
        for number in range(per_class):
            rng = np.random.default_rng((seed, SPLITS.index(split), ord(character), number))
            images[label, number] = render_image(character, difficulty, rng)
        if on_progress:
            on_progress((label + 1) * per_class, len(CLASSES) * per_class)
    return _add_labels(torch.from_numpy(images).flatten(0, 1))


def load(
    folder: Path,
    train_per_class: int = TRAIN_PER_CLASS,
    test_per_class: int = TEST_PER_CLASS,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> tuple[ImageSet, ImageSet]:
    """Load the training and the test set from a file below `folder`, rendered the first time."""
    _check(seed, train_per_class=train_per_class, test_per_class=test_per_class)
    # The difficulty is part of the key: a change of it must not read images of another one.
    difficulty = hashlib.sha256(repr(DIFFICULTY).encode()).hexdigest()[:8]
    counts = f"{train_per_class}+{test_per_class}"
    file = Path(folder) / f"glyphs-v{VERSION}-{difficulty}-{counts}-seed{seed}.safetensors"
    cached = _read(file, train_per_class, test_per_class)
    if cached:
        return cached
    train_images = len(CLASSES) * train_per_class
    total = train_images + len(CLASSES) * test_per_class

    def progress_from(start: int) -> Progress | None:
        return on_progress and (lambda done, _: on_progress(start + done, total))

    train = render("train", train_per_class, seed, progress_from(0))
    test = render("test", test_per_class, seed, progress_from(train_images))
    _write(file, train, test)
    return train, test


@cache
def fonts_of(character: str) -> tuple[str, ...]:
    """Return the fonts that hold a character.

    Outside ASCII, the code points of Computer Modern hold other characters.
    """
    return tuple(
        font
        for font in FONTS
        if has_glyph(font, character) and (character.isascii() or not font.startswith("cm"))
    )


def has_glyph(font: str, character: str) -> bool:
    """Return True where a font renders a character otherwise than an undefined one."""
    undefined, glyph = (_font(font).getmask(c, mode="L") for c in ("\uffff", character))
    return glyph.getbbox() is not None and (
        glyph.size != undefined.size or bytes(glyph) != bytes(undefined)
    )


@cache
def mask(font: str, character: str, stroke: int = 0) -> Image.Image:
    """Render a character in gray levels, with a border of two empty pixels."""
    canvas = Image.new("L", (3 * FONT_SIZE, 3 * FONT_SIZE))
    ImageDraw.Draw(canvas).text(
        (FONT_SIZE, FONT_SIZE // 2), character, fill=255, font=_font(font), stroke_width=stroke
    )
    left, top, right, bottom = canvas.getbbox() or (2, 2, 3, 3)
    return canvas.crop((left - 2, top - 2, right + 2, bottom + 2))


def render_image(character: str, difficulty: Difficulty, rng: np.random.Generator) -> np.ndarray:
    """Render one image of any character that a font has, (3, SIDE, SIDE) uint8."""
    fonts = fonts_of(character)
    font = fonts[rng.integers(len(fonts))]
    glyph = mask(font, character, int(rng.integers(difficulty.stroke + 1)))
    matrix = _sample_affine(glyph.size, difficulty, rng)
    side = SIDE * SUPERSAMPLING
    placed = glyph.transform(
        (side, side), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
    )
    blur = ImageFilter.GaussianBlur(rng.uniform(0, difficulty.blur))
    coverage = np.asarray(placed.reduce(SUPERSAMPLING).filter(blur), np.float32) / 255
    foreground, background = _sample_colors(difficulty.contrast, rng)
    image: np.ndarray = background + (foreground - background) * coverage
    image += rng.uniform(0, difficulty.noise) * rng.standard_normal(image.shape, np.float32)
    image.clip(0, 1, out=image)
    return (image * 255 + 0.5).astype(np.uint8)


def _sample_affine(
    size: tuple[int, int], difficulty: Difficulty, rng: np.random.Generator
) -> tuple[float, ...]:
    """Sample the six numbers that map a pixel of the enlarged image to a mask of this size."""
    angle = math.radians(rng.uniform(-1, 1) * difficulty.rotation)
    shear = rng.uniform(-1, 1) * difficulty.shear
    width = 1 + rng.uniform(-1, 1) * difficulty.stretch
    scale = rng.uniform(difficulty.smallest, difficulty.largest) * SIDE * SUPERSAMPLING / max(size)
    x, y = (0.5 + rng.uniform(-1, 1, size=2) * difficulty.shift) * SIDE * SUPERSAMPLING
    cos = math.cos(angle) / scale
    sin = math.sin(angle) / scale
    # Shear and width, after rotating and scaling back:
    # [[1/width, shear], [0, 1]] · [[cos, sin], [-sin, cos]]
    a = cos / width - shear * sin
    b = sin / width + shear * cos
    c = -sin
    d = cos
    return a, b, size[0] / 2 - a * x - b * y, c, d, size[1] / 2 - c * x - d * y


def _sample_colors(contrast: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sample a dark and a light color, (3, 1, 1) each, that differ enough in brightness."""
    luma = np.array([0.299, 0.587, 0.114], np.float32)
    while True:
        dark, light = sorted(rng.random((2, 3), np.float32), key=lambda color: float(color @ luma))
        if (light - dark) @ luma >= contrast:
            return dark[:, None, None], light[:, None, None]


@cache
def _font(name: str) -> ImageFont.FreeTypeFont:
    matplotlib = find_spec("matplotlib")  # finds the package without importing it
    places = (matplotlib and matplotlib.submodule_search_locations) or []
    folders = [Path(place) / "mpl-data" / "fonts" / "ttf" for place in places]
    for folder in (*folders, OWN_FONTS):
        file = folder / f"{name}.ttf"
        if file.is_file():
            # The basic layout is the same whether or not the Raqm library is installed.
            return ImageFont.truetype(str(file), FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
    raise MissingData(
        f"the font {name}.ttf, which comes with matplotlib, is not there, "
        f"and glyphs are rendered from it: pip install --force-reinstall matplotlib"
    )


def _check(seed: int, **counts: int) -> None:
    problems = [
        f"{name} must be at least 1, not {value}" for name, value in counts.items() if value < 1
    ]
    if seed < 0:
        problems.append(f"seed must not be negative, but is {seed}")
    if problems:
        raise ConfigError("; ".join(problems))


def _add_labels(images: Tensor) -> ImageSet:
    """Label images that lie class by class, equally many of each."""
    labels = torch.arange(len(CLASSES)).repeat_interleave(len(images) // len(CLASSES))
    return ImageSet.from_images(images, labels, CLASSES)


def _read(
    file: Path, train_per_class: int, test_per_class: int
) -> tuple[ImageSet, ImageSet] | None:
    """Read both sets from a file, or return None where it is missing, damaged or another one."""
    try:
        with safe_open(file, framework="pt") as stored:
            train = stored.get_tensor("train")
            test = stored.get_tensor("test")
            checksum = (stored.metadata() or {}).get("crc32")
    except (OSError, SafetensorError):
        return None
    shapes = [(len(CLASSES) * n, 3, SIDE, SIDE) for n in (train_per_class, test_per_class)]
    if [train.shape, test.shape] != shapes or checksum != _checksum(train, test):
        return None
    return _add_labels(train), _add_labels(test)


def _write(file: Path, train: ImageSet, test: ImageSet) -> None:
    """Write both sets to a file, atomically."""
    images = {
        name: part.storage
        for name, part in (("train", train), ("test", test))
        if isinstance(part.storage, Tensor)
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, save(images, metadata={"crc32": _checksum(*images.values())}))
    except OSError as error:
        raise DataError(
            f"the glyphs were rendered but cannot be written to {file.parent} ({error}): "
            f"set FEWMORE_CACHE to a folder that you may write to"
        ) from error


def _checksum(*images: Tensor) -> str:
    checksum = 0
    for tensor in images:
        checksum = zlib.crc32(tensor.numpy().data, checksum)
    return f"{checksum:08x}"
