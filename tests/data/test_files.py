"""Image files: decoded right whatever their kind, cached, and refused with a sentence that names them."""

import io
import os
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewmore.data import files
from fewmore.data.files import Listing, list_folder, read
from fewmore.data.images import Ragged
from fewmore.errors import DataError, ImageError, MissingData

Photographed = Callable[[np.ndarray], tuple[Image.Image, Image.Exif]]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEWMORE_CACHE", str(folder))
    return folder


def noise(seed: int, width: int = 12, height: int = 8) -> np.ndarray:
    """An image as Pillow has it: (height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save(path: Path, seed: int = 0, width: int = 12, height: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(seed, width, height)).save(path)
    return path


def listing(paths: list[Path]) -> Listing:
    return Listing(tuple(paths), tuple(i % 2 for i in range(len(paths))), ("a", "b"))


def decode(path: Path, short_side: int | None = None, square: int | None = None) -> np.ndarray:
    """What is stored of one image."""
    return read(listing([path]), short_side, square).image(0).numpy()


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


def test_what_is_transparent_becomes_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (4, 4), (200, 0, 0, 255))
    image.putpixel((0, 0), (0, 0, 0, 0))
    image.save(tmp_path / "a.png")
    Image.new("P", (4, 4), 0).save(tmp_path / "palette.png", transparency=0)
    assert decode(tmp_path / "a.png")[:, 0, 0].tolist() == [255, 255, 255]
    assert decode(tmp_path / "a.png")[:, 1, 1].tolist() == [200, 0, 0]
    assert (decode(tmp_path / "palette.png") == 255).all()


def test_sixteen_bits_of_grey_keep_their_brightness(tmp_path: Path) -> None:
    grey = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    Image.fromarray(grey).save(tmp_path / "a.png")
    assert decode(tmp_path / "a.png")[0, 0].tolist() == [0, 1, 128, 255]


def test_turned_upright_as_exif_says(tmp_path: Path, photographed: Photographed) -> None:
    upright = noise(1)
    stored, exif = photographed(upright)
    stored.save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(decode(tmp_path / "a.png"), upright.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("width", "height", "shape"),
    [(100, 50, (20, 40)), (30, 91, (61, 20)), (10, 10, (20, 20)), (7, 300, (857, 20))],
)
def test_short_side(tmp_path: Path, width: int, height: int, shape: tuple[int, int]) -> None:
    assert decode(save(tmp_path / "a.png", 0, width, height), short_side=20).shape == (3, *shape)
    assert decode(save(tmp_path / "a.png", 0, width, height), square=20).shape == (3, 20, 20)


def test_shrinking_takes_all_pixels_into_account(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / "a.png")
    assert (
        np.abs(decode(tmp_path / "a.png", square=8).astype(int) - 127).max() <= 6
    )  # a few more at the edges


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
    """Files that are no images, by what is wrong with them."""
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
    Image.fromarray(np.full((2, 2), 7.5, np.float32)).save(folder / "float.tiff")
    return {**paths, "float.tiff": folder / "float.tiff"}


def test_broken_images_are_named_with_a_remedy(tmp_path: Path) -> None:
    for path in broken(tmp_path).values():
        with pytest.raises(
            ImageError, match=r"^1 image \(.+ \(.+\)\) cannot be read: replace or remove them"
        ) as caught:
            decode(path)
        assert str(path) in str(caught.value)


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path = tmp_path / "bomb.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )
    with pytest.raises(ImageError, match="more than 178,956,970 pixels"):
        decode(path)


def test_a_thread_of_pixels_is_not_blown_up(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="would be stored as"):
        decode(save(tmp_path / "a.png", 0, 1, 5000), short_side=256)


# Many images


def test_images_of_one_size_are_one_tensor(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{i}.png", i) for i in range(40)]
    images = read(listing(paths))
    assert images.size == (8, 12)
    assert images.labels.tolist() == [i % 2 for i in range(40)]
    assert all(
        np.array_equal(images.image(i).numpy(), noise(i).transpose(2, 0, 1)) for i in range(40)
    )


def test_images_of_several_sizes_are_ragged(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{i}.png", i, width=12 + i) for i in range(20)]
    images = read(listing(paths))
    assert isinstance(images.storage, Ragged)
    assert all(
        np.array_equal(images.image(i).numpy(), noise(i, 12 + i).transpose(2, 0, 1))
        for i in range(20)
    )
    assert np.array_equal(
        images.select(torch.tensor([7])).compact().image(0).numpy(), images.image(7).numpy()
    )
    assert read(listing(paths), square=16).size == (16, 16)


def test_the_second_time_nothing_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [save(tmp_path / f"{i}.png", i) for i in range(5)]
    first = read(listing(paths))
    monkeypatch.setattr(files, "attempt", lambda *_: pytest.fail("decoded again"))
    second = read(listing(paths))
    assert all(torch.equal(first.image(i), second.image(i)) for i in range(5))


def test_a_changed_file_or_setting_is_decoded_anew(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{i}.png", i) for i in range(3)]
    read(listing(paths))
    save(paths[1], 9)
    os.utime(
        paths[1], ns=(1, 1)
    )  # the same length and, on a coarse clock, the same time, would pass
    assert np.array_equal(read(listing(paths)).image(1).numpy(), noise(9).transpose(2, 0, 1))
    assert read(listing(paths), short_side=4).size == (4, 6)
    assert np.array_equal(read(listing(paths[::-1])).image(2).numpy(), noise(0).transpose(2, 0, 1))


@pytest.mark.parametrize("damage", ["cut", "no shapes", "nonsense"])
def test_a_damaged_entry_is_made_again(tmp_path: Path, cache: Path, damage: str) -> None:
    paths = [save(tmp_path / f"{i}.png", i) for i in range(3)]
    read(listing(paths))
    (entry,) = (cache / "images").iterdir()
    if damage == "cut":
        (entry / "pixels").write_bytes(b"12345")
    elif damage == "no shapes":
        (entry / "shapes.npy").unlink()
    else:
        (entry / "shapes.npy").write_bytes(b"nonsense")
    assert np.array_equal(read(listing(paths)).image(2).numpy(), noise(2).transpose(2, 0, 1))


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{i}.png", i) for i in range(40)]
    seen: list[tuple[int, int]] = []
    read(listing(paths), on_progress=lambda *now: seen.append(now))
    assert seen[-1] == (40, 40)
    assert seen == sorted(seen)
    seen.clear()
    read(listing(paths), on_progress=lambda *now: seen.append(now))
    assert seen == [(40, 40)]


def test_few_images_wait_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [save(tmp_path / "a.png")] * 1000
    monkeypatch.setattr(files.os, "cpu_count", lambda: 2)
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

    monkeypatch.setattr(files, "attempt", count)
    read(listing(paths), on_progress=slow_writer)
    assert max(ahead) <= 6 * files.CHUNK


def test_all_broken_images_are_reported_together(tmp_path: Path, cache: Path) -> None:
    good = [save(tmp_path / f"{i}.png", i) for i in range(20)]
    bad = list(broken(tmp_path).values())
    with pytest.raises(
        ImageError, match=r"^6 images .* and 1 more\) cannot be read: replace or remove them"
    ) as caught:
        read(listing([*good[:10], *bad, *good[10:]]))
    assert all(str(path) in str(caught.value) for path in bad[:5])
    assert not any((cache / "images").iterdir())


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"1 image is \(.*gone\.png\) missing"):
        read(listing([save(tmp_path / "a.png"), tmp_path / "gone.png"]))


def test_no_images_at_all() -> None:
    with pytest.raises(DataError, match="the list of files is empty"):
        read(listing([]))


def test_a_cache_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="set FEWMORE_CACHE to another folder"):
        read(listing([save(tmp_path / "a.png")]))


def test_what_a_killed_process_left_behind_is_swept_away(tmp_path: Path, cache: Path) -> None:
    for name, age in (("unfinished-old", 2 * 24 * 3600), ("unfinished-new", 0)):
        (cache / "images" / name).mkdir(parents=True)
        (cache / "images" / name / "pixels").touch()
        stamp = (cache / "images" / name).stat().st_mtime - age
        os.utime(cache / "images" / name, (stamp, stamp))
    read(listing([save(tmp_path / "a.png")]))
    assert sorted(path.name for path in (cache / "images").glob("unfinished-*")) == [
        "unfinished-new"
    ]


def test_another_process_may_be_faster(tmp_path: Path, cache: Path) -> None:
    paths = [save(tmp_path / f"{i}.png", i) for i in range(40)]
    nested = []
    outer = read(
        listing(paths), on_progress=lambda *_: nested or nested.append(read(listing(paths)))
    )
    assert len(list((cache / "images").iterdir())) == 1
    assert all(
        np.array_equal(images.image(39).numpy(), noise(39).transpose(2, 0, 1))
        for images in (outer, *nested)
    )


def test_where_things_lie(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.delenv("FEWMORE_DATA", raising=False)
    assert files.data_root() == cache / "data"
    monkeypatch.setenv("FEWMORE_DATA", "~/images")
    assert files.data_root() == Path.home() / "images"
    assert files.data_root(Path("/elsewhere")) == Path("/elsewhere")
    monkeypatch.delenv("FEWMORE_CACHE")
    assert files.cache_folder() == Path.home() / ".cache" / "fewmore"


# A folder of classes


def classes(folder: Path, counts: dict[str, int], start: int = 0) -> Path:
    for number, (name, count) in enumerate(counts.items()):
        for index in range(count):
            save(folder / name / f"{index}.png", start + 1000 * number + index, 4, 3)
    return folder


def test_a_fifth_of_each_class_is_held_out(tmp_path: Path) -> None:
    train, test = list_folder(classes(tmp_path, {"cow": 10, "ant": 4, "bee": 26}))
    assert train.class_names == test.class_names == ("ant", "bee", "cow")
    assert train.counts() == (3, 21, 8)
    assert test.counts() == (1, 5, 2)
    assert not set(train.paths) & set(test.paths)
    assert all(
        path.parent.name == train.class_names[label]
        for path, label in zip(train.paths, train.labels, strict=True)
    )
    assert train.keys()[0] == f"ant/{train.paths[0].name}"


def test_what_is_held_out_depends_on_the_seed_and_not_on_other_classes(tmp_path: Path) -> None:
    folder = classes(tmp_path, {"ant": 25, "bee": 25})
    before = list_folder(folder)[1]
    assert list_folder(folder)[1] == before
    assert list_folder(folder, seed=1)[1].paths != before.paths
    classes(folder, {"auk": 25}, start=5000)
    assert [path for path in list_folder(folder)[1].paths if path.parent.name != "auk"] == list(
        before.paths
    )


def test_train_and_test_folders_are_used_as_such(tmp_path: Path) -> None:
    classes(tmp_path / "train", {"ant": 3, "bee": 2})
    classes(tmp_path / "test", {"ant": 1, "bee": 2}, start=5000)
    train, test = list_folder(tmp_path)
    assert (train.counts(), test.counts()) == ((3, 2), (1, 2))


def test_train_and_test_must_have_the_same_classes(tmp_path: Path) -> None:
    classes(tmp_path / "train", {"ant": 3, "bee": 2, "cow": 2, "dog": 2})
    classes(tmp_path / "test", {"ant": 1, "bee": 2}, start=5000)
    with pytest.raises(
        DataError,
        match=r"test lacks the classes cow, dog: train and test must have the same sub-folders",
    ):
        list_folder(tmp_path)


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    folder = classes(tmp_path, {"ant": 3, "bee": 3})
    for name in (".hidden/a.png", "ant/.a.png", "ant/notes.txt", "ant/Thumbs.db", "readme.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("nothing to see")
    save(folder / "ant" / "LOUD.PNG", 77)
    train, test = list_folder(folder)
    assert train.class_names == ("ant", "bee")
    assert len(train) + len(test) == 7


@pytest.mark.parametrize(
    ("inside", "found"),
    [
        (None, "nothing"),
        ("photo.psd", "only files of other kinds: .psd"),
        ("deeper/", "only folders"),
    ],
)
def test_an_empty_class_is_named_with_a_remedy(
    tmp_path: Path, inside: str | None, found: str
) -> None:
    folder = classes(tmp_path, {"ant": 3, "bee": 3})
    (folder / "cow").mkdir()
    if inside and inside.endswith("/"):
        (folder / "cow" / inside).mkdir()
    elif inside:
        (folder / "cow" / inside).touch()
    with pytest.raises(
        DataError,
        match=rf"cow has no images \({found}\): put images straight into it .* or remove it",
    ):
        list_folder(folder)


def test_fewer_than_two_classes(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match="has 1 sub-folders, and at least 2 classes are needed: make one sub-folder a class",
    ):
        list_folder(classes(tmp_path, {"ant": 3}))


def test_one_image_cannot_be_both_train_and_test(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"class 'bee' has one image, .*0\.png, and needs at least 2"
    ):
        list_folder(classes(tmp_path, {"ant": 3, "bee": 1}))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="is not there: give a folder"):
        list_folder(tmp_path / "nowhere")
    with pytest.raises(MissingData, match="is a file, not a folder"):
        list_folder(save(tmp_path / "a.png"))


def test_the_same_image_in_two_classes_is_overlapping(tmp_path: Path) -> None:
    folder = classes(tmp_path, {"ant": 3, "bee": 3})
    (folder / "bee" / "copy.png").write_bytes((folder / "ant" / "1.png").read_bytes())
    with pytest.raises(
        DataError, match=r"overlapping: .* are the same image in two classes: remove one of them"
    ) as caught:
        list_folder(folder)
    assert str(folder / "ant" / "1.png") in str(caught.value)
    assert str(folder / "bee" / "copy.png") in str(caught.value)


def test_the_same_image_in_train_and_test_is_overlapping(tmp_path: Path) -> None:
    classes(tmp_path / "train", {"ant": 3, "bee": 2})
    classes(tmp_path / "test", {"ant": 1, "bee": 2}, start=5000)
    (tmp_path / "test" / "ant" / "copy.png").write_bytes(
        (tmp_path / "train" / "ant" / "1.png").read_bytes()
    )
    with pytest.raises(DataError, match=r"overlapping: .* are the same image in train and test"):
        list_folder(tmp_path)


def test_the_same_image_twice_in_training_is_no_harm(tmp_path: Path) -> None:
    classes(tmp_path / "train", {"ant": 3, "bee": 2})
    classes(tmp_path / "test", {"ant": 1, "bee": 2}, start=5000)
    (tmp_path / "train" / "ant" / "copy.png").write_bytes(
        (tmp_path / "train" / "ant" / "1.png").read_bytes()
    )
    assert list_folder(tmp_path)[0].counts() == (4, 2)
