"""Sum up a search: its table, what to make of the best trial, and the command that runs it."""

import shlex

from fewmore.errors import ConfigError
from fewmore.research.metrics import mean_std
from fewmore.research.reporting.tables import Grid, mean_cell
from fewmore.research.tuning.record import MEASURES, Record, Trial
from fewmore.research.tuning.space import Range, Space, Values, parse_range, parse_values

EDGE = 0.1  # of a range counts as its edge


def grid_of_trials(record: Record) -> Grid:
    """Return the table of all finished trials, best first, with notes on the others."""
    columns = (record.by, *(name for name in MEASURES if name != record.by))
    rows = tuple(
        (trial.name, tuple(mean_cell(trial.measures[name]) for name in columns))
        for trial in record.ranked
    )
    search = record.search
    title = f"{search['method']} on {search['benchmark']}; split: {record.split}; by {record.by}"
    return Grid(title, "trial", columns, rows, tuple(_notes(record)))


def _notes(record: Record) -> list[str]:
    notes = [
        "accuracy in %, on held-out training images of the base classes; "
        "base, novel and harmonic are those of the last session"
    ]
    close = _close_trials(record)
    if record.best is not None and len(record.best.values(record.by)) < 2:
        notes.append("one run each: how much runs differ is not known; --seeds 3 says more")
    elif close:
        trials = "trial is" if len(close) == 1 else "trials are"
        notes.append(f"{len(close)} more {trials} within one standard deviation of the best")
    notes += edge_notes(record)
    waiting = len(record.trials) - len(record.ranked) - len(record.failed)
    if waiting:
        notes.append(f"{waiting} of {len(record.trials)} trials have not been run: --resume")
    notes += [f"failed: {trial.name}: {trial.error}" for trial in record.failed]
    return notes


def _close_trials(record: Record) -> list[Trial]:
    """Return the trials that are no further from the best than its standard deviation."""
    best = record.best
    if best is None or len(best.values(record.by)) < 2:
        return []
    mean, std = mean_std(best.values(record.by))
    scores = [(trial, trial.mean(record.by)) for trial in record.ranked[1:]]
    return [trial for trial, score in scores if score is not None and mean - score <= std]


def edge_notes(record: Record) -> list[str]:
    """Say for which settings the best value is the smallest or the largest that was allowed."""
    best = record.best
    if best is None:
        return []
    notes = []
    for name, values in space_of(record).items():
        side = _edge(best.settings[name], values)
        if side:
            notes.append(
                f"{name}={best.settings[name]} is at the {side} edge of what was tried "
                f"({values}): try {'smaller' if side == 'lower' else 'larger'} values too"
            )
    return notes


def space_of(record: Record) -> Space:
    """Return the values and ranges that were searched."""
    space: dict[str, str] = record.search["space"]
    return {name: _parse(f"{name}={text}") for name, text in space.items()}


def _parse(text: str) -> Values | Range:
    """Parse a range, or else values: a path may have two dots too."""
    try:
        return parse_range(text)[1]
    except ConfigError:
        return parse_values(text)[1]


def _edge(text: str, values: object) -> str:
    """Return "lower" or "upper" if a number is at that edge, else an empty text."""
    try:
        number = float(text)
        if isinstance(values, Range):
            fraction = values.fraction(number)
            return "lower" if fraction < EDGE else "upper" if fraction > 1 - EDGE else ""
        numbers = sorted(map(float, getattr(values, "texts", ())))
    except ValueError:
        return ""  # not a number
    if len(numbers) < 2:
        return ""
    return "lower" if number == numbers[0] else "upper" if number == numbers[-1] else ""


def command_of_best(record: Record) -> str:
    """Return the command that runs the best trial's settings on the benchmark; empty if none."""
    if record.best is None:
        return ""
    search = record.search
    words = ["fewmore", "run", search["benchmark"], "-m", search["method"]]
    if search["recipe"] is not None:
        words += ["--recipe", search["recipe"]]
    for name, value in search["split"].items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    changes = [*search["settings"], *(f"{n}={text}" for n, text in record.best.settings.items())]
    for change in changes:
        words += ["--set", change]
    return shlex.join(words)
