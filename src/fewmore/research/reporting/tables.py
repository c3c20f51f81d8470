"""Build tables of results, to be written as CSV, Markdown or LaTeX (formats.py) or on a terminal.

A table holds one benchmark with one sequence of sessions. A measured row is the mean over its runs,
with the standard deviation beside it; the published row of the same method follows it. Numbers
without sessions are a grid of named rows.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fewmore.research import metrics, published
from fewmore.research.published import PublishedRow, follows_protocol, published_row
from fewmore.research.results import SHARED_STAGE1, RunResult, names

# The columns after the sessions; base, novel and harmonic are those of the last session.
SUMMARY = ("average", "PD", "base", "novel", "harmonic", "gAcc")
# An extra column: how much smaller a method's performance drop is than the row's.
IMPROVEMENT = "relative improvement"


@dataclass(frozen=True)
class Cell:
    """Hold a number and its standard deviation over runs; None where there is none."""

    mean: float | None = None
    std: float | None = None
    signed: bool = False  # whether a plus is written

    @property
    def text(self) -> str:
        """Return the mean as it is written."""
        return ("+" if self.signed and (self.mean or 0) > 0 else "") + number(self.mean)


@dataclass(frozen=True)
class Row:
    """Hold a method's numbers in the order of the table's columns, and where they come from."""

    name: str
    source: str  # "measured" or "published"
    detail: str  # runs and what is kept of old images, or the backbone
    cells: tuple[Cell, ...]
    recipe: str | None = None
    split: str | None = None
    runs: int | None = None
    reference: bool = False  # whether it trains on all images, and so competes with no other

    @property
    def label(self) -> str:
        """Return the name, marked if the numbers are published ones."""
        return self.name if self.source == "measured" else f"{self.name}, published"

    @property
    def full_label(self) -> str:
        """Return the label, with the detail in brackets."""
        return f"{self.label} ({self.detail})" if self.detail else self.label


@dataclass(frozen=True)
class Table:
    """Hold rows that can be compared, under one title."""

    benchmark: str
    title: str
    sessions: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    more: tuple[str, ...] = ()  # columns after the summary

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns: sessions, summary, and more."""
        return (*map(str, range(self.sessions)), *SUMMARY, *self.more)


@dataclass(frozen=True)
class Grid:
    """Hold numbers by named rows and columns, under one title."""

    title: str
    corner: str  # the heading of the rows' names
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    notes: tuple[str, ...] = ()


def number(value: float | None) -> str:
    """Format with two decimals and no minus before a zero; a dash stands for None."""
    return "–" if value is None else f"{round(value, 2) + 0.0:.2f}"


def mean_cell(values: Sequence[float | None]) -> Cell:
    """Return the mean and standard deviation over runs, as far as they are defined."""
    mean, std = metrics.mean_std([math.nan if value is None else value for value in values])
    return Cell(None if math.isnan(mean) else float(mean), None if math.isnan(std) else float(std))


def groups(results: Iterable[RunResult]) -> list[list[RunResult]]:
    """Group results that fit in one table: same benchmark, same classes in each session."""
    grouped: dict[tuple[object, ...], list[RunResult]] = {}
    for result in results:
        key = (result.benchmark, *(size.classes for size in result.sessions))
        grouped.setdefault(key, []).append(result)
    return list(grouped.values())


def published_rows(
    results: Sequence[RunResult], *, with_published: bool = True, all_published: bool = False
) -> list[PublishedRow]:
    """Return the published rows to show with one group of results.

    They are those of the same methods, or all of the benchmark.
    """
    rows = [published_row(result) for result in results] if with_published or all_published else []
    if all_published and follows_protocol(results[0]):
        benchmark = results[0].benchmark
        rows += [*published.published(benchmark).values(), *published.later(benchmark).values()]
    return list(dict.fromkeys(row for row in rows if row))


def build(
    results: Sequence[RunResult],
    *,
    with_published: bool = True,
    all_published: bool = False,
    labels: Sequence[str] | None = None,
    improvement_of: str | None = None,
) -> Table:
    """Build the table of one group of results, each followed by its method's published row.

    Args:
        results: one group, as `groups` returns it.
        with_published: whether the published rows of the same methods are shown.
        all_published: whether all published rows of the benchmark are shown, at the end.
        labels: names of the results, where their methods' names do not say enough.
        improvement_of: a method whose performance drop is subtracted from that of each row,
            measured from measured and published from published.
    """
    labels = labels or names(results)
    beside = published_rows(results, with_published=with_published, all_published=all_published)
    remaining = list(beside)
    rows: list[Row] = []
    for i, (result, label) in enumerate(zip(results, labels, strict=True)):
        rows.append(_measured_row(result, label))
        theirs = published_row(result)
        # A published row follows the last result that it belongs to.
        if theirs in remaining and theirs not in map(published_row, results[i + 1 :]):
            remaining.remove(theirs)
            rows.append(_published_row(theirs))
    rows += map(_published_row, remaining)
    first = results[0]
    notes = (*_std_notes(results, labels), *shared_stage1_notes(results), *_source_notes(beside))
    table = Table(first.benchmark, title(first), len(first.sessions), tuple(rows), notes)
    return _add_improvement(table, results, beside, improvement_of) if improvement_of else table


def _add_improvement(
    table: Table, results: Sequence[RunResult], beside: Sequence[PublishedRow], method: str
) -> Table:
    """Add the paper's "our relative improvement": each row's drop minus the method's own."""
    place = table.columns.index("PD")
    measured = [mean_cell(result.pd).mean for result in results if result.method == method]
    published = [row.pd for row in beside if row.method == method]
    own_drop = {
        "measured": next(iter(measured), None),
        "published": next(iter(published), None),
    }

    def improvement(row: Row) -> Cell:
        drop = row.cells[place].mean
        own = own_drop[row.source]
        if drop is None or own is None or drop == own:
            return Cell()
        return Cell(drop - own, signed=True)

    rows = tuple(replace(row, cells=(*row.cells, improvement(row))) for row in table.rows)
    note = (
        f"{IMPROVEMENT}: the row's PD minus that of {method}, "
        "measured minus measured, published minus published"
    )
    return replace(table, rows=rows, notes=(*table.notes, note), more=(IMPROVEMENT,))


def title(result: RunResult) -> str:
    """Describe the benchmark and its sessions: "cifar100: 60 classes, then 8 sessions of 5"."""
    seen = [size.classes for size in result.sessions]
    if len(seen) == 1:
        return f"{result.benchmark}: {seen[0]} classes"
    steps = {after - before for before, after in pairwise(seen)}
    size = f"of {steps.pop()}" if len(steps) == 1 else f"up to {seen[-1]}"
    sessions = f"{len(seen) - 1} session{'s' if len(seen) > 2 else ''}"
    return f"{result.benchmark}: {seen[0]} classes, then {sessions} {size}"


def _measured_row(result: RunResult, name: str) -> Row:
    columns: list[Sequence[float | None]] = list(zip(*result.accuracy, strict=True))
    columns += [result.average, result.pd]
    columns += [
        [run[-1] for run in table] for table in (result.base, result.novel, result.harmonic)
    ]
    columns.append(result.gacc)
    return Row(
        name,
        "measured",
        ", ".join(filter(None, (_describe_runs(result), _describe_memory(result)))),
        tuple(map(mean_cell, columns)),
        result.recipe,
        result.split,
        result.runs,
        reference=result.method == "joint",
    )


def _published_row(row: PublishedRow) -> Row:
    summary = [Cell(row.average), Cell(row.pd), *[Cell()] * (len(SUMMARY) - 2)]
    return Row(row.name, "published", row.backbone or "", (*map(Cell, row.sessions), *summary))


def _describe_runs(result: RunResult) -> str:
    """Count the runs, by seeds and draws where they are a full grid."""
    seeds = len(set(result.seeds))
    draws = len(set(result.draws))
    if seeds * draws == result.runs > 1:
        counts = ((seeds, "seeds"), (draws, "draws"))
        return " × ".join(f"{count} {kind}" for count, kind in counts if count > 1)
    return "1 run" if result.runs == 1 else f"{result.runs} runs"


def _describe_memory(result: RunResult) -> str:
    """Describe what a method keeps of old images, without which no comparison is fair."""
    counts = [run[-1] for run in result.extra.get("images_kept", ()) if run[-1] is not None]
    if counts:
        return f"keeps {max(counts):,.0f} images"
    return f"keeps {result.keeps}" if result.keeps else ""


def _std_notes(results: Sequence[RunResult], labels: Sequence[str]) -> list[str]:
    notes = []
    if any(result.runs > 1 for result in results):
        notes.append("±: standard deviation over runs (n − 1)")
    for result, label in zip(results, labels, strict=True):
        over_seeds = metrics.std_within(result.last, fixed=result.draws)
        over_draws = metrics.std_within(result.last, fixed=result.seeds)
        several_of_both = len(set(result.seeds)) > 1 and len(set(result.draws)) > 1
        if several_of_both and not math.isnan(over_seeds + over_draws):
            notes.append(
                f"{label}, last session: ± {over_seeds:.2f} over seeds with the draw fixed, "
                f"± {over_draws:.2f} over draws"
            )
    return notes


def seconds_text(result: RunResult) -> str:
    """Format the mean seconds of a run; say if stage 1 was shared, and if it is not counted."""
    seconds = mean_cell(result.total_seconds).mean
    if seconds is None:
        return "–"
    shared = [times[SHARED_STAGE1] for times in result.seconds if SHARED_STAGE1 in times]
    if not shared:
        return f"{seconds:.0f}"
    return f"{seconds:.0f} ({'stage 1 shared' if min(shared) else 'without the shared stage 1'})"


def shared_stage1_notes(results: Sequence[RunResult]) -> list[str]:
    """Say how many runs took over stage 1 from another run, and whether its seconds are known."""
    times = [run[SHARED_STAGE1] for r in results for run in r.seconds if SHARED_STAGE1 in run]
    counted = sum(seconds > 0 for seconds in times)
    notes = []
    if counted:
        runs = "1 run" if counted == 1 else f"{counted} runs"
        notes.append(f"stage 1 was shared by {runs}; its seconds are counted in each")
    if len(times) > counted:  # in results from before the seconds were recorded
        missing = len(times) - counted
        runs = "1 run" if missing == 1 else f"{missing} runs"
        notes.append(f"stage 1 was shared by {runs}, whose seconds do not include it")
    return notes


def _source_notes(rows: Sequence[PublishedRow]) -> list[str]:
    notes = []
    if rows:
        notes.append(f"published: {published.source()}")
    if any(row.backbone for row in rows):
        notes.append(f"published, with a backbone: {published.later_note()}")
    return notes
