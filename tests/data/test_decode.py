"""One image in any form: the same pixels from all of them, or a sentence that names it."""

import io
import struct
import sys
import threading
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from fewmore.data import files
from fewmore.data.decode import ImageLike, as_rgb
from fewmore.errors import ImageError

Photographed = Callable[[np.ndarray], tuple[Image.Image, Image.Exif]]


def noise(seed: int = 0, width: int = 12, height: int = 8, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def file(image: Image.Image, form: str = "png", **settings: object) -> bytes:
    """An image as a file's content."""
    buffer = io.BytesIO()
    image.save(buffer, form, **settings)
    return buffer.getvalue()


def rgb(array: np.ndarray) -> torch.Tensor:
    """What a (height, width, 3) array must become."""
    return torch.from_numpy(array.transpose(2, 0, 1).copy())


# Forms


def test_all_forms_give_the_same_pixels(tmp_path: Path) -> None:
    array = noise()
    content = file(Image.fromarray(array))
    (tmp_path / "a.png").write_bytes(content)
    forms: list[ImageLike] = [
        *(
            str(tmp_path / "a.png"),
            tmp_path / "a.png",
            content,
            Image.fromarray(array),
            Image.open(tmp_path / "a.png"),
        ),
        *(
            array,
            array.transpose(2, 0, 1),
            rgb(array),
            torch.from_numpy(array),
            array.astype(np.uint16) * 257,
            rgb(array).double() / 255,
        ),
    ]
    for form in forms:
        pixels = as_rgb(form)
        assert pixels.dtype == torch.uint8
        assert torch.equal(pixels, rgb(array)), type(form)


def test_the_callers_image_is_left_as_it_was() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image, array = (
        Image.open(io.BytesIO(file(Image.fromarray(noise()).convert("P"), exif=exif))),
        noise(),
    )
    before, same = (image.mode, image.size), array.copy()
    as_rgb(image, short_side=4)
    as_rgb(array, short_side=4)
    assert (image.mode, image.size) == before
    assert np.array_equal(array, same)


@pytest.mark.parametrize("form", ["path", "bytes", "image", "array"])
def test_the_short_side_is_what_was_asked_for(tmp_path: Path, form: str) -> None:
    array = np.asarray(Image.fromarray(noise()).resize((300, 200), Image.Resampling.BICUBIC))
    content = file(Image.fromarray(array), "jpeg", quality=95)
    (tmp_path / "a.jpg").write_bytes(content)
    given: dict[str, ImageLike] = {
        "path": tmp_path / "a.jpg",
        "bytes": content,
        "image": Image.fromarray(array),
        "array": array,
    }
    small = as_rgb(given[form], short_side=20)
    assert small.shape == (3, 20, 30)
    wanted = np.asarray(Image.fromarray(array).resize((30, 20), Image.Resampling.BILINEAR))
    assert float((small.float() - rgb(wanted).float()).abs().mean()) < 4


# Modes of files and of Pillow images


def grey(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).expand(3, -1, -1)


LEVELS = np.array([[0, 51, 128, 255]], dtype=np.uint8)


@pytest.mark.parametrize("as_file", [True, False])
def test_grey_and_black_and_white(as_file: bool) -> None:
    for mode, wanted in (("L", LEVELS), ("1", np.array([[0, 0, 255, 255]], dtype=np.uint8))):
        image = Image.fromarray(LEVELS).convert(mode, dither=Image.Dither.NONE)
        assert torch.equal(as_rgb(file(image) if as_file else image), grey(wanted))


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_opacity_is_over_white(mode: str) -> None:
    image = Image.new("RGBA", (3, 1), (100, 100, 100, 255))
    image.putpixel((1, 0), (100, 100, 100, 0))
    image.putpixel((2, 0), (100, 100, 100, 51))
    image = image.convert("LA").convert(mode)
    pixels = as_rgb(image)[:, 0]
    assert pixels[:, 0].tolist() == [100] * 3
    assert pixels[:, 1].tolist() == [255] * 3
    assert pixels[:, 2].tolist() == [224] * 3  # 100 · 0.2 + 255 · 0.8


def test_palettes_with_and_without_transparency() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert as_rgb(image)[:, 0].T.tolist() == [[10, 20, 30], [40, 50, 60]]
    assert as_rgb(file(image))[:, 0].T.tolist() == [[10, 20, 30], [40, 50, 60]]
    one = file(image, transparency=0)
    several = file(image, transparency=bytes([255, 0]))
    assert as_rgb(one)[:, 0].T.tolist() == [[255] * 3, [40, 50, 60]]
    assert as_rgb(several)[:, 0].T.tolist() == [[10, 20, 30], [255] * 3]


def test_a_transparent_colour_of_an_rgb_image_is_white() -> None:
    image = Image.new("RGB", (2, 1), (9, 9, 9))
    image.putpixel((1, 0), (1, 2, 3))
    assert as_rgb(file(image, transparency=(1, 2, 3)))[:, 0].T.tolist() == [[9] * 3, [255] * 3]


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_sixteen_bits_are_scaled_and_not_clipped(mode: str) -> None:
    deep = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    image = Image.fromarray(deep.astype(np.int32) if mode == "I" else deep)
    image = image if image.mode == mode else image.convert("I").convert(mode)
    assert image.mode == mode
    assert as_rgb(image)[0, 0].tolist() == [0, 1, 128, 255]
    assert as_rgb(file(image, "tiff"))[0, 0].tolist() == [0, 1, 128, 255]
    assert as_rgb(file(Image.fromarray(deep)))[0, 0].tolist() == [0, 1, 128, 255]


def test_more_than_sixteen_bits_are_refused() -> None:
    with pytest.raises(ImageError, match=r"its greys go from -1 to 70,000, beyond 16 bits"):
        as_rgb(Image.fromarray(np.array([[-1, 70_000]], dtype=np.int32)))


def test_floating_point_images_lie_in_0_to_1() -> None:
    image = Image.fromarray(np.array([[0, 0.2, 1]], dtype=np.float32))
    assert as_rgb(image)[0, 0].tolist() == [0, 51, 255]
    assert as_rgb(file(image, "tiff"))[0, 0].tolist() == [0, 51, 255]
    with pytest.raises(
        ImageError, match=r"its floating-point numbers go from 0 to 200, and must lie in 0 … 1"
    ):
        as_rgb(Image.fromarray(np.array([[0, 200]], dtype=np.float32)))
    with pytest.raises(ImageError, match="infinite or not numbers"):
        as_rgb(file(Image.fromarray(np.array([[0, np.nan]], dtype=np.float32)), "tiff"))


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "HSV"])
def test_other_colour_spaces(mode: str) -> None:
    image = Image.new("RGB", (4, 4), (200, 100, 50))
    near = as_rgb(image.convert(mode)).float() - torch.tensor([200.0, 100.0, 50.0])[:, None, None]
    assert float(near.abs().max()) <= 3
    cmyk = (
        as_rgb(file(image.convert("CMYK"), "jpeg", quality=95)).float()
        - torch.tensor([200.0, 100.0, 50.0])[:, None, None]
    )
    assert float(cmyk.abs().max()) <= 6


@pytest.mark.parametrize("form", ["bytes", "image"])
def test_turned_upright_as_exif_says(photographed: Photographed, form: str) -> None:
    upright = noise(1)
    stored, exif = photographed(upright)
    content = file(stored, exif=exif)
    assert torch.equal(
        as_rgb(content if form == "bytes" else Image.open(io.BytesIO(content))), rgb(upright)
    )


@pytest.mark.parametrize("form", ["gif", "webp", "png"])
def test_of_an_animation_the_first_frame(form: str) -> None:
    frames = [Image.new("RGB", (6, 5), colour) for colour in ("red", "lime", "blue")]
    settings = {"lossless": True} if form == "webp" else {}
    content = file(
        frames[0], form, save_all=True, append_images=frames[1:], duration=50, **settings
    )
    assert as_rgb(content)[:, 2, 2].tolist() == [255, 0, 0]
    opened = Image.open(io.BytesIO(content))
    assert opened.n_frames == 3
    assert as_rgb(opened)[:, 2, 2].tolist() == [255, 0, 0]


# Arrays and tensors


@pytest.mark.parametrize("as_tensor", [False, True])
def test_shapes_of_arrays(as_tensor: bool) -> None:
    def given(array: np.ndarray) -> Image:
        return torch.from_numpy(array.copy()) if as_tensor else array

    one, four = noise(0, channels=1), noise(0, channels=4)
    four[..., 3] = 255
    for array in (one, one[..., 0], one.transpose(2, 0, 1)):
        assert torch.equal(as_rgb(given(array)), grey(one[..., 0]))
    for array in (four, four.transpose(2, 0, 1)):
        assert torch.equal(as_rgb(given(array)), rgb(four[..., :3]))


def test_where_both_ends_could_be_channels_arrays_have_them_last_and_tensors_first() -> None:
    odd = noise(0, width=5, height=3)  # (3, 5, 3)
    assert torch.equal(as_rgb(odd), rgb(odd))
    assert torch.equal(as_rgb(torch.from_numpy(odd)), torch.from_numpy(odd))


def test_numbers_of_arrays() -> None:
    assert as_rgb(np.array([[0, 257, 65535]], dtype=np.uint16))[0, 0].tolist() == [0, 1, 255]
    assert as_rgb(np.array([[False, True]]))[0, 0].tolist() == [0, 255]
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert as_rgb(torch.tensor([[0.0, 0.5, 1.0]], dtype=dtype))[0, 0].tolist() == [0, 128, 255]
    assert as_rgb(torch.tensor([[0.0, 1.0]], requires_grad=True))[0, 0].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (
            np.zeros((2, 2, 2), np.uint8),
            r"has the shape \(2, 2, 2\), and an image has 1, 3 or 4 channels",
        ),
        (
            np.zeros((4, 8, 8, 3), np.uint8),
            r"has the shape \(4, 8, 8, 3\), and is a batch: give its images one by one",
        ),
        (np.zeros(5, np.uint8), "must have two or three dimensions"),
        (np.zeros((0, 8, 3), np.uint8), r"has the shape \(0, 8, 3\), and so no pixels"),
        (np.full((4, 4), np.nan), "infinite or not numbers"),
        (np.full((4, 4), np.inf), "infinite or not numbers"),
        (np.array([[0.0, 255.0]]), "go from 0 to 255, and must lie in 0 … 1"),
        (np.array([[-0.5, 1.0]]), "go from -0.5 to 1, and must lie in 0 … 1"),
        (
            np.zeros((4, 4), np.int64),
            "of type int64, and must be uint8, uint16, bool or floating-point",
        ),
        (np.zeros((4, 4), object), "of type object"),
        (torch.full((3, 4, 4), torch.nan), "infinite or not numbers"),
    ],
)
def test_arrays_that_are_no_images(array: ImageLike, why: str) -> None:
    with pytest.raises(ImageError, match=f"^image 3 .*{why}"):
        as_rgb(array, "image 3")


@pytest.mark.parametrize("thing", [None, 7, [[1, 2]], {"a": 1}])
def test_things_that_are_no_images(thing: object) -> None:
    with pytest.raises(
        ImageError, match=f"image 3 is of type {type(thing).__name__}: give a path, a file's bytes"
    ):
        as_rgb(thing, "image 3")  # type: ignore[arg-type]


# Files that are no images


def bomb() -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (lambda: b"", "it is empty, or of no known image format"),
        (lambda: b"this is no image", "of no known image format"),
        (lambda: file(Image.fromarray(noise(0, 64, 64)), "jpeg")[:900], "truncated"),
        (lambda: file(Image.fromarray(noise(0, 64, 64)))[:5000], "truncated"),
        (bomb, "it has more than 178,956,970 pixels"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: Callable[[], bytes], why: str) -> None:
    with pytest.raises(
        ImageError,
        match=rf"^the fourth cannot be read as an image \(.*{why}.*\): replace it, or leave it out$",
    ):
        as_rgb(content(), "the fourth")
    (tmp_path / "a.jpg").write_bytes(content())
    with pytest.raises(ImageError, match=rf"a\.jpg cannot be read as an image \(.*{why}"):
        as_rgb(tmp_path / "a.jpg")


def test_paths_that_lead_to_no_file(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"gone\.jpg is not there: give the path of an image file"):
        as_rgb(tmp_path / "gone.jpg")
    with pytest.raises(ImageError, match="is a folder, not an image"):
        as_rgb(str(tmp_path))


def test_an_image_without_pixels() -> None:
    with pytest.raises(
        ImageError, match=r"the image cannot be read as an image \(it is 0 pixels wide and 5 high"
    ):
        as_rgb(Image.new("RGB", (0, 5)))


def test_heic_says_which_package_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    files._reads_heic.cache_clear()
    with pytest.raises(
        ImageError,
        match=r"HEIC image, which takes one more package: pip install 'fewmore\[heic\]'; or save it as JPEG",
    ):
        as_rgb(HEIC)
    files._reads_heic.cache_clear()


def test_heic_is_read_where_the_package_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    package = ModuleType("pillow_heif")
    vars(package)["register_heif_opener"] = lambda: calls.append("registered")
    monkeypatch.setitem(sys.modules, "pillow_heif", package)
    files._reads_heic.cache_clear()
    for _ in range(2):  # the stand-in teaches Pillow nothing
        with pytest.raises(ImageError, match="no known image format"):
            as_rgb(HEIC)
    assert calls == ["registered"]
    files._reads_heic.cache_clear()


def test_the_silence_of_many_threads_ends_with_the_last_of_them() -> None:
    before = list(warnings.filters)
    first, second = files.quiet(), files.quiet()
    first.__enter__()
    other = threading.Thread(target=second.__enter__)
    other.start()
    other.join()
    first.__exit__(None, None, None)
    warnings.warn("nobody hears this", stacklevel=1)
    second.__exit__(None, None, None)
    assert list(warnings.filters) == before
    with pytest.raises(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)
