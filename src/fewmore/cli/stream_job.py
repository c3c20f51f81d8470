"""Embed what a command was given in a stream, with progress, from where it stopped."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fewmore.cli.parts import Parts
from fewmore.cli.terminal import interrupt_hint, plain, stages

if TYPE_CHECKING:  # torch is imported when a command runs
    from fewmore.classifier.embedding import Embedder
    from fewmore.classifier.streaming import EmbeddedChunk
    from fewmore.data.streams import PlaceList

FEW = 64  # images that are embedded without a word


@contextmanager
def list_given(given: list[str]) -> "Iterator[PlaceList]":
    """List the images that a command was given, for as long as it runs."""
    from fewmore.data.streams import PlaceList, list_places

    with tempfile.TemporaryDirectory(prefix="fewmore-") as folder:
        yield PlaceList.write(Path(folder) / "places.jsonl", list_places(given))


def run_stream(
    stage: str,
    embedder: "Embedder",
    places: "PlaceList",
    use: "Callable[[EmbeddedChunk], None]",
    workers: int | None,
    parts: Parts | None = None,
    quiet: bool = False,
) -> int:
    """Embed all images and use each chunk; return how many images there were.

    Args:
        stage: what the progress is called.
        embedder: what computes features.
        places: images and archives.
        use: what is done with a chunk.
        workers: processes that decode; see `fewmore.classifier.streaming.embed_places`.
        parts: where rows go, and from where it goes on; None begins at the first image.
        quiet: show no progress.
    """
    from fewmore.classifier.streaming import embed_places

    start = parts.start if parts else (0, 0)
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
        for chunk in embed_places(embedder, places, workers, start):
            use(chunk)
            done += len(chunk.names)
            total = _estimate(places, chunk.archive_bytes, done)
            progress(stage, done, total)
    return done


def _estimate(places: "PlaceList", archive_bytes: int, done: int) -> int:
    """Return how many images there are in all: archives are taken to be alike."""
    if not places.archive_bytes:
        return places.images
    share = archive_bytes / places.archive_bytes
    return max(done, round(done / share) if share else places.images)


def _about(places: "PlaceList", total: int) -> str:
    return f"about {total:,}" if places.archive_bytes else f"{total:,}"
