"""Define `fewmore card`: the model card of a model file."""

from typing import Annotated

import typer

from fewmore.cli.model_options import ModelFile


def card(
    model: ModelFile,
    license: Annotated[
        str | None,
        typer.Option(help="Of the model, such as apache-2.0 or cc-by-4.0.", show_default=False),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Repository on the Hub; by default user/FILE.", show_default=False),
    ] = None,
) -> None:
    """Print a model card: classes, accuracy, calibration, license and how to use it.

    Example: fewmore card birds.fewmore --license cc-by-4.0 --name me/birds > README.md
    """
    from fewmore.classifier.card import model_card
    from fewmore.classifier.estimator import IncrementalClassifier

    about = IncrementalClassifier.load(model, "cpu").info()
    typer.echo(model_card(about, name or f"user/{model.stem}", license), nl=False)
