"""Describe classifiers and files in text for a terminal."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewmore.classifier.text import NONE_OF_THESE, count_noun, join_names

if TYPE_CHECKING:  # rich is imported when a command runs
    from rich.console import Console
    from rich.table import Table

    from fewmore.classifier.estimator import IncrementalClassifier

MAX_LISTED = 30  # classes, changes or notes


def print_classifier(out: "Console", info: dict[str, Any]) -> None:
    """Print what training chose and how well it does, from `IncrementalClassifier.info`."""
    images = count_noun(info["images"], "image")
    sessions = sum(change["kind"] in ("fit", "learn") for change in info["history"])
    weights = info["origin"].get("weights", "unknown")
    sizes = [f"{part} {format_bytes(size)}" for part, size in info["bytes"].items() if size]
    lines = [
        (
            "classes",
            f"{len(info['classes']):,}, from {images} in {count_noun(sessions, 'session')}",
        ),
        (
            "backbone",
            f"{info['backbone']}, weights: {weights}; {info['features']:,} features an image",
        ),
        ("classifier", info["classifier"]),
        *_calibration_lines(info["calibration"], info["history"]),
        ("sizes", ", ".join(sizes)),
        *(("note", note) for note in info["notes"]),
    ]
    width = max(len(title) for title, _ in lines)
    for title, text in lines:
        out.print(f"  {title:<{width}}  {text}")


def _calibration_lines(
    calibration: dict[str, Any], history: Sequence[dict[str, Any]]
) -> list[tuple[str, str]]:
    from fewmore.classifier.calibration import Calibration

    if not calibration["held_out"]:
        return []
    held_out = count_noun(calibration["held_out"], "held-out image")
    training, *changes = history
    threshold = f"{calibration['threshold']:.3f}"
    first = Calibration(**calibration).for_classes(len(training["classes"]))
    at_training = f"{first.threshold:.3f}"
    none_of_these = f"below a familiarity of {threshold}, which 95 % of held-out images reach"
    if threshold != at_training:
        none_of_these = (
            f"below a familiarity of {threshold}, moved with the number of classes from "
            f"{at_training}, which 95 % of held-out images reached at the training"
        )
    if calibration["auroc"] is not None:
        none_of_these += f"; AUROC on held-out classes {calibration['auroc']:.3f}"
    measured = f"at the training of {training['when']}, {len(training['classes']):,} classes"
    if changes:
        measured += f", {count_noun(len(changes), 'change')} ago; measure it with fewmore evaluate"
    return [
        ("accuracy", f"{100 * calibration['accuracy']:.1f} % of {held_out}, {measured}"),
        (
            "confidence",
            f"expected calibration error {calibration['ece_after']:.3f} "
            f"({calibration['ece_before']:.3f} uncalibrated)",
        ),
        (NONE_OF_THESE, none_of_these),
    ]


def stored_changes_note(model: Path, classifier: "IncrementalClassifier") -> str | None:
    """Name changes that a service stored beside a model file, and that this does not have yet."""
    from fewmore.service.repair import stored_changes

    if not (changes := stored_changes(model, classifier)):
        return None
    return (
        f"note: {model} lacks {count_noun(len(changes), 'change')} that `fewmore serve` has stored "
        f"beside it ({join_names(changes)}): a start of the service adds them, and so does "
        f"fewmore repair {quote(model)}"
    )


def make_table(*columns: str) -> "Table":
    """Make a table without lines; columns of numbers are aligned to the right."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        is_number = name in ("confidence", "accuracy", "images")
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    return table


def quote(path: Path) -> str:
    """Quote a path as it is typed in a shell."""
    return shlex.quote(str(path))


def file_size(path: Path) -> str:
    """Format the size of a file."""
    return format_bytes(path.expanduser().stat().st_size)


def format_bytes(size: int) -> str:
    """Format a number of bytes."""
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"
