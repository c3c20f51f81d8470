"""Declare the arguments and options of the commands that use a model file."""

from pathlib import Path
from typing import Annotated

import typer

ModelFile = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A model file, such as birds.fewmore.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SkipBroken = Annotated[
    bool, typer.Option("--skip-broken", help="Leave out images that cannot be read, and say which.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
