"""Test that images are found and read everywhere, from any position on, each once."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fewmore.data.folders import from_printable
from fewmore.data.streams import Chunk, Place, PlaceList, list_places, read_chunks
from fewmore.errors import DataError, ImageError


def png(color: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (color, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def tar(names: list[str], mode: str = "w") -> bytes:
    """Return an archive; each image has a text beside it, as in WebDataset."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for number, name in enumerate(names):
            for member, data in ((name, png(number)), (f"{name[:-4]}.cls", b"3")):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def addresses(*given: str) -> list[str]:
    return [place.address for place in list_places(given)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_folders_globs_lists_and_archives(here: Path) -> None:
    for name in ("a/b/2.png", "a/1.jpg", "a/.hidden.png", "a/note.md", "a.png", "x-01.png"):
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png())
    (here / "a" / "shard.tar").write_bytes(tar(["0.png"]))
    (here / "list.txt").write_text("a.png\nx-01.png\n")
    assert addresses("a") == ["a/1.jpg", "a/b/2.png", "a/shard.tar"]
    assert addresses("a/**/*.png", "a.png") == ["a/b/2.png", "a.png"]
    assert addresses("list.txt") == ["a.png", "x-01.png"]
    assert addresses("x-{01..02}.png") == ["x-01.png", "x-02.png"], "the second is an error later"
    (place,) = list_places(["a/shard.tar"])
    assert place.archive_bytes == (here / "a" / "shard.tar").stat().st_size
    for nothing in ("nowhere/*.png", str(here / "empty")):
        (here / "empty").mkdir(exist_ok=True)
        with pytest.raises(DataError, match="has no images in it"):
            addresses(nothing)


def test_a_range_that_counts_down_is_a_sentence() -> None:
    with pytest.raises(DataError, match=r"1 comes before 10: give birds-\{1\.\.10\}\.tar$"):
        addresses("birds-{10..1}.tar")


def test_names_that_are_no_utf_8_can_be_printed(here: Path) -> None:
    try:
        Path(os.fsdecode(b"jay\xe9.png")).write_bytes(png())
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    (chunk,) = read_chunks(list_places(["."]), 9)
    assert chunk.names == ("jay\\udce9.png",)
    assert isinstance(chunk.images[0], str)
    assert Path(chunk.images[0]).is_file()
    assert from_printable(chunk.names[0]).is_file()
    assert from_printable("other\\udce9.png") == Path("other\\udce9.png")


def test_a_path_that_cannot_be_looked_at_is_an_image_that_cannot_be_read() -> None:
    for name in ("a" * 300 + ".jpg", "a" * 300 + ".txt"):
        assert addresses(name) == [name]


def test_addresses_of_fsspec() -> None:
    system = fsspec.filesystem("memory")
    for name in ("/bucket/b.png", "/bucket/in/a.jpg", "/bucket/readme.md", "/bucket/s-00.tar"):
        system.pipe(name, tar(["0.png"]) if name.endswith(".tar") else png())
    root = "memory:///bucket"
    assert addresses(root) == [f"{root}/b.png", f"{root}/in/a.jpg", f"{root}/s-00.tar"]
    assert addresses(f"{root}/*.png") == [f"{root}/b.png"]
    (chunk,) = read_chunks(list_places([f"{root}/s-{{00..00}}.tar"]), 8)
    assert chunk.names == (f"{root}/s-00.tar/0.png",)
    assert chunk.images == (png(0),)
    with pytest.raises(DataError, match=r"memory:///bucket/none\.png cannot be read"):
        addresses(f"{root}/none.png")
    with pytest.raises(DataError, match="s4://x cannot be read"):
        addresses("s4://x")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> PlaceList:
    """List two images, a shard of five, an image, an empty shard and a shard of three."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "five.tar").write_bytes(tar([f"{i}.png" for i in range(5)]))
    (folder / "empty.tar").write_bytes(tar([]))
    (folder / "three.tar.gz").write_bytes(tar([f"{i}.png" for i in range(3)], "w:gz"))
    names = ("a.png", "b.png", "five.tar", "c.png", "empty.tar", "three.tar.gz")
    return PlaceList.write(folder / "list", list_places([str(folder / name) for name in names]))


def names(chunks: list[Chunk]) -> list[str]:
    return [Path(name).name for chunk in chunks for name in chunk.names]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 11))
def test_reading_goes_on_from_every_position(
    mixed: PlaceList, size: int, other_size: int, stop: int
) -> None:
    in_all = [
        "a.png",
        "b.png",
        "0.png",
        "1.png",
        "2.png",
        "3.png",
        "4.png",
        "c.png",
        "0.png",
        "1.png",
        "2.png",
    ]
    chunks = list(mixed.chunks(size))
    assert names(chunks) == in_all
    assert chunks[-1].archive_bytes <= mixed.archive_bytes
    before = chunks[:stop]
    start = before[-1].end if before else (0, 0)
    after = list(mixed.chunks(other_size, start))
    assert names(before) + names(after) == in_all
    if after:
        assert after[-1].archive_bytes == chunks[-1].archive_bytes


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 11))
def test_pieces_are_all_images_from_every_position(
    mixed: PlaceList, size: int, piece_size: int, stop: int
) -> None:
    before = list(mixed.chunks(size))[:stop]
    start = before[-1].end if before else (0, 0)
    expected = list(mixed.chunks(1, start))
    pieces = list(mixed.pieces(piece_size, start))
    assert [chunk for piece in pieces for chunk in piece.chunks(1)] == expected
    for piece in pieces:
        sizes = [place.archive_bytes for place in piece.places]
        assert len(sizes) <= piece_size
        assert len(sizes) == 1 or not any(sizes), "an archive is alone"


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (lambda data: data[:1800], 1),
        (lambda data: data[:4600], 2),
        (lambda data: data[:4650], 2),
        (lambda data: data[:4096] + b"x" * 512 + data[4608:], 2),
        (lambda data: b"no archive", 0),
    ],
)
def test_a_damaged_archive_is_an_error_after_its_good_images(
    tmp_path: Path, damage: Callable[[bytes], bytes], kept: int
) -> None:
    path = tmp_path / "damaged.tar"
    whole = tar([f"{i}.png" for i in range(4)])
    path.write_bytes(damage(whole))
    places = [Place(str(path), 1), Place("after.png")]
    (chunk,) = read_chunks(places, 10)
    *good, error, last = chunk.images
    assert isinstance(error, ImageError)
    assert str(error).startswith(f"{path} cannot be read")
    assert last == "after.png"
    assert len(good) == kept
    assert all(image == png(i) for i, image in enumerate(good))
    end = list(read_chunks(places, 1))[len(good)].end
    rest = list(read_chunks(places[end[0] :], 10, end))
    assert [c.images for c in rest] == [("after.png",)], "the error comes once"


def test_an_archive_that_is_gone_is_an_error() -> None:
    (chunk,) = read_chunks([Place("gone.tar", 1)], 10)
    assert "gone.tar cannot be read (No such file or directory)" in str(chunk.images[0])
