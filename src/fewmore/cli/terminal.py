"""Print on a terminal: plain text, a progress bar a stage, and how to go on after Ctrl-C."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING

import typer

from fewmore.cli import torchrun

if TYPE_CHECKING:  # rich waits until a command runs
    from rich.console import Console
    from rich.progress import Progress, TaskID

PAGE_WIDTH = 120  # columns, where output goes to a file
LINE_SECONDS = 30.0  # between two lines of progress, where output goes to a file


def plain(stderr: bool = False) -> "Console":
    """Return a console for plain text, in which names are never taken for markup and not cut."""
    from rich.console import Console

    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if "COLUMNS" in os.environ or is_terminal else PAGE_WIDTH
    return Console(
        stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=True
    )


def console(quiet: bool = False) -> "Console":
    """Return a console for tables and markup; a page of fixed width where output goes to a file.

    A quiet one prints nothing.
    """
    from rich.console import Console

    out = Console(highlight=False, emoji=False, quiet=quiet)
    if out.is_terminal or "COLUMNS" in os.environ:
        return out
    return Console(width=PAGE_WIDTH, highlight=False, emoji=False, quiet=quiet)


def json_alone(as_json: bool) -> AbstractContextManager[object]:
    """Return a context in which whatever else prints to stdout does not, if that is for JSON.

    Ray reports lost nodes there.
    """
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


@contextmanager
def interrupt_hint(hint: str | Callable[[], str]) -> Iterator[None]:
    """Print a hint if Ctrl-C is pressed, and exit as shells expect it."""
    try:
        yield
    except KeyboardInterrupt:
        if torchrun.process_number() == 0:
            typer.secho(hint if isinstance(hint, str) else hint(), err=True)
        raise typer.Exit(130) from None


@contextmanager
def stages(
    out: "Console", quiet: bool = False, patient: bool = False, rate: bool = False
) -> Iterator[Callable[[str, int, int], None]]:
    """Give a function that shows progress: a bar a stage on a terminal, elsewhere lines.

    If patient, nothing is printed elsewhere until a stage takes long. With the rate, it is said
    how many steps a second takes.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    hidden = quiet or not out.is_terminal
    with Progress(
        *columns, console=out, transient=True, disable=hidden, redirect_stdout=False
    ) as bars:
        lines = None if quiet or out.is_terminal else _Lines(out, patient)
        yield _Stages(bars, lines, rate).report


class _Stages:
    """Show how far each stage is: by a bar, and by lines where these are wanted."""

    def __init__(self, bars: "Progress", lines: "_Lines | None", rate: bool) -> None:
        self.bars = bars
        self.lines = lines
        self.rate = rate
        self.tasks: dict[str, TaskID] = {}
        self.started: dict[str, tuple[float, int]] = {}  # time and steps of the first report

    def report(self, stage: str, done: int, total: int) -> None:
        """Report that so many steps of a stage are done."""
        is_new = stage not in self.tasks
        if is_new:
            self.tasks[stage] = self.bars.add_task(stage, rate="")
            self.started[stage] = time.monotonic(), done
        rate = _steps_a_second(self.started[stage], done) if self.rate else ""
        if self.lines is not None and is_new:
            self.lines.begin(stage)
        elif self.lines is not None:
            left = _time_left(self.started[stage], done, total)
            self.lines.go_on(f"{stage}: {done:,} of {total:,}{rate}{left}")
        self.bars.update(self.tasks[stage], completed=done, total=total, rate=rate)


class _Lines:
    """Print a line as a stage begins, unless patient, and further ones while it takes long."""

    def __init__(self, out: "Console", patient: bool) -> None:
        self.out = out
        self.patient = patient
        self.printed = 0.0  # when the last line was, or the last stage began

    def begin(self, stage: str) -> None:
        """Print that a stage begins."""
        self.printed = time.monotonic()
        if not self.patient:
            self.out.print(f"{stage} …")

    def go_on(self, text: str) -> None:
        """Print a text, if the last line was long ago."""
        if time.monotonic() - self.printed >= LINE_SECONDS:
            self.printed = time.monotonic()
            self.out.print(text)


def _steps_a_second(started: tuple[float, int], done: int) -> str:
    when, already = started
    if done <= already:
        return ""
    return f", {(done - already) / (time.monotonic() - when):,.0f} a second"


def _time_left(started: tuple[float, int], done: int, total: int) -> str:
    """Estimate how long the rest of a stage takes, from its first report to now."""
    when, already = started
    if done <= already:
        return ""
    seconds = (time.monotonic() - when) / (done - already) * (total - done)
    return f", about {max(1, round(seconds / 60))} min left" if seconds >= 1 else ""
