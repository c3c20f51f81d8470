"""Check that every form of an image gives the same pixels, or an error that names it."""

import errno
import io
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from fewmore.data import decode
from fewmore.data.decode import ImageLike, decode_image
from fewmore.errors import ImageError

Photographed = Callable[[np.ndarray], tuple[Image.Image, Image.Exif]]


def noise(seed: int = 0, width: int = 12, height: int = 8, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def encode(image: Image.Image, form: str = "png", **settings: object) -> bytes:
    """Return an image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, form, **settings)
    return buffer.getvalue()


def rgb(array: np.ndarray) -> torch.Tensor:
    """Return what a (height, width, 3) array must become."""
    return torch.from_numpy(array.transpose(2, 0, 1).copy())


# Kinds of input


def test_all_forms_give_the_same_pixels(tmp_path: Path) -> None:
    array = noise()
    content = encode(Image.fromarray(array))
    (tmp_path / "a.png").write_bytes(content)
    forms: list[ImageLike] = [
        str(tmp_path / "a.png"),
        tmp_path / "a.png",
        content,
        Image.fromarray(array),
        Image.open(tmp_path / "a.png"),
        array,
        array.transpose(2, 0, 1),
        rgb(array),
        torch.from_numpy(array),
        array.astype(np.uint16) * 257,
        rgb(array).double() / 255,
    ]
    for form in forms:
        pixels = decode_image(form)
        assert pixels.dtype == torch.uint8
        assert torch.equal(pixels, rgb(array)), type(form)


def test_bytes_that_may_change_are_bytes(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), "red").save(tmp_path / "red.png")
    data = (tmp_path / "red.png").read_bytes()
    assert torch.equal(decode_image(bytearray(data)), decode_image(data))


def test_the_callers_image_does_not_change() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encode(Image.fromarray(noise()).convert("P"), exif=exif)
    image = Image.open(io.BytesIO(content))
    before = (image.mode, image.size)
    array = noise()
    same = array.copy()
    decode_image(image, short_side=4)
    decode_image(array, short_side=4)
    assert (image.mode, image.size) == before
    assert np.array_equal(array, same)


@pytest.mark.parametrize("form", ["path", "bytes", "image", "array"])
def test_short_side(tmp_path: Path, form: str) -> None:
    array = np.asarray(Image.fromarray(noise()).resize((300, 200), Image.Resampling.BICUBIC))
    content = encode(Image.fromarray(array), "jpeg", quality=95)
    (tmp_path / "a.jpg").write_bytes(content)
    forms: dict[str, ImageLike] = {
        "path": tmp_path / "a.jpg",
        "bytes": content,
        "image": Image.fromarray(array),
        "array": array,
    }
    small = decode_image(forms[form], short_side=20)
    assert small.shape == (3, 20, 30)
    expected = np.asarray(Image.fromarray(array).resize((30, 20), Image.Resampling.BILINEAR))
    assert float((small.float() - rgb(expected).float()).abs().mean()) < 4


# Pillow modes


def gray(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).expand(3, -1, -1)


LEVELS = np.array([[0, 51, 128, 255]], dtype=np.uint8)


@pytest.mark.parametrize("as_file", [True, False])
def test_gray_and_black_and_white(as_file: bool) -> None:
    for mode, expected in (("L", LEVELS), ("1", np.array([[0, 0, 255, 255]], dtype=np.uint8))):
        image = Image.fromarray(LEVELS).convert(mode, dither=Image.Dither.NONE)
        assert torch.equal(decode_image(encode(image) if as_file else image), gray(expected))


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_transparency_is_over_white(mode: str) -> None:
    image = Image.new("RGBA", (3, 1), (100, 100, 100, 255))
    image.putpixel((1, 0), (100, 100, 100, 0))
    image.putpixel((2, 0), (100, 100, 100, 51))
    image = image.convert("LA").convert(mode)
    pixels = decode_image(image)[:, 0]
    assert pixels[:, 0].tolist() == [100] * 3
    assert pixels[:, 1].tolist() == [255] * 3
    assert pixels[:, 2].tolist() == [224] * 3  # 100 · 0.2 + 255 · 0.8


def test_palettes_with_and_without_transparency() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert decode_image(image)[:, 0].T.tolist() == [[10, 20, 30], [40, 50, 60]]
    assert decode_image(encode(image))[:, 0].T.tolist() == [[10, 20, 30], [40, 50, 60]]
    one = encode(image, transparency=0)
    several = encode(image, transparency=bytes([255, 0]))
    assert decode_image(one)[:, 0].T.tolist() == [[255] * 3, [40, 50, 60]]
    assert decode_image(several)[:, 0].T.tolist() == [[10, 20, 30], [255] * 3]


def test_a_transparent_color_of_an_rgb_image_is_white() -> None:
    image = Image.new("RGB", (2, 1), (9, 9, 9))
    image.putpixel((1, 0), (1, 2, 3))
    content = encode(image, transparency=(1, 2, 3))
    assert decode_image(content)[:, 0].T.tolist() == [[9] * 3, [255] * 3]


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_16_bits_are_scaled_and_not_clipped(mode: str) -> None:
    deep = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    image = Image.fromarray(deep.astype(np.int32) if mode == "I" else deep)
    image = image if image.mode == mode else image.convert("I").convert(mode)
    assert image.mode == mode
    assert decode_image(image)[0, 0].tolist() == [0, 1, 128, 255]
    assert decode_image(encode(image, "tiff"))[0, 0].tolist() == [0, 1, 128, 255]
    assert decode_image(encode(Image.fromarray(deep)))[0, 0].tolist() == [0, 1, 128, 255]


def test_more_than_16_bits_are_refused() -> None:
    with pytest.raises(ImageError, match="beyond 16 bits"):
        decode_image(Image.fromarray(np.array([[-1, 70_000]], dtype=np.int32)))


def test_floating_point_images_lie_in_0_to_1() -> None:
    image = Image.fromarray(np.array([[0, 0.2, 1]], dtype=np.float32))
    assert decode_image(image)[0, 0].tolist() == [0, 51, 255]
    assert decode_image(encode(image, "tiff"))[0, 0].tolist() == [0, 51, 255]
    with pytest.raises(ImageError, match=r"its numbers go from 0 to 300, and must lie in 0 … 255"):
        decode_image(Image.fromarray(np.array([[0, 300]], dtype=np.float32)))
    with pytest.raises(ImageError, match="infinite or not numbers"):
        decode_image(encode(Image.fromarray(np.array([[0, np.nan]], dtype=np.float32)), "tiff"))


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "HSV"])
def test_other_color_spaces(mode: str) -> None:
    image = Image.new("RGB", (4, 4), (200, 100, 50))
    color = torch.tensor([200.0, 100.0, 50.0])[:, None, None]
    difference = decode_image(image.convert(mode)).float() - color
    assert float(difference.abs().max()) <= 3
    cmyk = decode_image(encode(image.convert("CMYK"), "jpeg", quality=95)).float()
    assert float((cmyk - color).abs().max()) <= 6


@pytest.mark.parametrize("form", ["bytes", "image"])
def test_exif_orientation_is_applied(photographed: Photographed, form: str) -> None:
    upright = noise(1)
    stored, exif = photographed(upright)
    content = encode(stored, exif=exif)
    assert torch.equal(
        decode_image(content if form == "bytes" else Image.open(io.BytesIO(content))), rgb(upright)
    )


@pytest.mark.parametrize("form", ["gif", "webp", "png"])
def test_of_an_animation_the_first_frame(form: str) -> None:
    frames = [Image.new("RGB", (6, 5), color) for color in ("red", "lime", "blue")]
    settings = {"lossless": True} if form == "webp" else {}
    content = encode(
        frames[0], form, save_all=True, append_images=frames[1:], duration=50, **settings
    )
    assert decode_image(content)[:, 2, 2].tolist() == [255, 0, 0]
    opened = Image.open(io.BytesIO(content))
    assert opened.n_frames == 3
    assert decode_image(opened)[:, 2, 2].tolist() == [255, 0, 0]


# Arrays and tensors


@pytest.mark.parametrize("as_tensor", [False, True])
def test_shapes_of_arrays(as_tensor: bool) -> None:
    def convert(array: np.ndarray) -> ImageLike:
        return torch.from_numpy(array.copy()) if as_tensor else array

    one = noise(0, channels=1)
    four = noise(0, channels=4)
    four[..., 3] = 255
    for array in (one, one[..., 0], one.transpose(2, 0, 1)):
        assert torch.equal(decode_image(convert(array)), gray(one[..., 0]))
    for array in (four, four.transpose(2, 0, 1)):
        assert torch.equal(decode_image(convert(array)), rgb(four[..., :3]))


def test_where_both_ends_could_be_channels_arrays_have_them_last_and_tensors_first() -> None:
    odd = noise(0, width=5, height=3)  # (3, 5, 3)
    assert torch.equal(decode_image(odd), rgb(odd))
    assert torch.equal(decode_image(torch.from_numpy(odd)), torch.from_numpy(odd))


def test_dtypes_of_arrays() -> None:
    assert decode_image(np.array([[0, 257, 65535]], dtype=np.uint16))[0, 0].tolist() == [0, 1, 255]
    assert decode_image(np.array([[False, True]]))[0, 0].tolist() == [0, 255]
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        levels = torch.tensor([[0.0, 0.5, 1.0]], dtype=dtype)
        assert decode_image(levels)[0, 0].tolist() == [0, 128, 255]
    assert decode_image(torch.tensor([[0.0, 1.0]], requires_grad=True))[0, 0].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (
            np.zeros((2, 2, 2), np.uint8),
            r"has the shape \(2, 2, 2\), and an image has 1, 3 or 4 channels",
        ),
        (
            np.zeros((4, 8, 8, 3), np.uint8),
            "is a batch",
        ),
        (np.zeros(5, np.uint8), "must have two or three dimensions"),
        (np.zeros((0, 8, 3), np.uint8), r"has the shape \(0, 8, 3\), and so no pixels"),
        (np.full((4, 4), np.nan), "infinite or not numbers"),
        (np.full((4, 4), np.inf), "infinite or not numbers"),
        (np.array([[0.0, 256.0]]), "go from 0 to 256, and must lie in 0 … 255 or 0 … 1"),
        (np.array([[-0.5, 1.0]]), "go from -0.5 to 1, and must lie in 0 … 255 or 0 … 1"),
        (np.array([[0, 300]]), "go from 0 to 300, and must lie in 0 … 255"),
        (np.array([[-1, 3]]), "go from -1 to 3, and must lie in 0 … 255"),
        (np.zeros((4, 4), complex), "of type complex128"),
        (np.zeros((4, 4), object), "of type object"),
        (torch.full((3, 4, 4), torch.nan), "infinite or not numbers"),
    ],
)
def test_arrays_that_are_no_images(array: ImageLike, why: str) -> None:
    with pytest.raises(ImageError, match=f"^image 3 .*{why}"):
        decode_image(array, "image 3")


@pytest.mark.parametrize("thing", [None, 7, [[1, 2]], {"a": 1}])
def test_things_that_are_no_images(thing: object) -> None:
    with pytest.raises(
        ImageError, match=f"image 3 is of type {type(thing).__name__}: give a path, a file's bytes"
    ):
        decode_image(thing, "image 3")  # type: ignore[arg-type]


# Files that are no images


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty, or of no known image format"),
        (b"this is no image", "of no known image format"),
        (encode(Image.fromarray(noise(0, 64, 64)), "jpeg")[:900], "truncated"),
        (encode(Image.fromarray(noise(0, 64, 64)))[:5000], "truncated"),
        (b"PK\x03\x04" + bytes(40), "it is a ZIP archive: unpack it, and give the folder"),
        (None, "it has more than 178,956,970 pixels"),
    ],
    ids=["empty", "text", "half a JPEG", "half a PNG", "ZIP", "bomb"],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, content: bytes | None, why: str, bomb: bytes
) -> None:
    content = bomb if content is None else content
    with pytest.raises(
        ImageError,
        match=rf"^the fourth cannot be read as an image \(.*{why}",
    ):
        decode_image(content, "the fourth")
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(ImageError, match=rf"a\.jpg cannot be read as an image \(.*{why}"):
        decode_image(tmp_path / "a.jpg")


def test_paths_that_lead_to_no_file(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"gone\.jpg is not there: give the path of an image file"):
        decode_image(tmp_path / "gone.jpg")
    with pytest.raises(ImageError, match="is a folder, not an image"):
        decode_image(str(tmp_path))
    with pytest.raises(ImageError, match="is a pipe or a device: give the path of an image file"):
        decode_image(os.devnull)
    with pytest.raises(ImageError, match=r"cannot be read as an image \(File name too long\)"):
        decode_image(tmp_path / ("a" * 300 + ".jpg"))


def test_a_file_in_a_folder_that_may_not_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ImageError, match=r"cannot be read as an image \(Permission denied\)"):
        decode_image(tmp_path / "secret" / "a.jpg")


def test_an_image_without_pixels() -> None:
    with pytest.raises(
        ImageError, match=r"the image cannot be read as an image \(it is 0 pixels wide and 5 high"
    ):
        decode_image(Image.new("RGB", (0, 5)))


def test_heic_without_the_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    decode._register_heic.cache_clear()
    with pytest.raises(
        ImageError,
        match=r"pip install 'fewmore\[heic\]'",
    ):
        decode_image(HEIC)
    decode._register_heic.cache_clear()


def test_heic_with_the_package_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    package = ModuleType("pillow_heif")
    vars(package)["register_heif_opener"] = lambda: calls.append("registered")
    monkeypatch.setitem(sys.modules, "pillow_heif", package)
    decode._register_heic.cache_clear()
    for _ in range(2):  # the stand-in registers no decoder
        with pytest.raises(ImageError, match="no known image format"):
            decode_image(HEIC)
    assert calls == ["registered"]
    decode._register_heic.cache_clear()


def test_suppressed_warnings_come_back_after_the_last_thread() -> None:
    before = list(warnings.filters)
    first = decode.suppress_warnings()
    second = decode.suppress_warnings()
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


def test_a_large_jpeg_is_decoded_at_a_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Photos of 200 megapixels exceed Pillow's limit, which stands for whole images."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20_000)
    image = Image.new("RGB", (400, 300), (200, 30, 90))

    pixels = decode_image(encode(image, "jpeg"), short_side=30)
    assert pixels.shape == (3, 30, 40)
    assert pixels[:, 9, 9].tolist() == pytest.approx([200, 30, 90], abs=3)
    for data, side in (
        (encode(image, "jpeg"), None),
        (encode(image, "jpeg"), 200),  # not at a fraction, which would be too small
        (encode(image, "jpeg", progressive=True), 30),  # the decoder would hold all of it
        (encode(image), 30),
    ):
        with pytest.raises(ImageError, match="it has more than 40,000 pixels"):
            decode_image(data, short_side=side)
    monkeypatch.setattr("fewmore.data.decode.MAX_JPEG_PIXELS", 100_000)
    with pytest.raises(ImageError, match="it has more than 40,000 pixels"):
        decode_image(encode(image, "jpeg"), short_side=30)
