"""Define `fewmore predict`: the classes of images."""

import csv as csv_format
import json as json_format
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewmore.cli.describe import NONE_OF_THESE, make_table
from fewmore.cli.image_paths import find_images
from fewmore.cli.model_options import Device, Json, ModelFile
from fewmore.cli.terminal import plain, stages
from fewmore.errors import ConfigError, DataError

if TYPE_CHECKING:  # torch is imported when a command runs
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.results import Prediction

BATCH_SIZE = 64  # images predicted together

Result = tuple[Path, "Prediction | DataError"]


def predict(
    model: ModelFile,
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE", help="Images, or folders of them.", show_default=False),
    ],
    top: Annotated[int, typer.Option(min=1, help="So many of the likeliest classes.")] = 1,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a row an image.")] = False,
    device: Device = "auto",
) -> None:
    """Say what images show, and how sure that is.

    If some cannot be read, they are named, the others are predicted, and the exit code is 1.

    Example: fewmore predict birds.fewmore a.jpg b.jpg

    Example: fewmore predict birds.fewmore holiday/ --top 5 --csv > holiday.csv
    """
    if json and csv:
        raise ConfigError(
            "--json and --csv were given together, and there is one output: keep one of them"
        )
    from fewmore.classifier.estimator import IncrementalClassifier

    paths = find_images(images, recursive=True)
    classifier = IncrementalClassifier.load(model, device)
    with stages(plain(stderr=True), quiet=json or csv or len(paths) <= BATCH_SIZE) as progress:
        results = _predict(classifier, paths, top, progress)
    if json:
        rows = [_to_json(path, result) for path, result in results]
        typer.echo(json_format.dumps(rows, indent=1, ensure_ascii=False))
    elif csv:
        _print_csv(results, min(top, len(classifier.classes_)))
    else:
        _print_table(results)
    errors = [result for _, result in results if isinstance(result, DataError)]
    for error in errors:
        typer.secho(f"fewmore: {error}", err=True, fg="red")
    if errors:
        raise typer.Exit(1)


def _predict(
    classifier: "IncrementalClassifier",
    paths: Sequence[Path],
    top: int,
    progress: Callable[[str, int, int], None],
) -> list[Result]:
    results: list[Result] = []
    for start in range(0, len(paths), BATCH_SIZE):
        batch = paths[start : start + BATCH_SIZE]
        try:
            results += zip(batch, classifier.predict(batch, top), strict=True)
        except DataError:  # of one image: the others are predicted nevertheless
            results += [(path, _predict_one(classifier, path, top)) for path in batch]
        progress("predicting", len(results), len(paths))
    return results


def _predict_one(
    classifier: "IncrementalClassifier", path: Path, top: int
) -> "Prediction | DataError":
    try:
        return classifier.predict(path, top)[0]
    except DataError as error:
        return error


def _to_json(path: Path, result: "Prediction | DataError") -> dict[str, Any]:
    if isinstance(result, DataError):
        return {"image": str(path), "error": str(result)}
    classes = [
        {"name": name, "confidence": round(confidence, 6)}
        for name, confidence in zip(result.names, result.confidences, strict=True)
    ]
    return {
        "image": str(path),
        "known": result.known,
        "familiarity": round(result.familiarity, 6),
        "classes": classes,
    }


def _print_csv(results: Sequence[Result], top: int) -> None:
    """Print a row an image; the columns are the same whatever went wrong."""
    writer = csv_format.writer(sys.stdout, lineterminator="\n")
    suffixes = [""] + [f"_{place}" for place in range(2, top + 1)]
    columns = [f"{column}{suffix}" for suffix in suffixes for column in ("name", "confidence")]
    writer.writerow(["image", *columns, "known", "familiarity", "error"])
    for path, result in results:
        if isinstance(result, DataError):
            writer.writerow([path, *[""] * (2 * top + 2), result])
            continue
        pairs = [
            value
            for name, confidence in zip(result.names, result.confidences, strict=True)
            for value in (name, f"{confidence:.6f}")
        ]
        known = str(result.known).lower()
        writer.writerow([path, *pairs, known, f"{result.familiarity:.6f}", ""])


def _print_table(results: Sequence[Result]) -> None:
    from rich.text import Text

    table = make_table("image", "is", "confidence")
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
    plain().print(table)
