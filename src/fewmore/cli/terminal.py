"""What a command says on a terminal: plain text, and a bar a stage."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich waits until a command runs
    from rich.console import Console


def plain(stderr: bool = False) -> "Console":
    """Plain text: names of classes and files are never taken for markup, and lines are not cut; a page is 120 columns wide."""
    from rich.console import Console

    width = (
        None if "COLUMNS" in os.environ or (sys.stderr if stderr else sys.stdout).isatty() else 120
    )
    return Console(
        stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=True
    )


@contextmanager
def stages(out: "Console", quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A bar a stage on a terminal; elsewhere a line when a stage begins."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    bars: dict[str, TaskID] = {}
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=out, transient=True, disable=quiet or not out.is_terminal
    ) as progress:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(stage)
                if not quiet and not out.is_terminal:
                    out.print(f"{stage} …")
            progress.update(bars[stage], completed=done, total=total)

        yield report
