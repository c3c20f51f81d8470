"""Embed any number of images from anywhere in a stream, in bounded memory.

Chunks of images are read one after the other, decoded by threads or processes, and embedded; on a
CPU several are embedded at once. A few chunks are on the way at any time. What cannot be decoded
is an error beside the features of the others.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
import torch
from torch import Tensor

from fewmore.child_process import follow_parent
from fewmore.classifier.embedding import Embedder, center_square, square_size
from fewmore.data.streams import Chunk, PlaceList, Position, open_binary
from fewmore.data.threads import map_ahead, one_core_each, threaded_map
from fewmore.data.transform import Transform
from fewmore.errors import FewmoreError, StateError

CHUNK = 64  # images that a process decodes at a time
# From so many images on, or so many bytes of archives, several processes decode.
MANY_IMAGES = 20_000
MANY_BYTES = 200_000_000


@dataclass(frozen=True, eq=False)
class EmbeddedChunk:
    """Hold the features of those images of a chunk that could be decoded."""

    names: tuple[str, ...]
    features: Tensor  # (n, d)
    errors: dict[int, str]  # what is wrong with the others, by their number in the chunk
    end: Position
    archive_bytes: int

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, eq=False)
class DecodedChunk:
    """Hold those images of a chunk that could be decoded."""

    names: tuple[str, ...]
    squares: np.ndarray  # (n, 3, s, s) uint8
    errors: dict[int, str]
    end: Position
    archive_bytes: int


def embed_places(
    embedder: Embedder, places: PlaceList, processes: int | None = None, start: Position = (0, 0)
) -> Iterator[EmbeddedChunk]:
    """Yield the features of all images of places, from a position on, a chunk at a time.

    Args:
        embedder: what computes features.
        places: images and archives.
        processes: that decode. 0 stands for threads, and None for as many as there are cores
            where there is so much to do that starting them pays.
        start: the position of the first image.
    """
    if processes is None:
        is_much = places.images >= MANY_IMAGES or places.archive_bytes >= MANY_BYTES
        processes = (os.cpu_count() or 1) if is_much else 0
    size = max(CHUNK, embedder.batch_size) if processes else embedder.stream_batch
    return embed_stream(embedder, places.chunks(size, start), processes)


def embed_stream(
    embedder: Embedder, chunks: Iterable[Chunk], processes: int = 0
) -> Iterator[EmbeddedChunk]:
    """Yield the features of chunks in their order.

    Args:
        embedder: what computes features.
        chunks: as `fewmore.data.streams.read_chunks` yields them.
        processes: that decode; 0 stands for threads, which start at once.
    """
    decode = partial(decode_chunk, embedder.transform)
    embed = partial(embed_chunk, embedder)
    if not processes and embedder.engine.is_concurrent:  # a core decodes and embeds
        with one_core_each():
            yield from threaded_map(lambda chunk: embed(decode(chunk)), chunks)
        return
    workers = processes or os.cpu_count() or 1
    try:
        with _open_pool(processes, workers) as pool:
            decoded = map_ahead(pool, decode, chunks, 2 * workers)
            yield from embedder.map_batches(embed, decoded)
    except BrokenProcessPool as error:
        raise StateError(
            "a process that decodes images was killed, perhaps because memory ran out: "
            "go on with fewer --workers"
        ) from error


def _open_pool(processes: int, workers: int) -> Executor:
    if not processes:
        return ThreadPoolExecutor(workers)
    # A process that was forked would inherit locks of PyTorch's threads.
    return ProcessPoolExecutor(workers, get_context("spawn"), _prepare_process)


def _prepare_process() -> None:
    """Let a process end with its parent and use one core."""
    follow_parent()
    torch.set_num_threads(1)


def decode_chunk(transform: Transform, chunk: Chunk) -> DecodedChunk:
    """Decode the images of a chunk to squares."""
    size = square_size(transform)
    squares = np.empty((len(chunk.images), 3, size, size), np.uint8)
    errors: dict[int, str] = {}
    for number, (name, image) in enumerate(zip(chunk.names, chunk.images, strict=True)):
        try:
            if isinstance(image, FewmoreError):
                raise image
            if isinstance(image, str) and "://" in image:
                with open_binary(image) as file:
                    image = file.read()
            square = center_square(image, name, transform)
            squares[number - len(errors)] = square.numpy()
        except FewmoreError as error:
            errors[number] = str(error)
    kept = squares[: len(chunk.images) - len(errors)]
    return DecodedChunk(chunk.names, kept, errors, chunk.end, chunk.archive_bytes)


def embed_chunk(embedder: Embedder, chunk: DecodedChunk) -> EmbeddedChunk:
    """Embed the squares of a chunk."""
    parts = torch.split(torch.from_numpy(chunk.squares), embedder.batch_size)
    features = [embedder.features(part) for part in parts if len(part)]
    empty = torch.empty(0, embedder.dim, device=embedder.device)
    return EmbeddedChunk(
        chunk.names, torch.cat([empty, *features]), chunk.errors, chunk.end, chunk.archive_bytes
    )
