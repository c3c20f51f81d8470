"""Define `fewmore evaluate`: accuracy on labelled photos."""

import json as json_format
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewmore.classifier.text import NONE_OF_THESE, count_noun
from fewmore.cli.describe import MAX_LISTED, make_table, quote
from fewmore.cli.image_paths import find_images
from fewmore.cli.mistakes import write_mistakes
from fewmore.cli.model_options import Device, Engine, Json, ModelFile, SkipBroken, check_order
from fewmore.cli.output_files import check_figure, check_page
from fewmore.cli.terminal import interrupt_hint, plain, stages
from fewmore.errors import ConfigError, UnknownName

if TYPE_CHECKING:  # torch and rich are imported when a command runs
    from rich.console import Console

    from fewmore.classifier.history import Change
    from fewmore.classifier.results import Evaluation


def evaluate(
    model: ModelFile,
    photos: Annotated[
        Path,
        typer.Argument(
            help="A folder with one sub-folder a class, of images not seen before, or a CSV or "
            "JSONL file with the columns path and label.",
            show_default=False,
        ),
    ],
    unknown: Annotated[
        list[Path] | None,
        typer.Option(
            help="Images, or a folder of them, of no known class: how many are 'none of these'?",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="The confusion matrix: .png, .svg or .pdf.", show_default="MODEL-confusion.png"
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write one page with the mistakes as images, such as mistakes.html.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    skip_broken: SkipBroken = False,
    engine: Engine = "auto",
    device: Device = "auto",
) -> None:
    """Measure accuracy on a folder of photos, class by class, the worst ones first.

    Example: fewmore evaluate birds.fewmore test-photos --html mistakes.html

    Example: fewmore evaluate birds.fewmore test-photos --unknown other-photos
    """
    from fewmore.classifier.estimator import IncrementalClassifier

    check_order("evaluate", model, [photos])
    if html is not None:
        check_page(html)
    if target := plot or (None if json else Path(f"{model.stem}-confusion.png")):
        check_figure(target)
    unknown_images = _find_unknown(unknown or [])
    classifier = IncrementalClassifier.load(model, device, engine)
    with (
        _explained(photos, model, classifier.names),
        interrupt_hint("stopped: nothing was measured"),
        stages(plain(stderr=True), quiet=json) as progress,
    ):
        evaluation = classifier.evaluate(
            photos, progress, unknown=unknown_images, skip_broken=skip_broken
        )
    # The numbers come first: a figure that cannot be written must not take them along.
    out = plain()
    if json:
        typer.echo(json_format.dumps(_to_json(evaluation), indent=1, ensure_ascii=False))
    else:
        _print_evaluation(out, evaluation, model)
    if target:
        all_drawn = _plot(evaluation, classifier.history_, target)
        if not json:
            boxes = "; its font lacks characters of some names, which show as boxes"
            out.print(f"confusion matrix: {target}{'' if all_drawn else boxes}")
    if html is not None:
        write_mistakes(html, evaluation, classifier, photos)
        if not json:
            out.print(f"mistakes as images: {html}")


@contextmanager
def _explained(photos: Path, model: Path, names: Sequence[str]) -> Iterator[None]:
    """Say what to type instead, where a sub-folder of the photos is no known class."""
    try:
        yield
    except UnknownName as error:
        if inner := _folder_of_classes(photos, names):
            raise ConfigError(
                f"the sub-folders of {photos} are no classes: "
                f"did you mean fewmore evaluate {quote(model)} {quote(inner)}?"
            ) from error
        raise ConfigError(f"{error}; images of no known class go to --unknown") from error


def _folder_of_classes(photos: Path, names: Sequence[str]) -> Path | None:
    """Return the sub-folder that has the folders of known classes, if these lie too deep."""
    if not photos.expanduser().is_dir():
        return None
    inside = _sub_folders(photos.expanduser())
    if any(path.name in names for path in inside):
        return None
    return next(
        (path for path in inside if any(below.name in names for below in _sub_folders(path))), None
    )


def _sub_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _find_unknown(places: list[Path]) -> list[Path]:
    """List the images of no known class; refuse places that are not there."""
    if gone := next((place for place in places if not place.exists()), None):
        raise ConfigError(
            f"--unknown {gone} is not there: give images of no known class, or a folder of them"
        )
    return find_images(places, recursive=True)


def _print_evaluation(out: "Console", evaluation: "Evaluation", model: Path) -> None:
    images = count_noun(evaluation.images, "image")
    classes = count_noun(len(evaluation.by_class), "class")
    out.print(f"accuracy: {100 * evaluation.accuracy:.1f} % of {images} of {classes}")
    if evaluation.base_accuracy is not None and evaluation.new_accuracy is not None:
        out.print(
            f"classes of the training: {100 * evaluation.base_accuracy:.1f} %; "
            f"classes learnt later: {100 * evaluation.new_accuracy:.1f} %"
        )
    out.print(
        f"expected calibration error: {evaluation.ece:.3f}; "
        f"predicted as '{NONE_OF_THESE}': {100 * evaluation.rejected:.1f} %"
    )
    if unknown := evaluation.unknown:
        out.print(
            f"{count_noun(unknown.images, 'image')} of no known class: {100 * unknown.rejected:.1f}"
            f" % predicted as '{NONE_OF_THESE}' (AUROC {unknown.auroc:.3f})"
        )
    for note in _notes(evaluation):
        out.print(f"note: {note}")
    out.print()
    _print_classes(out, evaluation, model)


def _notes(evaluation: "Evaluation") -> list[str]:
    notes = list(evaluation.notes)
    if evaluation.learnt:
        notes.append(
            f"{evaluation.learnt:,} of the {evaluation.images:,} images were learnt from: "
            "the accuracy on new images is likely lower"
        )
    return notes


def _print_classes(out: "Console", evaluation: "Evaluation", model: Path) -> None:
    """Print accuracy by class, the worst first, and what each class is mostly taken for."""
    from rich.text import Text

    rows = _by_class(evaluation)
    table = make_table("class", "accuracy", "images", "mostly taken for")
    for row in rows[:MAX_LISTED]:
        mistaken = ", ".join(f"{name} ({count})" for name, count in row["taken for"][:2])
        accuracy = f"{100 * row['accuracy']:.1f} %"
        table.add_row(Text(row["class"]), accuracy, str(row["images"]), Text(mistaken))
    out.print(table)
    if len(rows) > MAX_LISTED:
        next_accuracy = 100 * rows[MAX_LISTED]["accuracy"]
        out.print(
            f"and {len(rows) - MAX_LISTED:,} more classes, each with {next_accuracy:.1f} % "
            f"or better; all of them: fewmore evaluate {quote(model)} … --json"
        )


def _by_class(evaluation: "Evaluation") -> list[dict[str, Any]]:
    """Return a row for each class, the worst first."""
    rows = []
    for name, accuracy in evaluation.by_class.items():
        counts = evaluation.confusion[evaluation.classes.index(name)].tolist()
        mistaken = [
            (count, other)
            for other, count in zip(evaluation.classes, counts, strict=True)
            if count and other != name
        ]
        taken_for = [(other, count) for count, other in sorted(mistaken, reverse=True)]
        rows.append(
            {"class": name, "accuracy": accuracy, "images": sum(counts), "taken for": taken_for}
        )
    return sorted(rows, key=lambda row: (row["accuracy"], -row["images"]))


def _to_json(evaluation: "Evaluation") -> dict[str, Any]:
    by_class = [{**row, "taken for": dict(row["taken for"])} for row in _by_class(evaluation)]
    return {
        "accuracy": evaluation.accuracy,
        "images": evaluation.images,
        "ece": evaluation.ece,
        "rejected": evaluation.rejected,
        "base accuracy": evaluation.base_accuracy,
        "new accuracy": evaluation.new_accuracy,
        "unknown": asdict(evaluation.unknown) if evaluation.unknown else None,
        "learnt": evaluation.learnt,
        "notes": _notes(evaluation),
        "by class": by_class,
    }


def _plot(evaluation: "Evaluation", history: "Sequence[Change]", target: Path) -> bool:
    """Draw the confusion matrix; return False if the font lacks characters of class names."""
    import warnings

    import numpy as np

    from fewmore.classifier.history import class_sessions
    from fewmore.research.reporting.figures.confusion import confusion_figure
    from fewmore.research.reporting.figures.files import save

    session_of = class_sessions(history)
    sessions = np.array([session_of[name] for name in evaluation.classes])
    heading = (
        f"{len(evaluation.classes)} classes, {100 * evaluation.accuracy:.1f} % "
        f"of {evaluation.images:,} images right"
    )
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            confusion = evaluation.confusion.numpy()
            save(confusion_figure(confusion, sessions, heading, evaluation.classes), target)
    except OSError as error:
        with suppress(OSError):  # of a full disk, an empty file would stay
            target.unlink()
        raise ConfigError(
            f"{target} cannot be written ({error.strerror or error}): "
            "give another place with --plot"
        ) from error
    return not any("missing from font" in str(warning.message) for warning in caught)
