"""Check that glyphs can be reported apart, that images are distorted as set, and the cache."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from fewmore.data import glyphs
from fewmore.data.glyphs import CLASSES, SCRIPTS, SIDE, SPLITS, Difficulty, fonts_of, load, render
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, DataError, MissingData, UnknownName

# The classes

UPRIGHT = (
    *("DejaVuSans", "DejaVuSansMono", "STIXGeneral", "DejaVuSerif"),
    *("cmr10", "cmss10", "cmtt10"),
)
BOX = 24  # a character is resized to fit a box of this side
BORDER = 4  # around the box
LOOK_ALIKE = 0.85  # similarity at which two characters look alike
SYMMETRIC = 0.9  # similarity of a character to its rotation at which it looks the same


def framed(font: str, character: str, keep: float) -> Image.Image:
    """Resize a character to a box.

    With keep = 0 it fills the box; with 0.5 it is half-way between that and its own shape.
    """
    ink = glyphs.mask(font, character)
    ink = ink.crop(ink.getbbox())
    width, height = (round(BOX * (side / max(ink.size)) ** keep) for side in ink.size)
    frame = Image.new("L", (BOX + 2 * BORDER, BOX + 2 * BORDER))
    frame.paste(
        ink.resize((width, height), Image.Resampling.LANCZOS),
        ((frame.width - width) // 2, (frame.height - height) // 2),
    )
    return frame


def rotated_and_mirrored(images: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the four rotations of each image, then those of its mirror image, flattened."""
    for batch in (images, images[:, :, ::-1]):
        for k in range(4):
            yield np.rot90(batch, k, (1, 2)).reshape(len(batch), -1)


def similarity(characters: str) -> np.ndarray:
    """Return the similarity of each two characters: (8 symmetries, character, character).

    It is the correlation of the slightly blurred images, times the fraction of either's ink that
    has ink of the other nearby, in the font where this is largest.
    """
    best = np.zeros((8, len(characters), len(characters)))
    for font in UPRIGHT:
        held = [i for i, c in enumerate(characters) if font in fonts_of(c)]
        for keep in (0, 0.5) if held else ():
            frames = [framed(font, characters[i], keep) for i in held]
            ink = np.stack([np.asarray(frame, np.float32) / 255 for frame in frames])
            near = np.max(
                [
                    np.roll(ink, (y, x), (1, 2))
                    for y in range(-2, 3)
                    for x in range(-2, 3)
                    if x * x + y * y <= 5
                ],
                0,
            )
            ink /= ink.sum((1, 2), keepdims=True)
            soft = np.stack(
                [
                    np.asarray(frame.filter(ImageFilter.GaussianBlur(1.4)), np.float32)
                    for frame in frames
                ]
            )
            soft -= soft.mean((1, 2), keepdims=True)
            soft /= np.linalg.norm(soft, axis=(1, 2), keepdims=True)
            first = [x.reshape(len(held), -1) for x in (ink, near, soft)]
            for symmetry, second in enumerate(
                zip(*map(rotated_and_mirrored, (ink, near, soft)), strict=True)
            ):
                own_covered, other_covered = first[0] @ second[1].T, first[1] @ second[0].T
                alike = np.minimum(own_covered, other_covered) * (first[2] @ second[2].T)
                best[symmetry][np.ix_(held, held)] = np.maximum(
                    best[symmetry][np.ix_(held, held)], alike
                )
    return best


def test_no_class_is_another_one_rotated_or_mirrored() -> None:
    alike = similarity("".join(CLASSES)).max(0)
    np.fill_diagonal(alike, 0)
    a, b = np.unravel_index(alike.argmax(), alike.shape)
    assert alike[a, b] < LOOK_ALIKE, f"{CLASSES[a]} and {CLASSES[b]} look alike: {alike[a, b]:.3f}"


@pytest.mark.parametrize(
    "pair",
    [
        "O0",
        "OО",
        "AΑ",
        "69",
        "nu",
        "bd",
        "pq",
        "ZN",
        "MW",
        "EШ",
        "3З",
        "mш",
        "VΛ",
        "LΓ",
        "RЯ",
        "cC",
        "sS",
        "xX",
        "B8",
    ],
)
def test_known_look_alikes_would_be_caught(pair: str) -> None:
    assert similarity(pair)[:, 0, 1].max() >= LOOK_ALIKE


def test_no_class_looks_the_same_when_rotated() -> None:
    rotated = similarity("".join(CLASSES))[1:4].max(0).diagonal()
    assert rotated.max() < SYMMETRIC, (
        f"{CLASSES[rotated.argmax()]} looks the same when rotated: {rotated.max():.3f}"
    )
    assert similarity("OHINSXZ08o")[1:4].max(0).diagonal().min() >= SYMMETRIC


def test_there_are_100_classes_and_the_first_60_are_a_fair_sample_of_the_scripts() -> None:
    assert len(CLASSES) == len(set(CLASSES)) == 100
    assert all(len(c) == 1 for c in CLASSES)
    for letters in (text.split() for text in SCRIPTS.values()):
        assert abs(sum(c in letters for c in CLASSES[:60]) - 0.6 * len(letters)) <= 1
        for session in range(60, 100, 5):
            assert sum(c in letters for c in CLASSES[session : session + 5]) <= 2


@pytest.mark.parametrize("character", CLASSES)
def test_every_class_is_in_enough_fonts(character: str) -> None:
    fonts = fonts_of(character)
    assert len(fonts) >= 8
    for font in fonts:
        undefined = [glyphs.mask(font, c) for c in ("\u0378", "\uffff", "\U0010ffff")]
        assert all(glyphs.mask(font, character).tobytes() != other.tobytes() for other in undefined)


def test_a_missing_character_is_noticed() -> None:
    assert glyphs.has_glyph("DejaVuSans", "Ֆ")
    assert not glyphs.has_glyph("STIXGeneral", "Ֆ")
    assert not glyphs.has_glyph("cmr10", "Д")
    assert not glyphs.has_glyph("DejaVuSans", "\u0378")
    assert not glyphs.has_glyph("DejaVuSans", " ")
    assert glyphs.has_glyph("cmr10", "£"), "Computer Modern has something there"
    assert "cmr10" not in fonts_of("£"), "but it is a Theta"


# The images

CLEAN = Difficulty(
    rotation=0,
    shear=0,
    stretch=0,
    smallest=0.8,
    largest=0.8,
    shift=0,
    stroke=0,
    blur=0,
    noise=0,
)


def pixels(images: ImageSet) -> np.ndarray:
    """Return the pixels as (class, number, 3, side, side)."""
    assert isinstance(images.storage, torch.Tensor)
    return images.storage.numpy().reshape(len(images.class_names), -1, 3, SIDE, SIDE)


def ink(images: np.ndarray) -> np.ndarray:
    """Return how far each pixel is from the color of the border: (..., side, side)."""
    images = images.astype(np.float32)
    border = np.concatenate(
        [images[..., 0, :], images[..., -1, :], images[..., :, 0], images[..., :, -1]], -1
    )
    return np.abs(images - np.median(border, -1)[..., None, None]).sum(-3)


@pytest.fixture(scope="module")
def train() -> ImageSet:
    return render("train", 8)


def test_a_set_is_class_by_class(train: ImageSet) -> None:
    assert train.class_names == CLASSES
    assert train.size == (SIDE, SIDE) == (24, 24)
    assert train.class_counts().tolist() == [8] * 100
    assert train.labels.tolist() == sorted(train.labels.tolist())
    assert len({one.tobytes() for one in pixels(train).reshape(-1, 3 * SIDE * SIDE)}) == len(train)


def test_the_same_seed_gives_the_same_pixels_and_more_images_begin_with_the_fewer(
    train: ImageSet,
) -> None:
    fewer = pixels(render("train", 2))
    assert (fewer == pixels(train)[:, :2]).all()
    assert (fewer != pixels(render("train", 2, seed=1))).mean() > 0.9
    assert (fewer != pixels(render("test", 2))).mean() > 0.9


def test_a_class_does_not_depend_on_the_others(
    train: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glyphs, "CLASSES", ("Я", "2"))
    alone = render("train", 3)
    assert alone.class_names == ("Я", "2")
    for label, character in enumerate(alone.class_names):
        for number in range(3):
            assert torch.equal(
                alone.image(3 * label + number), train.image(8 * CLASSES.index(character) + number)
            )


def test_images_stay_the_same_from_version_to_version() -> None:
    """Check pixels of this version: a change must raise VERSION, or caches keep the old ones.

    Pillow may differ in the last bits.
    """
    images = pixels(
        render(
            "train",
            1,
            seed=5,
            difficulty=replace(CLEAN, rotation=12, stroke=2, blur=1, contrast=0.3, noise=0.1),
        )
    )
    assert glyphs.VERSION == 2
    means = [float(images[CLASSES.index(c)].mean()) for c in "K&Дდ"]
    assert means == pytest.approx([163.4, 202.1, 143.6, 87.8], abs=0.5)


def test_images_stand_upright(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the mean of a class resembles the clean character more than a rotated one."""
    monkeypatch.setattr(glyphs, "CLASSES", tuple("2467JKPßÆ£€&Яђ"))
    leaning = replace(CLEAN, rotation=12, shear=0.2, stretch=0.2, shift=0.02, blur=1, noise=0.1)
    for split in SPLITS:
        clean, distorted = (
            ink(pixels(render(split, 40, difficulty=d))).mean(1) for d in (CLEAN, leaning)
        )
        clean -= clean.mean((1, 2), keepdims=True)
        fits = [
            (distorted.reshape(len(distorted), -1) * other).sum(1)
            for other in rotated_and_mirrored(clean)
        ]
        assert not np.argmax(fits, 0).any()


@pytest.mark.parametrize("contrast", [0.2, 0.6])
def test_foreground_and_background_differ_enough(contrast: float) -> None:
    images = pixels(render("train", 2, difficulty=replace(CLEAN, contrast=contrast))) / 255
    brightness = np.einsum("c,nkchw->nkhw", [0.299, 0.587, 0.114], images)
    differences = brightness.max((2, 3)) - brightness.min((2, 3))
    assert differences.min() > 0.7 * contrast, (
        "where even a thin stroke does not fill a pixel, it is a little less"
    )
    assert images[..., 0, 0].std((0, 1)).min() > 0.05, "backgrounds are of many colors"
    border = brightness[..., 0, :].mean(2)
    assert (border > brightness.mean((2, 3))).all(), "characters are darker than what is around"


def strength(measure: str, **changed: float) -> float:
    """Measure images, on average, with only the named distortions."""
    images = pixels(render("train", 2, difficulty=replace(CLEAN, contrast=0.5, **changed)))
    shown = ink(images)
    shown /= shown.max((2, 3), keepdims=True)
    dark = shown > 0.5
    if measure == "width":
        return float(dark.any(2).sum(2).mean())
    if measure == "ink":
        return float(dark.mean())
    if measure == "off center":
        columns = np.arange(SIDE) - (SIDE - 1) / 2
        return float(np.abs((dark.any(2) * columns).sum(2) / dark.any(2).sum(2)).mean())
    if measure == "sharpness":
        return float(np.abs(np.diff(shown)).max((2, 3)).mean())
    if measure == "grain":
        return float(images[..., :3].std((3, 4)).mean() / 255)
    clean = ink(pixels(render("train", 2, difficulty=replace(CLEAN, contrast=0.5))))
    return float(
        np.corrcoef(shown.ravel(), (clean / clean.max((2, 3), keepdims=True)).ravel())[0, 1]
    )


def test_each_distortion_does_what_it_says() -> None:
    assert strength("width", smallest=0.4, largest=0.4) == pytest.approx(
        strength("width") / 2, rel=0.1
    )
    assert strength("ink", stroke=3) > 1.2 * strength("ink")
    assert strength("off center", shift=0.2) > strength("off center") + 1
    assert strength("sharpness", blur=2) < 0.8 * strength("sharpness")
    assert strength("grain", noise=0.2) == pytest.approx(0.1, abs=0.02)
    assert strength("grain") < 0.001
    for changed in ({"rotation": 30}, {"shear": 0.5}, {"stretch": 0.5}):
        assert 0.3 < strength("form", **changed) < 0.95 < strength("form")


def test_progress_is_reported() -> None:
    reported: list[tuple[int, int]] = []
    render("test", 1, on_progress=lambda done, total: reported.append((done, total)))
    assert reported[-1] == (100, 100)
    assert reported == sorted(reported)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean train"):
        render("trian", 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="per_class must be at least 1, not 0"):
        render("train", 0)
    with pytest.raises(ConfigError, match="seed must not be negative, but is -1"):
        render("train", 1, seed=-1)
    with pytest.raises(
        ConfigError, match=r"noise must not be negative, but is -1.*contrast must be at most 0\.7"
    ):
        Difficulty(noise=-1, contrast=0.9)
    with pytest.raises(ConfigError, match="smallest must lie above 0"):
        Difficulty(smallest=0.9, largest=0.5)


def test_missing_fonts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "find_spec", lambda name: None)
    glyphs._font.cache_clear()
    with pytest.raises(MissingData, match=r"DejaVuSans\.ttf.*pip install"):
        glyphs.has_glyph("DejaVuSans", "K")
    glyphs._font.cache_clear()


def test_a_font_that_older_versions_of_matplotlib_lack_comes_with_fewmore(
    monkeypatch: pytest.MonkeyPatch,
):
    """Compare with that of matplotlib, where it has it: the pixels must be the same."""
    own = glyphs.OWN_FONTS / "cmti10.ttf"
    assert glyphs.OWN_FONTS.joinpath("LICENSE.txt").read_text().startswith("BaKoMa Fonts Licence")
    theirs = Path(glyphs._font.__wrapped__("cmti10").path)
    assert theirs.read_bytes() == own.read_bytes()
    monkeypatch.setattr(glyphs, "find_spec", lambda name: None)
    assert Path(glyphs._font.__wrapped__("cmti10").path) == own


def test_matplotlib_is_not_imported() -> None:
    code = (
        "import sys; from fewmore.data import glyphs; glyphs.fonts_of('K'); "
        "sys.exit('matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The cache


def same(a: tuple[ImageSet, ImageSet], b: tuple[ImageSet, ImageSet]) -> bool:
    return all(
        np.array_equal(pixels(x), pixels(y)) and torch.equal(x.labels, y.labels)
        for x, y in zip(a, b, strict=True)
    )


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[ImageSet, ImageSet]]:
    """Return a cache file, and what was rendered for it."""
    folder = tmp_path_factory.mktemp("cache") / "not" / "there yet"
    reported: list[tuple[int, int]] = []
    sets = load(
        folder, 2, 1, seed=3, on_progress=lambda done, total: reported.append((done, total))
    )
    assert reported[-1] == (300, 300)
    assert reported == sorted(reported)
    (file,) = folder.iterdir()
    return file, sets


def test_sets_are_rendered_once(
    rendered: tuple[Path, tuple[ImageSet, ImageSet]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, sets = rendered
    assert same(sets, (render("train", 2, seed=3), render("test", 1, seed=3)))
    monkeypatch.setattr(glyphs, "render", lambda *_: pytest.fail("rendered again"))
    assert same(load(file.parent, 2, 1, seed=3), sets)


def test_other_counts_seeds_versions_and_difficulties_have_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glyphs, "CLASSES", ("K", "2"))
    load(tmp_path, 2, 1)
    load(tmp_path, 1, 2)
    load(tmp_path, 2, 1, seed=1)
    monkeypatch.setattr(glyphs, "VERSION", 1000)
    load(tmp_path, 2, 1)
    monkeypatch.setattr(glyphs, "DIFFICULTY", CLEAN)
    load(tmp_path, 2, 1)
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "one bit", "another set"])
def test_a_broken_file_is_rendered_again(
    rendered: tuple[Path, tuple[ImageSet, ImageSet]], damage: str, tmp_path: Path
) -> None:
    whole, sets = rendered
    file = tmp_path / whole.name
    content = bytearray(whole.read_bytes())
    if damage == "one bit":
        content[-1000] ^= 1
    elif damage == "another set":
        load(tmp_path / "other", 1, 1, seed=3)
        content = bytearray(next((tmp_path / "other").iterdir()).read_bytes())
    file.write_bytes(
        {"empty": b"", "cut": content[: len(content) // 2], "garbage": b"\xff" * 100}.get(
            damage, content
        )
    )
    assert same(load(tmp_path, 2, 1, seed=3), sets)
    assert file.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob(".*"))  # no temporary file


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"file.*FEWMORE_CACHE"):
        load(tmp_path / "file", 1, 1)
    with pytest.raises(
        ConfigError, match=r"train_per_class must be at least 1.*test_per_class must be at least 1"
    ):
        load(tmp_path, 0, 0)
