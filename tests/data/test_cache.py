"""Check that image files of all kinds are decoded and cached, and that broken ones are named."""

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewmore.data import cache as image_cache
from fewmore.data import threads
from fewmore.data.cache import load_images
from fewmore.data.decode import decode_image
from fewmore.data.folders import Listing
from fewmore.data.images import Ragged
from fewmore.errors import DataError, ImageError, MissingData

Photographed = Callable[[np.ndarray], tuple[Image.Image, Image.Exif]]


def noise(seed: int, width: int = 12, height: int = 8) -> np.ndarray:
    """Return an image as Pillow has it: (height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(path: Path, seed: int = 0, width: int = 12, height: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(seed, width, height)).save(path)
    return path


def listing(paths: list[Path]) -> Listing:
    return Listing(tuple(paths), tuple(i % 2 for i in range(len(paths))), ("a", "b"))


def decode(path: Path, short_side: int | None = None, square: int | None = None) -> np.ndarray:
    """Return what is stored of one image."""
    return load_images(listing([path]), short_side, square).image(0).numpy()


# One image


def test_pixels_are_exact_and_channel_first(tmp_path: Path) -> None:
    pixels = decode(save(tmp_path / "a.png", 3))
    assert pixels.dtype == np.uint8
    assert pixels.flags["C_CONTIGUOUS"]
    assert np.array_equal(pixels, noise(3).transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("1", "png"), ("L", "png"), ("LA", "png"), ("P", "gif"), ("RGBA", "webp"), ("CMYK", "jpg")],
)
def test_any_mode_becomes_rgb(tmp_path: Path, mode: str, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(noise(0)).convert(mode).save(path)
    assert decode(path).shape == (3, 8, 12)


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (4, 4), (200, 0, 0, 255))
    image.putpixel((0, 0), (0, 0, 0, 0))
    image.save(tmp_path / "a.png")
    Image.new("P", (4, 4), 0).save(tmp_path / "palette.png", transparency=0)
    assert decode(tmp_path / "a.png")[:, 0, 0].tolist() == [255, 255, 255]
    assert decode(tmp_path / "a.png")[:, 1, 1].tolist() == [200, 0, 0]
    assert (decode(tmp_path / "palette.png") == 255).all()


def test_16_bit_gray_keeps_its_brightness(tmp_path: Path) -> None:
    gray = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    Image.fromarray(gray).save(tmp_path / "a.png")
    assert decode(tmp_path / "a.png")[0, 0].tolist() == [0, 1, 128, 255]


def test_exif_orientation_is_applied(tmp_path: Path, photographed: Photographed) -> None:
    upright = noise(1)
    stored, exif = photographed(upright)
    stored.save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(decode(tmp_path / "a.png"), upright.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("width", "height", "shape"),
    [(100, 50, (20, 40)), (30, 91, (61, 20)), (10, 10, (10, 10)), (7, 300, (300, 7))],
)
def test_images_are_shrunk_and_not_enlarged(
    tmp_path: Path, width: int, height: int, shape: tuple[int, int]
) -> None:
    assert decode(save(tmp_path / "a.png", 0, width, height), short_side=20).shape == (3, *shape)
    assert decode(save(tmp_path / "a.png", 0, width, height), square=20).shape == (3, 20, 20)


def test_shrinking_takes_all_pixels_into_account(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / "a.png")
    small = decode(tmp_path / "a.png", square=8).astype(int)
    assert np.abs(small - 127).max() <= 6  # a few more at the edges


def test_a_large_jpeg_looks_the_same_when_decoded_at_a_fraction(tmp_path: Path) -> None:
    smooth = Image.fromarray(noise(0, 6, 4)).resize((900, 600), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "a.jpg", quality=95)
    whole = smooth.resize((48, 32), Image.Resampling.BILINEAR)
    small = decode(tmp_path / "a.jpg", short_side=32)
    assert np.abs(small.astype(int) - np.asarray(whole).transpose(2, 0, 1)).mean() < 2


def test_a_damaged_exif_block_does_no_harm(tmp_path: Path) -> None:
    Image.fromarray(noise(0)).save(
        tmp_path / "a.jpg", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff garbage"
    )
    assert decode(tmp_path / "a.jpg").shape == (3, 8, 12)


def broken(folder: Path) -> dict[str, Path]:
    """Write files that are no images, and return them by name."""
    buffer = io.BytesIO()
    Image.fromarray(noise(0, 64, 64)).save(buffer, "jpeg")
    whole = save(folder / "whole.png", 0, 64, 64).read_bytes()
    (folder / "whole.png").unlink()
    contents = {
        "cut.jpg": buffer.getvalue()[:900],
        "cut.png": whole[: len(whole) // 2],
        "damaged.png": whole[:60] + bytes(40) + whole[100:],
        "empty.jpg": b"",
        "text.jpg": b"this is no image",
    }
    paths = {}
    for name, content in contents.items():
        paths[name] = folder / name
        paths[name].write_bytes(content)
    Image.fromarray(np.full((2, 2), 750, np.float32)).save(folder / "float.tiff")
    return {**paths, "float.tiff": folder / "float.tiff"}


def test_broken_images_are_named_with_a_remedy(tmp_path: Path) -> None:
    for path in broken(tmp_path).values():
        with pytest.raises(
            ImageError, match=r"^1 image cannot be read \(.+ \(.+\)\): replace or remove them"
        ) as caught:
            decode(path)
        assert str(path) in str(caught.value)


def test_a_decompression_bomb_is_refused(tmp_path: Path, bomb: bytes) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb)
    with pytest.raises(ImageError, match="more than 178,956,970 pixels"):
        decode(path)


def test_a_very_narrow_image_is_not_enlarged_beyond_the_limit(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", 0, 1, 5000)
    with pytest.raises(ImageError, match="would be stored as"):
        decode_image(path, short_side=256)
    with pytest.raises(ImageError, match="would be stored as"):
        decode(path, square=10_001)


# Many images


def test_images_of_one_size_are_one_tensor(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{i}.png", i) for i in range(40)]
    images = load_images(listing(paths))
    assert images.size == (8, 12)
    assert images.labels.tolist() == [i % 2 for i in range(40)]
    assert all(
        np.array_equal(images.image(i).numpy(), noise(i).transpose(2, 0, 1)) for i in range(40)
    )


def test_images_of_several_sizes_are_ragged(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{i}.png", i, width=12 + i) for i in range(20)]
    images = load_images(listing(paths))
    assert isinstance(images.storage, Ragged)
    assert all(
        np.array_equal(images.image(i).numpy(), noise(i, 12 + i).transpose(2, 0, 1))
        for i in range(20)
    )
    assert np.array_equal(
        images.select(torch.tensor([7])).compact().image(0).numpy(), images.image(7).numpy()
    )
    assert load_images(listing(paths), square=16).size == (16, 16)


def test_the_second_time_nothing_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [save(tmp_path / f"{i}.png", i) for i in range(5)]
    first = load_images(listing(paths))
    monkeypatch.setattr(image_cache, "try_decode", lambda *_: pytest.fail("decoded again"))
    second = load_images(listing(paths))
    assert all(torch.equal(first.image(i), second.image(i)) for i in range(5))


def test_a_changed_file_or_setting_is_decoded_anew(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{i}.png", i) for i in range(3)]
    load_images(listing(paths))
    save(paths[1], 9)
    # The same length and, on a coarse clock, the same time, would pass.
    os.utime(paths[1], ns=(1, 1))
    assert np.array_equal(load_images(listing(paths)).image(1).numpy(), noise(9).transpose(2, 0, 1))
    assert load_images(listing(paths), short_side=4).size == (4, 6)
    assert np.array_equal(
        load_images(listing(paths[::-1])).image(2).numpy(), noise(0).transpose(2, 0, 1)
    )


@pytest.mark.parametrize("damage", ["cut", "no shapes", "nonsense"])
def test_a_damaged_entry_is_written_again(tmp_path: Path, cache: Path, damage: str) -> None:
    paths = [save(tmp_path / f"{i}.png", i) for i in range(3)]
    load_images(listing(paths))
    (entry,) = (cache / "images").iterdir()
    if damage == "cut":
        (entry / "pixels").write_bytes(b"12345")
    elif damage == "no shapes":
        (entry / "shapes.npy").unlink()
    else:
        (entry / "shapes.npy").write_bytes(b"nonsense")
    assert np.array_equal(load_images(listing(paths)).image(2).numpy(), noise(2).transpose(2, 0, 1))


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{i}.png", i) for i in range(40)]
    seen: list[tuple[int, int]] = []
    load_images(listing(paths), on_progress=lambda *now: seen.append(now))
    assert seen[-1] == (40, 40)
    assert seen == sorted(seen)
    seen.clear()
    load_images(listing(paths), on_progress=lambda *now: seen.append(now))
    assert seen == [(40, 40)]


def test_few_images_wait_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [save(tmp_path / "a.png")] * 1000
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 2)
    decoded = 0
    lock = threading.Lock()
    pixels = decode(paths[0])
    ahead = []

    def slow_writer(done: int, total: int) -> None:
        threading.Event().wait(0.001)
        ahead.append(decoded - done)

    def count(*_: object) -> np.ndarray:
        nonlocal decoded
        with lock:
            decoded += 1
        return pixels

    monkeypatch.setattr(image_cache, "try_decode", count)
    load_images(listing(paths), on_progress=slow_writer)
    assert max(ahead) <= 6 * image_cache.CHUNK


def test_all_broken_images_are_reported_together(tmp_path: Path, cache: Path) -> None:
    good = [save(tmp_path / f"{i}.png", i) for i in range(20)]
    bad = list(broken(tmp_path).values())
    with pytest.raises(
        ImageError, match=r"^6 images cannot be read \(.* and 1 more\): replace or remove them"
    ) as caught:
        load_images(listing([*good[:10], *bad, *good[10:]]))
    assert all(str(path) in str(caught.value) for path in bad[:5])
    assert not any((cache / "images").iterdir())


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"1 image is missing \(.*gone\.png\)"):
        load_images(listing([save(tmp_path / "a.png"), tmp_path / "gone.png"]))


def test_no_images_at_all() -> None:
    with pytest.raises(DataError, match="the list of files is empty"):
        load_images(listing([]))


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="set FEWMORE_CACHE to another folder"):
        load_images(listing([save(tmp_path / "a.png")]))


def test_stale_unfinished_entries_are_removed(tmp_path: Path, cache: Path) -> None:
    for name, age in (("unfinished-old", 2 * 24 * 3600), ("unfinished-new", 0)):
        (cache / "images" / name).mkdir(parents=True)
        (cache / "images" / name / "pixels").touch()
        stamp = (cache / "images" / name).stat().st_mtime - age
        os.utime(cache / "images" / name, (stamp, stamp))
    load_images(listing([save(tmp_path / "a.png")]))
    assert sorted(path.name for path in (cache / "images").glob("unfinished-*")) == [
        "unfinished-new"
    ]


def test_another_process_may_be_faster(tmp_path: Path, cache: Path) -> None:
    paths = [save(tmp_path / f"{i}.png", i) for i in range(40)]
    nested = []
    outer = load_images(
        listing(paths), on_progress=lambda *_: nested or nested.append(load_images(listing(paths)))
    )
    assert len(list((cache / "images").iterdir())) == 1
    assert all(
        np.array_equal(images.image(39).numpy(), noise(39).transpose(2, 0, 1))
        for images in (outer, *nested)
    )
