"""Embed what a command was given in a stream, with progress, from where it stopped."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fewmore.classifier.text import join_names
from fewmore.cli.parts import Parts, open_parts, write_places
from fewmore.cli.terminal import interrupt_hint, plain, stages
from fewmore.errors import ConfigError, DataError
from fewmore.io import file_hash

if TYPE_CHECKING:  # torch is imported when a command runs
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.streaming import EmbeddedChunk
    from fewmore.data.streams import PlaceList, Position

FEW = 64  # images that are embedded without a word


@dataclass(frozen=True, eq=False)
class TableChunk:
    """Hold the rows of consecutive images."""

    table: Any  # of pyarrow
    end: "Position"  # of the image after the last one
    archive_bytes: int  # up to there

    def __len__(self) -> int:
        return len(self.table)


C = TypeVar("C", "EmbeddedChunk", TableChunk)
ToTable = Callable[["IncrementalClassifier", "EmbeddedChunk"], Any]


@dataclass(frozen=True)
class StreamJob:
    """Embed images by a model, here or on a Ray cluster."""

    model: Path
    images: list[str]
    device: str
    engine: str
    workers: int | None
    launcher: str
    address: str | None

    def check(self, output: Path | None) -> None:
        """Refuse a launcher that does not embed images, and what does not go with Ray."""
        from fewmore.research import launchers

        launchers.check(self.launcher, address=self.address)
        if self.launcher not in ("local", "ray"):
            raise ConfigError(
                f"--launcher {self.launcher} computes runs, and does not embed images: "
                "give local or ray"
            )
        if not self.is_on_ray:
            return
        if self.workers is not None:
            raise ConfigError(
                f"--workers {self.workers} is not for --launcher ray, which starts as many as the "
                "cluster has room for: leave it out"
            )
        if output is None or output.suffix.lower() != ".parquet":
            raise ConfigError("--launcher ray writes Parquet: use -o NAME.parquet")

    @property
    def is_on_ray(self) -> bool:
        """Return whether a Ray cluster embeds."""
        return self.launcher == "ray"

    @cached_property
    def classifier(self) -> "IncrementalClassifier":
        """Load the model."""
        from fewmore.classifier.estimator import IncrementalClassifier

        device = "cpu" if self.is_on_ray else self.device
        return IncrementalClassifier.load(self.model, device, self.engine)

    def embed(self, places: "PlaceList", start: "Position" = (0, 0)) -> "Iterator[EmbeddedChunk]":
        """Yield the features of images from a position on, computed here."""
        from fewmore.classifier.streaming import embed_places

        return embed_places(self.classifier.embedder, places, self.workers, start)

    def tables(
        self, to_table: ToTable, places: "PlaceList", start: "Position"
    ) -> Iterator[TableChunk]:
        """Yield the rows of images from a position on."""
        if self.is_on_ray:
            from fewmore.cli.ray_stream import stream_tables

            yield from stream_tables(self, to_table, places, start)
            return
        for chunk in self.embed(places, start):
            yield TableChunk(to_table(self.classifier, chunk), chunk.end, chunk.archive_bytes)

    def write_parquet(
        self,
        stage: str,
        output: Path,
        about: Mapping[str, Any],
        to_table: ToTable,
        use: Callable[[Any], None] | None = None,
    ) -> tuple[int, int]:
        """Write the rows of all images; return how many there are, and how many have an error.

        Args:
            stage: what the progress is called.
            output: a Parquet file, which is begun, or gone on with.
            about: what decides the rows, beside model and images.
            to_table: gives the rows of a chunk.
            use: what else is done with rows; it may be done twice if the command is stopped.
        """
        about = {**about, "model": file_hash(self.model.expanduser())}
        with open_parts(output, self.images, about) as parts:

            def write(chunk: TableChunk) -> None:
                # First: a command that is stopped in between goes on with this chunk.
                if use is not None:
                    use(chunk.table)
                parts.write(chunk.table, chunk.end)

            tables = self.tables(to_table, parts.places, parts.start)
            done = run_stream(stage, tables, parts.places, write, parts)
        return done, parts.errors


@contextmanager
def list_given(given: list[str]) -> "Iterator[PlaceList]":
    """List the images that a command was given, for as long as it runs."""
    with tempfile.TemporaryDirectory(prefix="fewmore-") as folder:
        yield write_places(Path(folder) / "places.jsonl", given)


def run_stream(
    stage: str,
    chunks: Iterable[C],
    places: "PlaceList",
    use: Callable[[C], None],
    parts: Parts | None = None,
    quiet: bool = False,
) -> int:
    """Use each chunk; return how many images there were.

    Args:
        stage: what the progress is called.
        chunks: what is computed of the images, from where the parts end.
        places: images and archives.
        use: what is done with a chunk.
        parts: where rows go; None if it begins at the first image.
        quiet: show no progress.
    """
    done = before = parts.rows if parts else 0
    total = places.images
    if before:
        plain(stderr=True).print(f"going on after {before:,} images")
    few = places.images <= FEW and not places.archive_bytes

    def hint() -> str:
        text = f"stopped after {done:,} of {_about(places, total)} images"
        return f"{text}; the same command goes on from there" if parts else text

    with (
        interrupt_hint(hint),
        stages(plain(stderr=True), quiet or few, rate=True) as progress,
    ):
        for chunk in chunks:
            use(chunk)
            done += len(chunk)
            total = _estimate(places, chunk.archive_bytes, done)
            progress(stage, done, total)
    if not done:
        raise _no_images(places)
    return done


def _no_images(places: "PlaceList") -> DataError:
    """Return the error for archives without images: any other place would have been one."""
    from fewmore.data.folders import IMAGE_SUFFIXES

    addresses = [place.address for place in places.places()]
    have = "has no images in it" if len(addresses) == 1 else "have no images in them"
    return DataError(
        f"{join_names(addresses)} {have}: give archives that have some "
        f"({', '.join(sorted(IMAGE_SUFFIXES))})"
    )


def _estimate(places: "PlaceList", archive_bytes: int, done: int) -> int:
    """Return how many images there are in all: archives are taken to be alike."""
    if not places.archive_bytes:
        return places.images
    share = archive_bytes / places.archive_bytes
    return max(done, round(done / share) if share else places.images)


def _about(places: "PlaceList", total: int) -> str:
    return f"about {total:,}" if places.archive_bytes else f"{total:,}"
