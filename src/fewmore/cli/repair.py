"""Define `fewmore repair`: save what can be read of damaged changes."""

from pathlib import Path
from typing import Annotated

import typer

from fewmore.classifier.text import count_noun
from fewmore.cli.terminal import plain

MOST_NAMED = 10  # changes that are listed


def repair(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A model file, such as birds.fewmore.", show_default=False
        ),
    ],
) -> None:
    """Save what can be read of the changes that `fewmore serve` stored beside a model file.

    For changes that were damaged on the disk. Whole ones are applied to the model file, and the
    files of before are kept in a folder beside it. Nothing is done where nothing is stored.

    Example: fewmore repair birds.fewmore
    """
    from fewmore.service.repair import repair as run

    report = run(model)
    out = plain()
    if report.kept is None:
        out.print(f"no changes are stored beside {model}: nothing was done")
        return
    out.print(f"{count_noun(len(report.saved), 'change')} saved, {report.lost} could not be read")
    for change in report.saved[:MOST_NAMED]:
        out.print(f"  {change}")
    if len(report.saved) > MOST_NAMED:
        out.print(f"  and {len(report.saved) - MOST_NAMED} more")
    out.print(f"the files of before are in {report.kept}: remove it when all is well")
