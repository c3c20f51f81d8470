"""Check that images of a stream have the same features, whoever decodes them."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewmore import IncrementalClassifier
from fewmore.classifier import streaming
from fewmore.classifier.streaming import embed_stream
from fewmore.data.streams import Chunk
from fewmore.errors import StateError


@pytest.fixture
def chunks(tmp_path: Path) -> list[Chunk]:
    """Return two chunks: two images, then one image and one file that is none."""
    generator = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for path in paths[:3]:
        Image.fromarray(generator.integers(0, 255, (40, 50, 3), np.uint8)).save(path)
    paths[3].write_bytes(b"no image")
    names = tuple(map(str, paths))
    return [Chunk(names[:2], names[:2], (2, 0), 0), Chunk(names[2:], names[2:], (4, 0), 0)]


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_threads_and_processes_decode_alike(
    trained: Path, chunks: list[Chunk], engine: str
) -> None:
    classifier = IncrementalClassifier.load(trained, engine=engine)
    expected = classifier.embed(list(chunks[0].names + chunks[1].names[:1]))
    for processes in (0, 1):
        embedded = list(embed_stream(classifier.embedder, iter(chunks), processes))
        assert [each.names for each in embedded] == [chunk.names for chunk in chunks]
        assert [list(each.errors) for each in embedded] == [[], [1]]
        assert "3.png" in embedded[1].errors[1]
        found = torch.cat([each.features for each in embedded])
        torch.testing.assert_close(found, expected)


def test_a_process_that_is_killed_is_a_sentence(
    trained: Path, chunks: list[Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[Executor] = []
    open_one = streaming._open_pool

    def open_pool(processes: int, workers: int) -> Executor:
        pools.append(open_one(processes, workers))
        return pools[-1]

    def killing() -> Iterator[Chunk]:
        yield chunks[0]
        pools[0].submit(os.kill, pools[0].submit(os.getpid).result(), signal.SIGKILL)
        yield chunks[1]

    monkeypatch.setattr(streaming, "_open_pool", open_pool)
    embedder = IncrementalClassifier.load(trained).embedder
    with pytest.raises(StateError, match="a process that decodes images was killed"):
        list(embed_stream(embedder, killing(), 1))
