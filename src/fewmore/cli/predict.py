"""Define `fewmore predict`: the classes of images."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.classifier.text import NONE_OF_THESE, count_noun
from fewmore.cli.describe import make_table
from fewmore.cli.model_options import Device, Engine, Json, ModelFile, Places, Workers
from fewmore.cli.parts import open_parts
from fewmore.cli.prediction_rows import (
    Result,
    Write,
    as_table,
    check_output,
    open_file,
    open_rows,
    sort_into,
)
from fewmore.cli.stream_job import list_given, run_stream
from fewmore.cli.terminal import plain
from fewmore.errors import ConfigError, DataError, ImageError
from fewmore.io import file_hash

if TYPE_CHECKING:  # torch is imported when a command runs
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.streaming import EmbeddedChunk
    from fewmore.data.streams import PlaceList

MAX_ERRORS = 20  # images that cannot be read, of which so many are named


def predict(
    model: ModelFile,
    images: Places,
    top: Annotated[int, typer.Option(min=1, help="So many of the likeliest classes.")] = 1,
    json: Json = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print JSONL, a line an image.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a row an image.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--out",
            "-o",
            help="Write to a new file: .csv, .json, .jsonl or .parquet. Parquet goes on where it "
            "was stopped.",
            show_default=False,
        ),
    ] = None,
    sort_folder: Annotated[
        Path | None,
        typer.Option(
            "--sort-into",
            help="Copy each image into the folder of its class here; nothing is overwritten.",
            show_default=False,
        ),
    ] = None,
    workers: Workers = None,
    engine: Engine = "auto",
    device: Device = "auto",
) -> None:
    """Say what images show, and how sure that is.

    If some cannot be read, they are named, the others are predicted, and the exit code is 1. CSV
    and JSON are written as predictions come: what is there after Ctrl-C is complete. Parquet is
    for any number of images: if the command is stopped, or killed, the same command goes on.

    Example: fewmore predict birds.fewmore a.jpg b.jpg

    Example: fewmore predict birds.fewmore holiday/ --top 5 --csv > holiday.csv

    Example: fewmore predict birds.fewmore "s3://birds/{000..099}.tar" -o birds.parquet
    """
    forms = [form for form, asked in (("json", json), ("jsonl", jsonl), ("csv", csv)) if asked]
    _check_one_output(forms, output)
    is_parquet = output is not None and check_output(output) == "parquet"
    from fewmore.classifier.estimator import IncrementalClassifier

    classifier = IncrementalClassifier.load(model, device, engine)
    top = min(top, len(classifier.classes_))
    errors = _Errors()
    with ExitStack() as stack:
        parts = None
        if output is not None and is_parquet:
            about = {"command": "predict", "model": file_hash(model.expanduser()), "top": top}
            parts = stack.enter_context(open_parts(output, images, about))
            errors.count = parts.errors
        places = parts.places if parts else stack.enter_context(list_given(images))
        if sort_folder is not None:
            _check_local(places)
        write = None if parts else stack.enter_context(_open_output(forms, output, top))

        def use(chunk: "EmbeddedChunk") -> None:
            results = _predict(classifier, chunk, top)
            if parts is not None:
                parts.write(as_table(results, top), chunk.end)
            if write is not None:
                write(results)
            if sort_folder is not None:
                sort_into(sort_folder, results)
            errors.add(results)

        # A bar and rows on the same terminal would be mixed up.
        quiet = bool(forms) and sys.stdout.isatty()
        done = run_stream("predicting", classifier.embedder, places, use, workers, parts, quiet)
    if output is not None:
        plain().print(f"{output}: {count_noun(done, 'image')}")
    if sort_folder is not None:
        plain().print(f"copied into the folders of {sort_folder}")
    errors.report()


def _check_one_output(forms: Sequence[str], output: Path | None) -> None:
    given = [f"--{form}" for form in forms] + ["-o"] * (output is not None)
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(given)} were given together, and there is one output: keep one of them"
        )


class _Errors:
    """Count the images that cannot be read, and keep the first sentences."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[DataError] = []

    def add(self, results: Sequence[Result]) -> None:
        errors = [result for _, result in results if isinstance(result, DataError)]
        self.count += len(errors)
        self.first += errors[: MAX_ERRORS - len(self.first)]

    def report(self) -> None:
        """Print the errors, and exit with 1 if there are any."""
        for error in self.first:
            typer.secho(f"fewmore: {error}", err=True, fg="red")
        if self.count > len(self.first):
            more = f"{self.count - len(self.first):,} more images"
            typer.secho(f"fewmore: {more} cannot be read: see the column error", err=True, fg="red")
        if self.count:
            raise typer.Exit(1)


def _check_local(places: "PlaceList") -> None:
    for place in places.places():
        if place.archive_bytes or "://" in place.address:
            raise ConfigError(
                f"--sort-into copies image files of this machine, and {place.address} is none: "
                "leave it out"
            )


def _predict(classifier: "IncrementalClassifier", chunk: "EmbeddedChunk", top: int) -> list[Result]:
    """Predict the images of a chunk; those that cannot be read keep their error."""
    predictions = iter(classifier.predict_features(chunk.features, top))
    return [
        (name, ImageError(chunk.errors[number]) if number in chunk.errors else next(predictions))
        for number, name in enumerate(chunk.names)
    ]


def _open_output(
    forms: Sequence[str], output: Path | None, top: int
) -> AbstractContextManager[Write]:
    if output is not None:
        return open_file(output, top)
    return open_rows(forms[0], sys.stdout, top) if forms else _open_table()


@contextmanager
def _open_table() -> Iterator[Write]:
    """Give a function that adds predictions to a table, which is printed in the end."""
    from rich.text import Text

    table = make_table("image", "is", "confidence")

    def add(results: Sequence[Result]) -> None:
        for image, result in results:
            if isinstance(result, DataError):
                table.add_row(Text(image), Text("cannot be read", style="red"), "")
                continue
            rows = [
                (name, f"{100 * confidence:.1f} %")
                for name, confidence in zip(result.names, result.confidences, strict=True)
            ]
            if not result.known:
                rows = [(NONE_OF_THESE, ""), *((f"  if any, {name}", text) for name, text in rows)]
            for number, (name, text) in enumerate(rows):
                table.add_row(Text("" if number else image), Text(name), text)

    try:
        yield add
    finally:
        plain().print(table)
