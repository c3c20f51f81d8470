"""Define `fewmore predict`: the classes of images."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewmore.classifier.text import NONE_OF_THESE, count_noun
from fewmore.cli.describe import make_table
from fewmore.cli.model_options import (
    Device,
    Engine,
    Json,
    ModelFile,
    Places,
    StreamLauncher,
    Workers,
    check_order,
)
from fewmore.cli.prediction_rows import (
    Result,
    Write,
    answer,
    as_table,
    check_output,
    open_file,
    open_rows,
    sort_into,
)
from fewmore.cli.research_options import Address
from fewmore.cli.stream_job import StreamJob, list_given, run_stream
from fewmore.cli.terminal import plain
from fewmore.errors import ConfigError, DataError, ImageError

if TYPE_CHECKING:  # torch is imported when a command runs
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.results import Prediction
    from fewmore.classifier.streaming import EmbeddedChunk

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
    launcher: StreamLauncher = "local",
    address: Address = None,
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
    check_order("predict", model, images)
    is_parquet = output is not None and check_output(output) == "parquet"
    job = StreamJob(model, images, device, engine, workers, launcher, address)
    job.check(output)
    if sort_folder is not None:
        _check_local(images)
    top = min(top, len(job.classifier.classes_))
    follow_up = _FollowUp(sort_folder)
    if output is not None and is_parquet:
        about = {"command": "predict", "top": top}
        to_table = partial(_as_table, top)
        done, follow_up.errors = job.write_parquet(
            "predicting", output, about, to_table, follow_up.add_table
        )
    else:
        done = _write_rows(job, forms, output, top, follow_up)
    if output is not None:
        plain().print(f"{output}: {count_noun(done, 'image')}")
    if sort_folder is not None:
        plain().print(f"copied into the folders of {sort_folder}")
    follow_up.report()


def _write_rows(
    job: StreamJob, forms: Sequence[str], output: Path | None, top: int, follow_up: "_FollowUp"
) -> int:
    """Predict all images, and print rows or write a file of text; return how many there are."""
    with list_given(job.images) as places, _open_output(forms, output, top) as write:

        def use(chunk: "EmbeddedChunk") -> None:
            results = _predict(job.classifier, chunk, top)
            write(results)
            follow_up.add(results)

        # A bar and rows on the same terminal would be mixed up.
        quiet = bool(forms) and sys.stdout.isatty()
        return run_stream("predicting", job.embed(places), places, use, quiet=quiet)


def _check_one_output(forms: Sequence[str], output: Path | None) -> None:
    given = [f"--{form}" for form in forms] + ["-o"] * (output is not None)
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(given)} were given together, and there is one output: keep one of them"
        )


class _FollowUp:
    """Copy images that were predicted, and count those that cannot be read."""

    def __init__(self, sort_folder: Path | None) -> None:
        self.sort_folder = sort_folder
        self.errors = 0
        self.first_errors: list[str] = []

    def add(self, results: Sequence[Result]) -> None:
        """Take predictions and errors."""
        for image, result in results:
            if isinstance(result, DataError):
                self._add(image, None, str(result))
            else:
                self._add(image, answer(result), None)

    def add_table(self, table: Any) -> None:
        """Take the rows of predictions and errors."""
        for row in table.select(["image", "name", "error"]).to_pylist():
            self._add(row["image"], row["name"], row["error"])

    def _add(self, image: str, name: str | None, error: str | None) -> None:
        if error is not None:
            self.errors += 1
            if len(self.first_errors) < MAX_ERRORS:
                self.first_errors.append(error)
        elif self.sort_folder is not None and name is not None:
            sort_into(self.sort_folder, image, name)

    def report(self) -> None:
        """Print the errors, and exit with 1 if there are any."""
        for error in self.first_errors:
            typer.secho(f"fewmore: {error}", err=True, fg="red")
        if self.errors > len(self.first_errors):
            more = f"{self.errors - len(self.first_errors):,} more images"
            typer.secho(f"fewmore: {more} cannot be read: see the column error", err=True, fg="red")
        if self.errors:
            raise typer.Exit(1)


def _check_local(images: Sequence[str]) -> None:
    from fewmore.data.streams import list_places

    for place in list_places(images):
        if place.archive_bytes or "://" in place.address:
            raise ConfigError(
                f"--sort-into copies image files of this machine, and {place.address} is none: "
                "leave it out"
            )


def _as_table(top: int, classifier: "IncrementalClassifier", chunk: "EmbeddedChunk") -> Any:
    return as_table(_predict(classifier, chunk, top), top)


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
            for number, (name, confidence) in enumerate(_class_rows(result)):
                table.add_row(Text("" if number else image), Text(name), confidence)

    try:
        yield add
    finally:
        if table.row_count:
            plain().print(table)


def _class_rows(prediction: "Prediction") -> list[tuple[str, str]]:
    """Return the likeliest classes with their confidences, below "none of these" if that is it."""
    rows = [
        (name, f"{100 * confidence:.1f} %")
        for name, confidence in zip(prediction.names, prediction.confidences, strict=True)
    ]
    if prediction.known:
        return rows
    return [(NONE_OF_THESE, ""), *((f"  if any, {name}", text) for name, text in rows)]
