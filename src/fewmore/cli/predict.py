"""Define `fewmore predict`: the classes of images."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.classifier.text import NONE_OF_THESE, count_noun
from fewmore.cli.describe import make_table
from fewmore.cli.image_paths import find_images
from fewmore.cli.model_options import Device, Json, ModelFile
from fewmore.cli.prediction_rows import (
    Result,
    Write,
    check_output,
    open_file,
    open_rows,
    sort_into,
)
from fewmore.cli.terminal import interrupt_hint, plain, stages
from fewmore.errors import ConfigError, DataError

if TYPE_CHECKING:  # torch is imported when a command runs
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.results import Prediction

BATCH_SIZE = 64  # images predicted together


def predict(
    model: ModelFile,
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE",
            help="Images, folders of them, and lists: .csv or .jsonl with a column path, "
            "or .txt with a path a line.",
            show_default=False,
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="So many of the likeliest classes.")] = 1,
    json: Json = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print JSONL, a line an image.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a row an image.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write to a new file: .csv, .json, .jsonl or .parquet.",
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
    device: Device = "auto",
) -> None:
    """Say what images show, and how sure that is.

    If some cannot be read, they are named, the others are predicted, and the exit code is 1. CSV
    and JSON are written as predictions come: what is there after Ctrl-C is complete.

    Example: fewmore predict birds.fewmore a.jpg b.jpg

    Example: fewmore predict birds.fewmore holiday/ --top 5 --csv > holiday.csv
    """
    forms = [form for form, asked in (("json", json), ("jsonl", jsonl), ("csv", csv)) if asked]
    if len(forms) + (output is not None) > 1:
        given = [f"--{form}" for form in forms] + ["-o"] * (output is not None)
        raise ConfigError(
            f"{' and '.join(given)} were given together, and there is one output: keep one of them"
        )
    if output is not None:
        check_output(output)
    from fewmore.classifier.estimator import IncrementalClassifier

    paths = find_images(images, recursive=True)
    classifier = IncrementalClassifier.load(model, device)
    top = min(top, len(classifier.classes_))
    # A bar and rows on the same terminal would be mixed up.
    quiet = len(paths) <= BATCH_SIZE or (bool(forms) and sys.stdout.isatty())
    done = 0
    errors: list[DataError] = []
    with (
        interrupt_hint(lambda: f"stopped after {done:,} of {len(paths):,} images"),
        stages(plain(stderr=True), quiet) as progress,
        _open_output(forms, output, top) as write,
    ):
        for results in _predict(classifier, paths, top):
            write(results)
            if sort_folder is not None:
                sort_into(sort_folder, results)
            errors += [result for _, result in results if isinstance(result, DataError)]
            done += len(results)
            progress("predicting", done, len(paths))
    if output is not None:
        plain().print(f"{output}: {count_noun(done, 'image')}")
    if sort_folder is not None:
        plain().print(f"copied into the folders of {sort_folder}")
    for error in errors:
        typer.secho(f"fewmore: {error}", err=True, fg="red")
    if errors:
        raise typer.Exit(1)


def _open_output(
    forms: Sequence[str], output: Path | None, top: int
) -> AbstractContextManager[Write]:
    if output is not None:
        return open_file(output, top)
    return open_rows(forms[0], sys.stdout, top) if forms else _open_table()


def _predict(
    classifier: "IncrementalClassifier", paths: Sequence[Path], top: int
) -> Iterator[list[Result]]:
    """Yield predictions a batch at a time."""
    for start in range(0, len(paths), BATCH_SIZE):
        batch = paths[start : start + BATCH_SIZE]
        try:
            yield list(zip(batch, classifier.predict(batch, top), strict=True))
        except DataError:  # of one image: the others are predicted nevertheless
            yield [(path, _predict_one(classifier, path, top)) for path in batch]


def _predict_one(
    classifier: "IncrementalClassifier", path: Path, top: int
) -> "Prediction | DataError":
    try:
        return classifier.predict(path, top)[0]
    except DataError as error:
        return error


@contextmanager
def _open_table() -> Iterator[Write]:
    """Give a function that adds predictions to a table, which is printed in the end."""
    from rich.text import Text

    table = make_table("image", "is", "confidence")

    def add(results: Sequence[Result]) -> None:
        for path, result in results:
            if isinstance(result, DataError):
                table.add_row(Text(str(path)), Text("cannot be read", style="red"), "")
                continue
            rows = [
                (name, f"{100 * confidence:.1f} %")
                for name, confidence in zip(result.names, result.confidences, strict=True)
            ]
            if not result.known:
                rows = [(NONE_OF_THESE, ""), *((f"  if any, {name}", text) for name, text in rows)]
            for number, (name, text) in enumerate(rows):
                table.add_row(Text("" if number else str(path)), Text(name), text)

    try:
        yield add
    finally:
        plain().print(table)
