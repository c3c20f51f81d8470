"""The practitioner's door: train once on a folder of photos, then learn, predict, undo, evaluate and export."""

import csv as csv_format
import json as json_format
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewmore.cli.terminal import plain, stages
from fewmore.errors import ConfigError, DataError

if TYPE_CHECKING:  # torch and rich wait until a command runs
    from rich.console import Console

    from fewmore.classifier.classes import Change
    from fewmore.classifier.estimator import Evaluation, IncrementalClassifier, Prediction

PATIENCE = 60.0  # seconds that a change waits for another process's
AT_ONCE = 64  # images predicted together
SHOWN = 30  # classes, changes or notes that are listed, where there are many more
NONE_OF_THESE = "none of these"

Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A model file, such as birds.fewmore.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


# Training


def train(
    photos: Annotated[
        Path, typer.Argument(help="A folder with one sub-folder a class.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The model file.", show_default="PHOTOS.fewmore"),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="The network that sees (table: docs/method.md).", show_default="mobilenet_v2"
        ),
    ] = None,
    weights: Annotated[
        str, typer.Option(help="imagenet, the path of a weight file, or none: train from scratch.")
    ] = "imagenet",
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn at random.")] = 0,
    device: Device = "auto",
    force: Annotated[
        bool, typer.Option("--force", help="Replace the model file if it is there.")
    ] = False,
) -> None:
    """Train a classifier on a folder of photos, one sub-folder a class.

    Example: fewmore train photos/birds -o birds.fewmore
    """
    target = (output or Path(f"{photos.expanduser().resolve().name}.fewmore")).expanduser()
    _check_target(target, force)
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.model_file import locked

    out = plain()
    classifier = IncrementalClassifier(
        backbone, None if weights == "none" else weights, device=device, seed=seed
    )
    with stages(out) as progress:
        classifier.fit(photos, progress)
    with locked(target, PATIENCE):
        _check_target(target, force)  # again: training takes time
        classifier.save(target)
    out.print(f"{target}: {_size(target)}")
    _describe(out, classifier.info())
    out.print(f"\nNow type: fewmore predict {_quoted(target)} IMAGE…")
    out.print(f"      or: fewmore learn {_quoted(target)} --name okapi a.jpg b.jpg c.jpg")


def _check_target(target: Path, force: bool) -> None:
    """Before training: an hour later would be a bad time to learn that the model cannot be written."""
    if target.is_dir():
        raise ConfigError(
            f"-o {target} is a folder: give the name of a file, such as -o {target / 'model.fewmore'}"
        )
    if target.exists() and not force:
        raise ConfigError(
            f"{target} is there already: give another name with -o, or replace it with --force"
        )
    if not target.parent.is_dir():
        raise ConfigError(
            f"-o {target}: there is no folder {target.parent}; make it, or give another name"
        )
    if not os.access(target.parent, os.W_OK):
        raise ConfigError(
            f"-o {target}: you may not write into the folder {target.resolve().parent}; give another name"
        )


# Changes


def learn(
    model: Model,
    photos: Annotated[
        list[Path],
        typer.Argument(
            help="A folder with one sub-folder a class; with --name, images.", show_default=False
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="The class that all these images show.", show_default=False)
    ] = None,
) -> None:
    """Learn new classes, or more images of known ones.

    Where an image cannot be read, it is named, and nothing is learnt.

    Example: fewmore learn birds.fewmore new-photos

    Example: fewmore learn birds.fewmore --name okapi a.jpg b.jpg c.jpg
    """
    from fewmore.classifier.classes import counted

    images = _lesson(model, photos, name)
    with _changed(model) as classifier:
        learned = classifier.learn(images)
    out, counts = plain(), classifier.info()["classes"]
    for what, names in (("learnt", learned.added), ("refined", learned.refined)):
        for one in names[:SHOWN]:
            out.print(f"{what} {one}: {counted(counts[one], 'image')}")
        if len(names) > SHOWN:
            out.print(f"{what} {len(names) - SHOWN:,} more classes")
    for warning in learned.warnings[:SHOWN]:
        out.print(f"note: {warning}")
    if len(learned.warnings) > SHOWN:
        out.print(f"and {len(learned.warnings) - SHOWN:,} more notes of these kinds")
    if learned.added or learned.refined:
        out.print(
            f"{model}: {counted(len(counts), 'class')}; take it back with: fewmore undo {_quoted(model)}"
        )
    else:
        out.print(f"{model}: nothing new was learnt, and it is as it was")


def _lesson(
    model: Path, photos: Sequence[Path], name: str | None
) -> "Path | dict[str, list[Path]]":
    """What to learn: a folder of classes, or images of the one class that was named."""
    if name is not None:
        return {name: _images(photos, "*")}
    (folder, *others) = photos
    if others:
        raise ConfigError(
            f"{len(photos)} places were given without a name: give one folder with a sub-folder for each class, "
            f"or say what all these images show: fewmore learn {_quoted(model)} --name NAME {_quoted(folder)} …"
        )
    if folder.is_file() or (folder.is_dir() and _inside(folder, "*")):
        raise ConfigError(
            f"{folder} {'is an image' if folder.is_file() else 'has images straight in it'}, and without a name it must be a folder "
            f"with a sub-folder for each class: say what is seen, as in fewmore learn {_quoted(model)} --name NAME {_quoted(folder)}"
        )
    return folder


def forget(
    model: Model,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Classes to forget.", show_default=False)
    ],
) -> None:
    """Forget classes.

    Example: fewmore forget birds.fewmore okapi "great auk"
    """
    from fewmore.classifier.classes import counted

    with _changed(model) as classifier:
        classifier.forget(names)
    left = counted(len(classifier.classes_), "class")
    plain().print(
        f"forgot {', '.join(dict.fromkeys(names))}; {model}: {left}; take it back with: fewmore undo {_quoted(model)}"
    )


def rename(
    model: Model,
    old: Annotated[str, typer.Argument(help="The class's name.", show_default=False)],
    new: Annotated[str, typer.Argument(help="Its new name.", show_default=False)],
) -> None:
    """Give a class another name.

    Example: fewmore rename birds.fewmore robin "European robin"
    """
    with _changed(model) as classifier:
        classifier.rename(old, new)
    plain().print(f"renamed {old} to {new}; take it back with: fewmore undo {_quoted(model)}")


def undo(model: Model) -> None:
    """Take back the last change: learn, forget or rename.

    Example: fewmore undo birds.fewmore
    """
    from fewmore.classifier.classes import counted

    with _changed(model) as classifier:
        said = classifier.undo()
    plain().print(f"{said}; {model}: {counted(len(classifier.classes_), 'class')}")


@contextmanager
def _changed(model: Path) -> "Iterator[IncrementalClassifier]":
    """Load, change, save, while other processes wait; an error on the way leaves the file as it was."""
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.model_file import check_there, locked

    check_there(model)
    with locked(model, PATIENCE):
        classifier = IncrementalClassifier.load(model)
        version = classifier.version
        yield classifier
        if classifier.version != version:
            classifier.save(model)


# Questions


def predict(
    model: Model,
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

    Where some cannot be read, they are named, the others are answered, and the exit code is 1.

    Example: fewmore predict birds.fewmore a.jpg b.jpg

    Example: fewmore predict birds.fewmore holiday/ --top 5 --csv > holiday.csv
    """
    if json and csv:
        raise ConfigError(
            "--json and --csv were given together, and there is one output: keep one of them"
        )
    from fewmore.classifier.estimator import IncrementalClassifier

    paths = _images(images, "**/*")
    classifier = IncrementalClassifier.load(model, device)
    with stages(plain(stderr=True), quiet=json or csv or len(paths) <= AT_ONCE) as progress:
        answers = _predicted(classifier, paths, top, progress)
    if json:
        typer.echo(
            json_format.dumps(
                [_as_json(*answer) for answer in answers], indent=1, ensure_ascii=False
            )
        )
    elif csv:
        _print_csv(answers, min(top, len(classifier.classes_)))
    else:
        _print_answers(answers)
    broken = [error for _, error in answers if isinstance(error, DataError)]
    for error in broken:
        typer.secho(f"fewmore: {error}", err=True, fg="red")
    if broken:
        raise typer.Exit(1)


Answer = tuple[Path, "Prediction | DataError"]


def _predicted(
    classifier: "IncrementalClassifier",
    paths: Sequence[Path],
    top: int,
    progress: Callable[[str, int, int], None],
) -> list[Answer]:
    answers: list[Answer] = []
    for start in range(0, len(paths), AT_ONCE):
        some = paths[start : start + AT_ONCE]
        try:
            answers += zip(some, classifier.predict(some, top), strict=True)
        except DataError:  # one of them: the others have an answer nevertheless
            for path in some:
                try:
                    answers.append((path, classifier.predict(path, top)[0]))
                except DataError as error:
                    answers.append((path, error))
        progress("predicting", len(answers), len(paths))
    return answers


def _as_json(path: Path, answer: "Prediction | DataError") -> dict[str, Any]:
    if isinstance(answer, DataError):
        return {"image": str(path), "error": str(answer)}
    classes = [
        {"name": name, "confidence": round(sure, 6)}
        for name, sure in zip(answer.names, answer.confidences, strict=True)
    ]
    return {
        "image": str(path),
        "known": answer.known,
        "familiarity": round(answer.familiarity, 6),
        "classes": classes,
    }


def _print_csv(answers: Sequence[Answer], top: int) -> None:
    """A row an image; the columns are the same whatever went wrong."""
    writer = csv_format.writer(sys.stdout, lineterminator="\n")
    numbers = [""] + [f"_{place}" for place in range(2, top + 1)]
    writer.writerow(
        [
            "image",
            *(f"{what}{number}" for number in numbers for what in ("name", "confidence")),
            "known",
            "familiarity",
            "error",
        ]
    )
    for path, answer in answers:
        if isinstance(answer, DataError):
            writer.writerow([path, *[""] * (2 * top + 2), answer])
            continue
        pairs = [
            value
            for name, sure in zip(answer.names, answer.confidences, strict=True)
            for value in (name, f"{sure:.6f}")
        ]
        writer.writerow([path, *pairs, str(answer.known).lower(), f"{answer.familiarity:.6f}", ""])


def _print_answers(answers: Sequence[Answer]) -> None:
    from rich.text import Text

    table = _table("image", "is", "confidence")
    for path, answer in answers:
        if isinstance(answer, DataError):
            table.add_row(Text(str(path)), Text("cannot be read", style="red"), "")
            continue
        rows = [
            (name, f"{100 * sure:.1f} %")
            for name, sure in zip(answer.names, answer.confidences, strict=True)
        ]
        if not answer.known:
            rows = [(NONE_OF_THESE, ""), *((f"  if any, {name}", sure) for name, sure in rows)]
        for number, (name, sure) in enumerate(rows):
            table.add_row(Text("" if number else str(path)), Text(name), sure)
    plain().print(table)


def info(model: Model, json: Json = False) -> None:
    """Say what a model file holds: classes, images, sessions, accuracy and sizes.

    Example: fewmore info birds.fewmore
    """
    from rich.columns import Columns
    from rich.text import Text

    from fewmore.classifier.estimator import IncrementalClassifier

    classifier = IncrementalClassifier.load(model, "cpu")
    about = classifier.info()
    if json:
        typer.echo(
            json_format.dumps(
                {"file": str(model), "file bytes": model.expanduser().stat().st_size, **about},
                indent=1,
                ensure_ascii=False,
            )
        )
        return
    out = plain()
    out.print(f"{model}: {_size(model)}")
    _describe(out, about)
    out.print("\nClasses, with their numbers of images:")
    names = [f"{name} {count}" for name, count in about["classes"].items()]
    out.print(Columns([Text(name) for name in names[: 4 * SHOWN]], padding=(0, 3)))
    if len(names) > 4 * SHOWN:
        out.print(
            f"and {len(names) - 4 * SHOWN:,} more; all of them: fewmore info {_quoted(model)} --json"
        )
    out.print("\nHistory:")
    changes = classifier.history_
    if len(changes) > SHOWN:
        out.print(f"  {len(changes) - SHOWN:,} earlier changes")
    for change in changes[-SHOWN:]:
        out.print(f"  {change.when}  {change}")


def evaluate(
    model: Model,
    photos: Annotated[
        Path,
        typer.Argument(
            help="A folder with one sub-folder a class, of images not seen before.",
            show_default=False,
        ),
    ],
    plot: Annotated[
        Path | None,
        typer.Option(
            help="The confusion matrix: .png, .svg or .pdf.", show_default="MODEL-confusion.png"
        ),
    ] = None,
    json: Json = False,
    device: Device = "auto",
) -> None:
    """Measure accuracy on a folder of photos, class by class, the worst ones first.

    Example: fewmore evaluate birds.fewmore test-photos
    """
    from fewmore.classifier.classes import counted
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.research.reporting import figures

    if plot and plot.suffix.lower() not in figures.FORMATS:
        raise ConfigError(
            f"--plot {plot} does not end in .png, .svg or .pdf: use --plot {plot.with_suffix('.png')}"
        )
    classifier = IncrementalClassifier.load(model, device)
    with stages(plain(stderr=True), quiet=json) as progress:
        found = classifier.evaluate(photos, progress)
    target = plot or (None if json else Path(f"{model.stem}-confusion.png"))
    all_drawn = target is None or _plot(found, classifier.history_, target)
    if json:
        typer.echo(json_format.dumps(_evaluation_as_json(found), indent=1, ensure_ascii=False))
        return
    out = plain()
    given = f"{counted(found.images, 'image')} of {counted(len(found.by_class), 'class')}"
    out.print(f"accuracy: {100 * found.accuracy:.1f} % of {given}")
    out.print(
        f"expected calibration error: {found.ece:.3f}; answered with '{NONE_OF_THESE}': {100 * found.rejected:.1f} %"
    )
    out.print()
    _print_classes(out, found, model)
    boxes = "" if all_drawn else "; its font lacks characters of some names, which show as boxes"
    out.print(f"confusion matrix: {target}{boxes}")


def _print_classes(out: "Console", found: "Evaluation", model: Path) -> None:
    """Accuracy by class, the worst first, and what each is mostly taken for."""
    from rich.text import Text

    rows = _by_class(found)
    table = _table("class", "accuracy", "images", "mostly taken for")
    for row in rows[:SHOWN]:
        mistaken = ", ".join(f"{name} ({count})" for name, count in row["taken for"][:2])
        table.add_row(
            Text(row["class"]), f"{100 * row['accuracy']:.1f} %", str(row["images"]), Text(mistaken)
        )
    out.print(table)
    if len(rows) > SHOWN:
        out.print(
            f"and {len(rows) - SHOWN:,} more classes, each with {100 * rows[SHOWN]['accuracy']:.1f} % or better; "
            f"all of them: fewmore evaluate {_quoted(model)} … --json"
        )


def _by_class(found: "Evaluation") -> list[dict[str, Any]]:
    """A row a class, the worst first."""
    rows = []
    for name, accuracy in found.by_class.items():
        place = found.classes.index(name)
        counts = found.confusion[place].tolist()
        others = sorted(
            (
                (count, other)
                for other, count in zip(found.classes, counts, strict=True)
                if count and other != name
            ),
            reverse=True,
        )
        taken = [(other, count) for count, other in others]
        rows.append(
            {"class": name, "accuracy": accuracy, "images": sum(counts), "taken for": taken}
        )
    return sorted(rows, key=lambda row: (row["accuracy"], -row["images"]))


def _evaluation_as_json(found: "Evaluation") -> dict[str, Any]:
    by_class = [{**row, "taken for": dict(row["taken for"])} for row in _by_class(found)]
    return {
        "accuracy": found.accuracy,
        "images": found.images,
        "ece": found.ece,
        "rejected": found.rejected,
        "by class": by_class,
    }


def _plot(found: "Evaluation", history: "Sequence[Change]", target: Path) -> bool:
    """Draw the confusion matrix; False where the font lacks characters of class names."""
    import warnings

    import numpy as np

    from fewmore.classifier.classes import class_sessions
    from fewmore.research.reporting import figures

    sessions = class_sessions(history)
    by_class = np.array([sessions[name] for name in found.classes])
    heading = f"{len(found.classes)} classes, {100 * found.accuracy:.1f} % of {found.images:,} images right"
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            figures.save(
                figures.confusion_figure(found.confusion.numpy(), by_class, heading, found.classes),
                target,
            )
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be written ({error.strerror or error}): give another place with --plot"
        ) from error
    return not any("missing from font" in str(one.message) for one in said)


# Other programs


def export(
    model: Model,
    onnx: Annotated[
        Path, typer.Option("--onnx", help="The folder to write to.", show_default=False)
    ],
) -> None:
    """Write a model as ONNX, for programs without PyTorch.

    What is written is checked with onnxruntime. After a later change the same command writes what is known of the classes
    anew, and keeps backbone and scorer.

    Example: fewmore export birds.fewmore --onnx birds-onnx
    """
    from fewmore.classifier.export import packages, to_onnx

    packages()  # what is missing is said before the model is loaded
    from fewmore.classifier.estimator import IncrementalClassifier

    out = plain()
    for one in to_onnx(IncrementalClassifier.load(model, "cpu"), onnx):
        out.print(
            f"{one.path}: {_size(one.path)}, {'written' if one.written else 'kept as it was'}"
        )
    out.print("checked with onnxruntime; docs/quickstart.md shows how to use it")


# Parts


def _images(places: Sequence[Path], pattern: str) -> list[Path]:
    """Images, and those in folders: with the pattern ** also in sub-folders."""
    from fewmore.data.files import SUFFIXES

    found: list[Path] = []
    for place in places:
        inside = _inside(place, pattern) if place.is_dir() else [place]
        if not inside:
            where = "in it" if pattern == "**/*" else "straight in it"
            raise DataError(
                f"{place} has no images {where}: give a folder that has some ({', '.join(sorted(SUFFIXES))}), or images"
            )
        found += inside
    return found


def _inside(folder: Path, pattern: str) -> list[Path]:
    """The images of a folder, in the order of their names; what is hidden is passed over."""
    from fewmore.data.files import SUFFIXES

    try:
        paths = sorted(path for path in folder.glob(pattern) if path.suffix.lower() in SUFFIXES)
        return [
            path
            for path in paths
            if path.is_file()
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        ]
    except OSError as error:
        raise DataError(
            f"{folder} cannot be read ({error.strerror or error}): check who may read it"
        ) from error


def _describe(out: "Console", about: dict[str, Any]) -> None:
    """What was chosen and how well it does, for a person."""
    from fewmore.classifier.classes import counted

    measured, sizes = about["calibration"], about["bytes"]
    lines = [
        (
            "classes",
            f"{len(about['classes']):,}, from {counted(about['images'], 'image')} in {counted(about['sessions'], 'session')}",
        ),
        (
            "backbone",
            f"{about['backbone']}, weights: {about['origin'].get('weights', 'unknown')}; {about['features']:,} features an image",
        ),
        ("classifier", about["classifier"]),
    ]
    if measured["held_out"]:
        ece = f"expected calibration error {measured['ece_after']:.3f} ({measured['ece_before']:.3f} uncalibrated)"
        lines += [
            (
                "accuracy",
                f"{100 * measured['accuracy']:.1f} % of {counted(measured['held_out'], 'held-out image')}",
            ),
            ("confidence", ece),
            (
                NONE_OF_THESE,
                f"below a familiarity of {measured['threshold']:.3f}, which 95 % of held-out images reach",
            ),
        ]
        if measured["auroc"] is not None:
            lines[-1] = (
                NONE_OF_THESE,
                lines[-1][1] + f"; AUROC on held-out classes {measured['auroc']:.3f}",
            )
    parts = ", ".join(f"{name} {_bytes(size)}" for name, size in sizes.items() if size)
    lines.append(("sizes", parts))
    width = max(len(title) for title, _ in lines)
    for title, text in lines:
        out.print(f"  {title:<{width}}  {text}")
    for note in about["notes"]:
        out.print(f"  {'note':<{width}}  {note}")


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in ("confidence", "accuracy", "images") else "left",
            overflow="fold",
        )
    return table


def _quoted(path: Path) -> str:
    """As it is typed in a shell."""
    return shlex.quote(str(path))


def _size(path: Path) -> str:
    return _bytes(path.expanduser().stat().st_size)


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


COMMANDS = (train, learn, predict, evaluate, info, forget, rename, undo, export)
