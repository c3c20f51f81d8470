"""Share a cache folder of its own for each test, and images as cameras write them."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder, and no data root, for this test alone."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEWMORE_CACHE", str(folder))
    monkeypatch.delenv("FEWMORE_DATA", raising=False)
    return folder


@pytest.fixture(params=range(1, 9))
def photographed(
    request: pytest.FixtureRequest,
) -> Callable[[np.ndarray], tuple[Image.Image, Image.Exif]]:
    """Return a function from an upright image to what a camera stores of it, and its EXIF block.

    The camera is held in each of the eight ways.
    """

    def photographed(upright: np.ndarray) -> tuple[Image.Image, Image.Exif]:
        stored = {
            1: upright,
            2: upright[:, ::-1],
            3: upright[::-1, ::-1],
            4: upright[::-1],
            5: upright.transpose(1, 0, 2),
            6: np.rot90(upright, 1),
            7: upright[::-1, ::-1].transpose(1, 0, 2),
            8: np.rot90(upright, -1),
        }[request.param]
        exif = Image.Exif()
        exif[0x0112] = request.param
        return Image.fromarray(np.ascontiguousarray(stored)), exif

    return photographed


@pytest.fixture
def bomb() -> bytes:
    """Return a decompression bomb: a small PNG file of 60,000 × 60,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks
