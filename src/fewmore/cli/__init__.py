"""The command line. Each door is a file of its own, and nothing heavy is imported before a command needs it."""

import sys

import typer

from fewmore.cli import data
from fewmore.cli import run as research
from fewmore.cli.compare import compare
from fewmore.cli.evaluate import evaluate
from fewmore.cli.export import export
from fewmore.cli.info import info
from fewmore.cli.learn import forget, learn, rename, undo
from fewmore.cli.predict import predict
from fewmore.cli.reproduce import reproduce
from fewmore.cli.serve import serve
from fewmore.cli.train import train
from fewmore.errors import FewmoreError

app = typer.Typer(
    name="fewmore",
    help="Teach an image classifier new classes from a handful of images, without forgetting the old ones.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for door, commands in (
    (
        "With your own photos",
        (train, learn, predict, evaluate, info, forget, rename, undo, export, serve),
    ),
    ("For research", (research.run, compare, reproduce, research.benchmarks, research.methods)),
):
    for command in commands:
        app.command(rich_help_panel=door)(command)
app.add_typer(data.app, name="data", rich_help_panel="For research")


def main() -> None:
    """Run a command; what is the input's fault is told in a sentence, without a traceback."""
    try:
        app()
    except FewmoreError as error:
        typer.secho(f"fewmore: {error}", err=True, fg="red")
        sys.exit(2)
