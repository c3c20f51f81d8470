"""Provide the command line: one file a group of commands, `app` collects them.

May import all other packages, but nothing heavy before a command needs it: `--help` must be quick.
Start at run.py for research and train.py for your own photos.
"""

import errno
import io
import os
import sys
from typing import Annotated

import typer

from fewmore import __version__
from fewmore.cli import data, lists, torchrun
from fewmore.cli.card import card
from fewmore.cli.check import check
from fewmore.cli.compare import compare
from fewmore.cli.doctor import doctor
from fewmore.cli.embed import embed
from fewmore.cli.evaluate import evaluate
from fewmore.cli.exam import exam
from fewmore.cli.export import export
from fewmore.cli.info import info
from fewmore.cli.learn import forget, learn, rename, undo
from fewmore.cli.predict import predict
from fewmore.cli.repair import repair
from fewmore.cli.report import report
from fewmore.cli.reproduce import reproduce
from fewmore.cli.run import run
from fewmore.cli.serve import serve
from fewmore.cli.settings import settings
from fewmore.cli.train import train
from fewmore.cli.tune import tune
from fewmore.errors import FewmoreError

GROUPS = {
    "With your own photos": (
        check,
        train,
        learn,
        predict,
        embed,
        evaluate,
        info,
        forget,
        rename,
        undo,
        export,
        card,
        serve,
        repair,
    ),
    "For research": (
        run,
        tune,
        compare,
        report,
        reproduce,
        lists.benchmarks,
        lists.methods,
        settings,
        exam,
    ),
    "This installation": (doctor,),
}

app = typer.Typer(
    name="fewmore",
    help=(
        "Teach an image classifier new classes from a handful of images, "
        "without forgetting the old ones."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fewmore {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that come before a command; the help text is that of `app`."""
    torchrun.check_command(context.invoked_subcommand)


for group, commands in GROUPS.items():
    for command in commands:
        app.command(rich_help_panel=group)(command)
app.add_typer(data.app, name="data", rich_help_panel="For research")
for registered in (*app.registered_commands, *data.app.registered_commands):
    # A terminal breaks the lines of a paragraph anew: those of the source would show between.
    paragraphs = (getattr(registered.callback, "__doc__", None) or "").split("\n\n")
    registered.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def main() -> None:
    """Run a command; report errors in the input in one sentence, without a traceback."""
    torchrun.silence_others()
    if sys.stdout is None:  # closed by the shell
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files need not be UTF-8
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except FewmoreError as error:
        _print_error(str(error))
        sys.exit(2)
    except OSError as error:
        if error.filename is not None:
            _print_error(
                f"{error.filename} cannot be used ({error.strerror}): "
                "check its name, and who may read and write there"
            )
            sys.exit(2)
        _check_stdout_failed(error)
        sys.exit(1)


def _print_error(text: str) -> None:
    typer.secho(f"fewmore: {torchrun.process_prefix()}{text}", err=True, fg="red")


def _check_stdout_failed(error: OSError) -> None:
    """Say that stdout cannot be written, or raise the error if that is not what failed."""
    try:
        print(flush=True)  # a traceback follows if this can be written
    except OSError:
        # Or the interpreter tries once more when it ends, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:  # a reader that has enough, such as head, is no problem
            reason = error.strerror or error
            typer.secho(
                f"fewmore: the output cannot be written ({reason}): send it to another place",
                err=True,
                fg="red",
            )
        return
    raise error
