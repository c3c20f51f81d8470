"""What a person sees while an experiment runs: a bar a run, and accuracy session by session."""

import os
import re
import threading
import time
from datetime import timedelta
from importlib import import_module
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fewmore.data.benchmarks import Task
from fewmore.research.protocol import Outcome
from fewmore.research.runner import Experiment, Watcher, run_name
from fewmore.training.loop import Round


def console() -> Console:
    """The terminal, or a page of 120 columns where output goes to a file."""
    out = Console(highlight=False)
    return (
        out if out.is_terminal or "COLUMNS" in os.environ else Console(width=120, highlight=False)
    )


def progress_bars(out: Console) -> Progress:
    """A bar for each thing that is under way, with its state and its time; nothing where there is no terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(30),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=out, disable=not out.is_terminal)


class LiveWatcher(Watcher):
    """Draws progress in place on a terminal; elsewhere prints one line a session."""

    def __init__(self, out: Console, experiment: Experiment, device: object) -> None:
        self.out, self.experiment, self.device = out, experiment, device
        self.names = [run_name(*pair) for pair in experiment.runs()]
        self.rows: dict[str, list[float]] = {name: [] for name in self.names}
        self.sessions = 0
        self.task: Task | None = None  # once it is loaded
        self.progress = progress_bars(out)
        self.bars: dict[str, TaskID] = {}
        self.live = Live(console=out, refresh_per_second=4, transient=True)
        self.lock = threading.Lock()
        self.under_way = False  # training has begun

    def __enter__(self) -> "LiveWatcher":
        r = self.experiment.recipe
        runs = f"{len(self.names)} runs" if len(self.names) > 1 else self.names[0]
        self.out.print(
            f"[bold]{escape(self.experiment.method)}[/bold] on [bold]{escape(self.experiment.benchmark)}[/bold]: "
            f"recipe {r.name}, {r.backbone}, {runs}, {self.device}"
        )
        self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.live.stop()

    def on_load(self, done: int, total: int) -> None:
        with self.lock:
            bar = self._bar("images")
            self.progress.update(bar, total=total, completed=done, state=f"{done:,} of {total:,}")
            self._draw()

    def on_task(self, task: Task) -> None:
        with self.lock:
            if "images" in self.bars:
                self.progress.remove_task(self.bars.pop("images"))
            self.task = task
            self.sessions = len(task.split.sessions)
            b = task.benchmark
            later = f"{self.sessions - 1} session" + ("" if self.sessions == 2 else "s")
            self.out.print(
                f"{len(task.train):,} training and {len(task.test):,} test images; {b.base} base classes, "
                f"then {later} of {b.way}-way {b.shot}-shot ({task.split.name.partition(':')[0]})"
            )

    def on_round(self, run: str, report: Round) -> None:
        with self.lock:
            if not self.under_way:
                self.under_way = True
                # A run ends in a report. What draws it takes a second to import: meanwhile, now that a GPU is at work.
                threading.Thread(
                    target=import_module, args=("fewmore.research.reporting.html",)
                ).start()
            bar = self._bar(run)
            state = f"{report.stage} {report.round}/{report.rounds}, loss {report.loss:.3f}"
            self.progress.update(bar, total=report.rounds, completed=report.round, state=state)
            self._draw()

    def on_session(self, run: str, outcome: Outcome) -> None:
        with self.lock:
            self.rows[run] = outcome.summary().accuracy.tolist()
            if not self.out.is_terminal:
                self.out.print(f"{run} session {outcome.sessions - 1}: {self.rows[run][-1]:.2f} %")
            if run in self.bars and outcome.sessions == self.sessions:
                self.progress.remove_task(self.bars.pop(run))
            self._draw()

    def _bar(self, name: str) -> TaskID:
        if name not in self.bars:
            self.bars[name] = self.progress.add_task(name, state="")
        return self.bars[name]

    def _draw(self) -> None:
        table = Table("accuracy, %", *map(str, range(self.sessions)), box=None, header_style="bold")
        for name, row in self.rows.items():
            if row:
                table.add_row(name, *(f"{value:.2f}" for value in row))
        self.live.update(Group(table, self.progress) if any(self.rows.values()) else self.progress)


class StudyWatcher:
    """Draws the progress of many experiments: one bar over all runs, and one for each run that is under way.

    Where there is no terminal, it prints a line when a run begins a stage, and one when it ends.
    """

    def __init__(self, out: Console) -> None:
        self.out, self.runs = out, 0
        self.progress = progress_bars(out)
        self.bars: dict[str, TaskID] = {}
        self.done = 0
        self.begun: set[tuple[str, str]] = set()  # runs and their stages
        self.since = time.monotonic()
        self.lock = threading.Lock()

    def __enter__(self) -> "StudyWatcher":
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for bar in self.progress.task_ids:  # what was said remains, the bars do not
            self.progress.remove_task(bar)
        self.progress.stop()

    def expect(self, runs: int) -> None:
        """So many runs will be done."""
        self.runs = runs
        if runs:
            self.move("runs", 0, runs, "")

    def of(self, label: str) -> Watcher:
        """Who is told of one experiment."""
        return _StudyRun(self, label)

    def on_load(self, done: int, total: int) -> None:
        self.move("images", done, total, f"{done:,} of {total:,}")
        if done == total:
            self.remove("images")

    def move(self, name: str, done: int, total: int, state: str) -> None:
        with self.lock:
            if name not in self.bars:
                self.bars[name] = self.progress.add_task(name, state="")
            self.progress.update(self.bars[name], total=total, completed=done, state=state)

    def remove(self, name: str) -> None:
        with self.lock:
            if name in self.bars:
                self.progress.remove_task(self.bars.pop(name))

    def begin(self, name: str, stage: str) -> None:
        """A run is in a stage; all its sessions are one."""
        kind = re.sub(r" \d+.*", "s", stage)
        with self.lock:
            if (name, kind) not in self.begun and not self.out.is_terminal:
                self._say(f"{name}: {kind}")
            self.begun.add((name, kind))

    def finish(self, name: str, accuracy: list[float]) -> None:
        """A run is over."""
        self.remove(name)
        with self.lock:
            self.done += 1
            self._say(f"{name}: " + " ".join(f"{value:.2f}" for value in accuracy))
        self.move("runs", self.done, self.runs, f"{self.done} of {self.runs}")

    def _say(self, text: str) -> None:
        """A line, with what a bar would show where there are bars."""
        passed = timedelta(seconds=int(time.monotonic() - self.since))
        state = "" if self.out.is_terminal else f" ({self.done} of {self.runs} runs done, {passed})"
        self.out.print(text + state, markup=False, soft_wrap=True)


class _StudyRun(Watcher):
    """Passes on what happens in one experiment, under its label."""

    def __init__(self, study: StudyWatcher, label: str) -> None:
        self.study, self.label = study, label
        self.sessions = 0

    def on_task(self, task: Task) -> None:
        self.sessions = len(task.split.sessions)

    def on_round(self, run: str, report: Round) -> None:
        state = f"{report.stage} {report.round}/{report.rounds}, loss {report.loss:.3f}"
        self.study.begin(f"{self.label}, {run}", report.stage)
        self.study.move(f"{self.label}, {run}", report.round, report.rounds, state)

    def on_session(self, run: str, outcome: Outcome) -> None:
        if outcome.sessions == self.sessions:
            self.study.finish(f"{self.label}, {run}", outcome.summary().accuracy.tolist())
