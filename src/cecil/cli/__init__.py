"""The command line. Each door is a file of its own, and nothing heavy is imported before a command needs it."""

import sys

import typer

from cecil.cli import data, practice, research
from cecil.cli.compare import compare
from cecil.cli.reproduce import reproduce
from cecil.cli.serve import serve
from cecil.errors import CecilError

app = typer.Typer(
    name="cecil",
    help="Teach an image classifier new classes from a handful of pictures, without forgetting the old ones.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for door, commands in (
    ("With your own photos", (*practice.COMMANDS, serve)),
    ("For research", (research.run, compare, reproduce, research.benchmarks, research.methods)),
):
    for command in commands:
        app.command(rich_help_panel=door)(command)
app.add_typer(data.app, name="data", rich_help_panel="For research")


def main() -> None:
    """Run a command; what is the input's fault is told in a sentence, without a traceback."""
    try:
        app()
    except CecilError as error:
        typer.secho(f"cecil: {error}", err=True, fg="red")
        sys.exit(2)
