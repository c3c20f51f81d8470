"""Define `fewmore info`: what a model file holds."""

import json as json_format

import typer

from fewmore.cli.describe import (
    MAX_LISTED,
    file_size,
    print_classifier,
    quote,
    stored_changes_note,
)
from fewmore.cli.model_options import Json, ModelFile
from fewmore.cli.terminal import plain


def info(model: ModelFile, json: Json = False) -> None:
    """Say what a model file holds: classes, images, history, accuracy and sizes.

    Example: fewmore info birds.fewmore
    """
    from rich.columns import Columns
    from rich.text import Text

    from fewmore.classifier.estimator import IncrementalClassifier

    classifier = IncrementalClassifier.load(model, "cpu")
    about = classifier.info()
    if json:
        file = {"file": str(model), "file bytes": model.expanduser().stat().st_size}
        typer.echo(json_format.dumps({**file, **about}, indent=1, ensure_ascii=False))
        return
    out = plain()
    out.print(f"{model}: {file_size(model)}")
    print_classifier(out, about)
    out.print("\nClasses, with their numbers of images:")
    names = [f"{name} {count}" for name, count in about["classes"].items()]
    most = 4 * MAX_LISTED
    out.print(Columns([Text(name) for name in names[:most]], padding=(0, 3)))
    if len(names) > most:
        out.print(
            f"and {len(names) - most:,} more; all of them: fewmore info {quote(model)} --json"
        )
    out.print("\nHistory:")
    changes = classifier.history_
    if len(changes) > MAX_LISTED:
        out.print(f"  {len(changes) - MAX_LISTED:,} earlier changes")
    for change in changes[-MAX_LISTED:]:
        out.print(f"  {change.when}  {change}")
    if note := stored_changes_note(model, classifier):
        out.print(f"\n{note}")
