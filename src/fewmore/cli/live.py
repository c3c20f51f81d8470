"""Show the progress of experiments: a bar a run, and accuracy session by session."""

import re
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fewmore.data.benchmarks import Task
from fewmore.research.experiment import Experiment, run_name
from fewmore.research.protocol import Outcome
from fewmore.research.runner import Watcher
from fewmore.training.runtime import Round

IMAGES = "images"  # names of the bars that are not of runs
RUNS = "runs"
LINES = 10  # for the rounds of a stage, where there is no terminal


def progress_bars(out: Console) -> Progress:
    """Return bars with a state and a time each; they are hidden where there is no terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(30),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=out, disable=not out.is_terminal)


def _state(report: Round) -> str:
    if report.stage.endswith("(shared)"):
        return report.stage  # trained by another run, so that there is no loss to show
    return f"{report.stage} {report.round}/{report.rounds}, loss {report.loss:.3f}"


def _loss(run: str, reason: str) -> str:
    return f"{run} lost its worker and goes on from its checkpoint ({reason})"


def heading(experiments: Sequence[Experiment], place: str) -> str:
    """Say in rich's markup which methods are run, on what, and where."""
    methods = ", ".join(f"[bold]{escape(each.method)}[/bold]" for each in experiments)
    recipes = dict.fromkeys(each.recipe.name for each in experiments)
    backbones = dict.fromkeys(each.recipe.backbone for each in experiments)
    names = [run_name(*pair) for each in experiments for pair in each.runs()]
    runs = f"{len(names)} runs" if len(names) > 1 else names[0]
    return (
        f"{methods} on [bold]{escape(experiments[0].benchmark)}[/bold]: "
        f"recipe {', '.join(recipes)}, {', '.join(backbones)}, {runs}, {place}"
    )


class LiveWatcher(Watcher):
    """Draw the progress of one experiment in place.

    Without a terminal, print a line a session, and at most ten for the rounds of a stage.
    """

    def __init__(self, out: Console, experiment: Experiment, device: str) -> None:
        self.out = out
        self.experiment = experiment
        self.device = device
        self.names = [run_name(*pair) for pair in experiment.runs()]
        self.accuracies: dict[str, list[float]] = {name: [] for name in self.names}
        self.sessions = 0
        self.progress = progress_bars(out)
        self.bars: dict[str, TaskID] = {}
        self.live = Live(console=out, refresh_per_second=4, transient=True)
        self.lock = threading.Lock()
        self.training = False  # whether it has begun

    def __enter__(self) -> "LiveWatcher":
        self.out.print(heading([self.experiment], self.device))
        self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.live.stop()

    def on_task(self, task: Task) -> None:
        """Print what the runs are about."""
        with self.lock:
            self.sessions = len(task.split.sessions)
            self.out.print(
                f"{len(task.train):,} training and {len(task.test):,} test images; "
                f"{task.benchmark.describe_sessions()} "
                f"({task.split.name.partition(':')[0]})"
            )

    def on_round(self, run: str, report: Round) -> None:
        """Move the bar of a run, or print a line."""
        with self.lock:
            if not self.training:
                self.training = True
                # A run ends in a report, whose code takes a second to import: it is imported in
                # the background, now that training has begun.
                report_module = "fewmore.research.reporting.html"
                threading.Thread(target=import_module, args=(report_module,)).start()
            if not self.out.is_terminal and report.round % -(-report.rounds // LINES) == 0:
                self.out.print(f"{run} {_state(report)}", markup=False)
            self.progress.update(
                self._bar(run), total=report.rounds, completed=report.round, state=_state(report)
            )
            self._draw()

    def on_session(self, run: str, outcome: Outcome) -> None:
        """Show the accuracy of the session."""
        with self.lock:
            self.accuracies[run] = outcome.summary().accuracy.tolist()
            if not self.out.is_terminal:
                accuracy = self.accuracies[run][-1]
                self.out.print(f"{run} session {outcome.sessions - 1}: {accuracy:.2f} %")
            if outcome.sessions == self.sessions:
                self._remove_bar(run)
            self._draw()

    def on_loss(self, run: str, reason: str) -> None:
        """Say that a run goes on elsewhere."""
        with self.lock:
            self.out.print(_loss(run, reason), markup=False, soft_wrap=True)

    def _bar(self, name: str) -> TaskID:
        if name not in self.bars:
            self.bars[name] = self.progress.add_task(name, state="")
        return self.bars[name]

    def _remove_bar(self, name: str) -> None:
        if name in self.bars:
            self.progress.remove_task(self.bars.pop(name))

    def _draw(self) -> None:
        table = Table("accuracy, %", *map(str, range(self.sessions)), box=None, header_style="bold")
        for name, accuracies in self.accuracies.items():
            if accuracies:
                table.add_row(name, *(f"{value:.2f}" for value in accuracies))
        shown = Group(table, self.progress) if any(self.accuracies.values()) else self.progress
        self.live.update(shown)


class StudyWatcher:
    """Draw the progress of many experiments: a bar over all runs, and one for each active run.

    Without a terminal, print a line when a run begins a stage, and one when it ends.
    """

    def __init__(self, out: Console) -> None:
        self.out = out
        self.runs = 0
        self.done = 0
        self.progress = progress_bars(out)
        self.bars: dict[str, TaskID] = {}
        self.reported: set[tuple[str, str]] = set()  # runs and their stages
        self.began = time.monotonic()
        self.lock = threading.Lock()

    def __enter__(self) -> "StudyWatcher":
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for bar in self.progress.task_ids:  # printed lines stay, bars do not
            self.progress.remove_task(bar)
        self.progress.stop()

    def expect(self, runs: int) -> None:
        """Set the number of runs that will be done."""
        self.runs = runs
        if runs:
            self.move(RUNS, 0, runs, "")

    def of(self, label: str) -> Watcher:
        """Return the watcher of one experiment."""
        return _ExperimentWatcher(self, label)

    def on_load(self, done: int, total: int) -> None:
        """Move the bar of images."""
        self.move(IMAGES, done, total, f"{done:,} of {total:,}")
        if done == total:
            self.remove(IMAGES)

    def move(self, name: str, done: int, total: int, state: str) -> None:
        """Move a bar, which is added if it is new."""
        with self.lock:
            if name not in self.bars:
                self.bars[name] = self.progress.add_task(name, state="")
            self.progress.update(self.bars[name], total=total, completed=done, state=state)

    def remove(self, name: str) -> None:
        """Remove a bar."""
        with self.lock:
            if name in self.bars:
                self.progress.remove_task(self.bars.pop(name))

    def begin(self, name: str, stage: str) -> None:
        """Report once that a run is in a stage; all its sessions are one stage."""
        kind = re.sub(r" \d+.*", "s", stage)
        with self.lock:
            if (name, kind) not in self.reported and not self.out.is_terminal:
                self._print(f"{name}: {kind}")
            self.reported.add((name, kind))

    def finish(self, name: str, accuracy: list[float]) -> None:
        """Report that a run is over."""
        self.remove(name)
        with self.lock:
            self.done += 1
            self._print(f"{name}: " + " ".join(f"{value:.2f}" for value in accuracy))
        self.move(RUNS, self.done, self.runs, f"{self.done} of {self.runs}")

    def _print(self, text: str) -> None:
        """Print a line, with what a bar would show if there are no bars."""
        if not self.out.is_terminal:
            elapsed = timedelta(seconds=int(time.monotonic() - self.began))
            text += f" ({self.done} of {self.runs} runs done, {elapsed})"
        self.out.print(text, markup=False, soft_wrap=True)


class _ExperimentWatcher(Watcher):
    """Pass on the progress of one experiment, under its label."""

    def __init__(self, study: StudyWatcher, label: str) -> None:
        self.study = study
        self.label = label
        self.sessions = 0

    def on_task(self, task: Task) -> None:
        self.sessions = len(task.split.sessions)

    def on_round(self, run: str, report: Round) -> None:
        name = f"{self.label}, {run}"
        self.study.begin(name, report.stage)
        self.study.move(name, report.round, report.rounds, _state(report))

    def on_session(self, run: str, outcome: Outcome) -> None:
        if outcome.sessions == self.sessions:
            accuracy = outcome.summary().accuracy.tolist()
            self.study.finish(f"{self.label}, {run}", accuracy)

    def on_loss(self, run: str, reason: str) -> None:
        self.study.out.print(_loss(f"{self.label}, {run}", reason), markup=False, soft_wrap=True)
