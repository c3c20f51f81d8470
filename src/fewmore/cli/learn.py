"""Define the commands that change a model file: learn, forget, rename and undo."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.classifier.text import count_noun
from fewmore.cli.describe import MAX_LISTED, quote, stored_changes_note
from fewmore.cli.image_paths import find_images, images_in
from fewmore.cli.model_options import Engine, ModelFile, SkipBroken, check_order
from fewmore.cli.terminal import interrupt_hint, plain, stages
from fewmore.errors import ConfigError

if TYPE_CHECKING:  # torch and rich are imported when a command runs
    from rich.console import Console

    from fewmore.classifier.estimator import IncrementalClassifier

LOCK_TIMEOUT = 60.0  # seconds that a change waits for one by another process


def learn(
    model: ModelFile,
    photos: Annotated[
        list[Path],
        typer.Argument(
            help="A folder with one sub-folder a class, or a CSV or JSONL file with the columns "
            "path and label; with --name, images.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="The class that all these images show.", show_default=False)
    ] = None,
    skip_broken: SkipBroken = False,
    engine: Engine = "auto",
) -> None:
    """Learn new classes, or more images of known ones.

    If images cannot be read, all of them are named, and nothing is learnt.

    Example: fewmore learn birds.fewmore new-photos

    Example: fewmore learn birds.fewmore --name okapi a.jpg b.jpg c.jpg
    """
    check_order("learn", model, photos)
    images = _images_to_learn(model, photos, name)
    before = None  # of the file under the lock

    def stopped() -> str:
        if before in (None, _stamp(model)):
            return f"stopped: nothing was learnt, and {model} is as it was"
        return f"stopped after {model} was written; take it back with: fewmore undo {quote(model)}"

    with (
        interrupt_hint(stopped),
        _change(model, engine) as classifier,
        stages(plain(stderr=True), patient=True) as progress,
    ):
        before = _stamp(model)
        result = classifier.learn(images, progress, skip_broken=skip_broken)
    out = plain()
    counts = classifier.info()["classes"]
    _print_classes(out, "learnt", result.added, counts)
    _print_classes(out, "refined", result.refined, counts)
    for warning in result.warnings[:MAX_LISTED]:
        out.print(f"note: {warning}")
    if len(result.warnings) > MAX_LISTED:
        out.print(f"and {len(result.warnings) - MAX_LISTED:,} more notes of these kinds")
    if result.added or result.refined:
        classes = count_noun(len(counts), "class")
        out.print(f"{model}: {classes}; take it back with: fewmore undo {quote(model)}")
    else:
        out.print(f"{model}: nothing new was learnt, and it is as it was")


def _stamp(path: Path) -> tuple[int, int]:
    """Return what tells one file from another that replaces it."""
    about = path.expanduser().stat()
    return about.st_ino, about.st_mtime_ns


def _print_classes(out: "Console", verb: str, names: Sequence[str], counts: dict[str, int]) -> None:
    for name in names[:MAX_LISTED]:
        out.print(f"{verb} {name}: {count_noun(counts[name], 'image')}")
    if len(names) > MAX_LISTED:
        out.print(f"{verb} {len(names) - MAX_LISTED:,} more classes")


def _images_to_learn(
    model: Path, photos: Sequence[Path], name: str | None
) -> "Path | dict[str, list[Path]]":
    """Return a folder of classes, a manifest, or the images of the class that was named."""
    from fewmore.data.manifests import is_manifest

    if name is not None:
        return {name: find_images(photos, recursive=False)}
    (folder, *others) = photos
    with_name = f"fewmore learn {quote(model)} --name NAME {quote(folder)}"
    if others:
        raise ConfigError(
            f"{len(photos)} places were given without a name: give one folder with a sub-folder "
            f"for each class, or say what all these images show: {with_name} …"
        )
    if is_manifest(folder):
        return folder
    if folder.is_file() or (folder.is_dir() and images_in(folder, recursive=False)):
        kind = "is an image" if folder.is_file() else "has images straight in it"
        raise ConfigError(
            f"{folder} {kind}, and without a name it must be a folder with a sub-folder for each "
            f"class: say what is seen, as in {with_name}"
        )
    return folder


def forget(
    model: ModelFile,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Classes to forget.", show_default=False)
    ],
) -> None:
    """Forget classes.

    Example: fewmore forget birds.fewmore okapi "great auk"
    """
    with _change(model) as classifier:
        classifier.forget(names)
    left = count_noun(len(classifier.classes_), "class")
    plain().print(
        f"forgot {', '.join(dict.fromkeys(names))}; {model}: {left}; "
        f"take it back with: fewmore undo {quote(model)}"
    )


def rename(
    model: ModelFile,
    old: Annotated[str, typer.Argument(help="The class's name.", show_default=False)],
    new: Annotated[str, typer.Argument(help="Its new name.", show_default=False)],
) -> None:
    """Give a class another name.

    Example: fewmore rename birds.fewmore robin "European robin"
    """
    from fewmore.classifier.classes import name_notes

    with _change(model) as classifier:
        others = [name for name in classifier.names if name != old]
        classifier.rename(old, new)
    plain().print(f"renamed {old} to {new}; take it back with: fewmore undo {quote(model)}")
    for note in name_notes([new], others):
        plain().print(f"note: {note}")


def undo(model: ModelFile) -> None:
    """Take back the last change: learn, forget or rename.

    Example: fewmore undo birds.fewmore
    """
    with _change(model) as classifier:
        undone = classifier.undo()
    plain().print(f"{undone}; {model}: {count_noun(len(classifier.classes_), 'class')}")


@contextmanager
def _change(model: Path, engine: str = "auto") -> "Iterator[IncrementalClassifier]":
    """Load, change and save under a lock; an error on the way leaves the file as it was."""
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.model_file import check_exists, locked

    check_exists(model)
    with locked(model, LOCK_TIMEOUT, say_that_it_waits(model)):
        classifier = IncrementalClassifier.load(model, engine=engine)
        if note := stored_changes_note(model, classifier):
            typer.echo(note, err=True)
        version = classifier.version
        yield classifier
        if classifier.version != version:
            classifier.save(model)


def say_that_it_waits(model: Path) -> Callable[[], None]:
    """Return a function that says that another process holds the file."""
    return lambda: typer.echo(f"waiting for another process that changes {model} …", err=True)
