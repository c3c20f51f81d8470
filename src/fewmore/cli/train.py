"""Define `fewmore train`: a classifier from labelled photos."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from fewmore.cli.describe import file_size, print_classifier, quote
from fewmore.cli.learn import LOCK_TIMEOUT, say_that_it_waits
from fewmore.cli.model_options import Device, Engine, SkipBroken
from fewmore.cli.terminal import interrupt_hint, plain, stages
from fewmore.errors import ConfigError


def train(
    photos: Annotated[
        Path,
        typer.Argument(
            help="A folder with one sub-folder a class, or a CSV or JSONL file with the columns "
            "path and label.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The model file.", show_default="PHOTOS.fewmore"),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="The network that computes features (table: docs/method.md); mirrored:NAME "
            "averages those of a photo and of its mirror image, in twice the time.",
            show_default="mobilenet_v2",
        ),
    ] = None,
    weights: Annotated[
        str, typer.Option(help="imagenet, the path of a weight file, or none: train from scratch.")
    ] = "imagenet",
    image_size: Annotated[
        int | None,
        typer.Option(
            help="The side of the images that a pretrained network sees, in pixels.",
            show_default="what the weights were made for",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn at random.")] = 0,
    fine_tune: Annotated[
        str | None,
        typer.Option(
            help="Train the pretrained backbone further for a time, such as 10m or 1h, and keep it "
            "only where it wins on held-out images.",
            show_default="not at all",
        ),
    ] = None,
    engine: Engine = "auto",
    device: Device = "auto",
    skip_broken: SkipBroken = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the model file if it is there.")
    ] = False,
) -> None:
    """Train a classifier on a folder of photos, one sub-folder a class.

    What is embedded is kept in the cache folder, so a training that was stopped goes on from there.

    Example: fewmore train photos/birds -o birds.fewmore
    """
    place = photos.expanduser().resolve()
    stem = place.stem if place.is_file() else place.name
    target = (output or Path(f"{stem}.fewmore")).expanduser()
    _check_target(target, force)
    _check_time(fine_tune)
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.model_file import locked

    classifier = IncrementalClassifier(
        backbone,
        None if weights == "none" else weights,
        device=device,
        seed=seed,
        image_size=image_size,
        fine_tune=fine_tune,
        engine=engine,
    )
    stopped = f"stopped: {target} was not written"
    if weights != "none" and fine_tune is None:
        stopped += "; what was embedded is kept for the next time"
    with interrupt_hint(stopped), stages(plain(stderr=True)) as progress:
        classifier.fit(photos, progress=progress, skip_broken=skip_broken)
    with locked(target, LOCK_TIMEOUT, say_that_it_waits(target)):
        _check_target(target, force)  # again, because training takes time
        classifier.save(target)
    _print_result(target, photos, classifier.info())


def _check_time(fine_tune: str | None) -> None:
    if fine_tune is not None and fine_tune.strip()[-1:].isdigit():
        raise ConfigError(
            f"--fine-tune {fine_tune} has no unit: type --fine-tune {fine_tune}m for minutes, "
            f"or {fine_tune}s for seconds"
        )


def _print_result(target: Path, photos: Path, info: dict[str, Any]) -> None:
    out = plain()
    out.print(f"{target}: {file_size(target)}")
    print_classifier(out, info)
    out.print(f"\nNow type: fewmore predict {quote(target)} IMAGE…")
    out.print(f"      or: fewmore learn {quote(target)} --name okapi a.jpg b.jpg c.jpg")
    calibration = info["calibration"]
    halfway = 0.5 + 0.5 / len(info["classes"])  # between guessing and all of them right
    if calibration["held_out"] and calibration["accuracy"] < halfway:
        out.print(
            f"\nwarning: only {100 * calibration['accuracy']:.0f} % of held-out images are right; "
            f"look for photos in the wrong class with: fewmore check {quote(photos)}"
        )


def _check_target(target: Path, force: bool) -> None:
    """Refuse a path that cannot be written, before an hour of training and not after it."""
    if target.is_dir():
        raise ConfigError(
            f"-o {target} is a folder: give the name of a file, "
            f"such as -o {target / 'model.fewmore'}"
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
            f"-o {target}: you may not write into the folder {target.resolve().parent}; "
            "give another name"
        )
