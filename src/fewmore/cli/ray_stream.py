"""Compute the rows of images on a Ray cluster, by Ray Data.

A row of the data set is a piece of the list of images, then a chunk of decoded images, then their
table, in the order of the images. Tasks read and decode, and actors that have the model embed;
where both are on CPUs, Ray makes one step of them. A worker or node that is lost is replaced by
Ray, and what it had is computed again. Images are read as on a single machine, and not by Ray's
`read_images`, which ends at the first one that is broken.
"""

import logging
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.exceptions import RayTaskError

from fewmore.classifier.engines import AUTO
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.streaming import CHUNK, decode_chunk, embed_chunk
from fewmore.cli.stream_job import StreamJob, TableChunk, ToTable
from fewmore.data.streams import PlaceList, Position
from fewmore.data.transform import Transform
from fewmore.errors import ConfigError, DataError, FewmoreError
from fewmore.research.launchers.ray import connect
from fewmore.research.machine import source_digest

PIECE = 256  # image files that a task reads


@dataclass(frozen=True)
class _Sender:
    """Describe what workers must share with the machine where the command was typed."""

    source: str  # hash of the code
    folder: str  # where relative paths begin
    file: str | None  # one of the files that are read, if any: workers must see it too


def stream_tables(
    job: StreamJob, to_table: ToTable, places: PlaceList, start: Position
) -> Iterator[TableChunk]:
    """Yield the rows of images from a position on, in their order.

    An actor that embeds has a GPU, if the cluster has some and the job's device is not cpu, else a
    core.
    """
    connect(job.address)
    gpus = 0 if job.device == "cpu" else min(1, ray.cluster_resources().get("GPU", 0))
    if job.device.startswith("cuda") and not gpus:
        raise ConfigError(f"--device {job.device}: the Ray cluster has no GPU: leave it out")
    embedder = job.classifier.embedder
    engine = job.engine if gpus else embedder.engine_name
    if not gpus and engine == AUTO:  # the same on all workers, or digits differ
        engine = embedder.engine.name.split()[0]
    pieces = [{"piece": piece} for piece in places.pieces(PIECE, start)]
    if not pieces:  # all rows had been written
        return
    _configure()
    data = (
        ray.data.from_items(pieces, override_num_blocks=len(pieces))
        .flat_map(partial(_decode, _describe_sender(places), embedder.transform), num_cpus=1)
        .map(
            _Embed,
            fn_constructor_args=(
                ray.put(job.model.expanduser().read_bytes()),
                "cuda" if gpus else "cpu",
                engine,
                to_table,
            ),
            compute=ActorPoolStrategy(),
            num_cpus=0 if gpus else 1,
            num_gpus=gpus,
        )
    )
    try:
        for row in data.iter_rows():
            table = pa.ipc.open_stream(row["table"]).read_all()
            yield TableChunk(table, (row["place"], row["image"]), row["archive_bytes"])
    except RayTaskError as error:
        if isinstance(error.cause, FewmoreError):
            raise error.cause from None
        raise


def _configure() -> None:
    """Let Ray Data keep the order of images, pass on each chunk at once, and be quiet."""
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # an error is raised as well
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    context.raise_original_map_exception = True
    context.target_max_block_size = 1  # byte; a block has at least one row, which is a chunk


def _describe_sender(places: PlaceList) -> _Sender:
    local = (place.address for place in places.places() if "://" not in place.address)
    file = next((os.path.abspath(path) for path in local if os.path.exists(path)), None)
    return _Sender(source_digest(), os.getcwd(), file)


@cache
def _join(sender: _Sender) -> None:
    """Work in the sender's folder, with its code and images, or say why that cannot be."""
    if source_digest() != sender.source:
        raise ConfigError(
            f"the fewmore of {platform.node()} is not the one that was started: install the same "
            "code on all machines, and change none of it while they work"
        )
    if sender.file is not None:
        if not os.path.exists(sender.file):
            raise DataError(
                f"{platform.node()} has no {sender.file}: put the images on a file system that all "
                "machines share, or at an address such as s3://bucket/photos"
            )
        os.chdir(sender.folder)


def _decode(sender: _Sender, transform: Transform, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the decoded chunks of a piece."""
    _join(sender)
    for chunk in row["piece"].chunks(CHUNK):
        yield {"chunk": decode_chunk(transform, chunk)}


class _Embed:
    """Compute tables of chunks with a model that is loaded once."""

    def __init__(self, model: Any, device: str, engine: str, to_table: ToTable) -> None:
        self.model = model
        self.device = device
        self.engine = engine
        self.to_table = to_table

    @cached_property
    def classifier(self) -> IncrementalClassifier:
        """Load the model, whose file is on another machine."""
        with tempfile.TemporaryDirectory(prefix="fewmore-") as folder:
            path = Path(folder) / "model.fewmore"
            path.write_bytes(ray.get(self.model))
            return IncrementalClassifier.load(path, self.device, self.engine)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the table of a chunk, as bytes, with the position after it."""
        chunk = embed_chunk(self.classifier.embedder, row["chunk"])
        table = self.to_table(self.classifier, chunk)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return {
            "table": sink.getvalue().to_pybytes(),
            "place": chunk.end[0],
            "image": chunk.end[1],
            "archive_bytes": chunk.archive_bytes,
        }
