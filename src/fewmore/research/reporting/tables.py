"""Build tables of results, to be written as CSV, Markdown or LaTeX (formats.py) or on a terminal.

A table holds one benchmark with one sequence of sessions. A measured row is the mean over its runs,
with the standard deviation beside it; the published row of the same method follows it. A computed
row, if asked for, comes first. Numbers without sessions are a grid of named rows.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fewmore.research import metrics, published
from fewmore.research.machine import BUSY
from fewmore.research.published import (
    OFFICIAL,
    PublishedRow,
    follows_protocol,
    published_row,
)
from fewmore.research.reporting import nothing_learnt
from fewmore.research.reporting.notes import (
    benchmark_notes,
    exam_notes,
    layer_notes,
    recipe_notes,
    shared_stage1_notes,
    source_notes,
    std_notes,
)
from fewmore.research.results import (
    SHARED_STAGE1,
    RunResult,
    names,
    settings_of,
    shared_settings,
)

# The columns after the sessions; base, novel and harmonic are those of the last session.
SUMMARY = ("average", "PD", "base", "novel", "harmonic", "gAcc")
# Columns of CSV and LaTeX alone, where a row's detail names views and images kept; forgetting is
# the mean over sessions.
COSTS = ("forgetting", "seconds", "views", "images kept")
# An extra column: how much smaller a method's performance drop is than the row's.
IMPROVEMENT = "relative improvement"


@dataclass(frozen=True)
class Cell:
    """Hold a number and its standard deviation over runs; None where there is none."""

    mean: float | None = None
    std: float | None = None
    signed: bool = False  # whether a plus is written
    decimals: int = 2

    @property
    def text(self) -> str:
        """Return the mean as it is written."""
        plus = "+" if self.signed and (self.mean or 0) > 0 else ""
        return plus + number(self.mean, self.decimals)


@dataclass(frozen=True)
class Row:
    """Hold a method's numbers in the order of the table's columns, and where they come from."""

    name: str
    source: str  # "measured", "published" or "computed"
    detail: str  # runs and what is kept of old images, or the backbone
    cells: tuple[Cell, ...]
    recipe: str | None = None
    settings: str | None = None  # those that were changed
    split: str | None = None
    runs: int | None = None
    costs: tuple[Cell, ...] = ()  # in the order of COSTS
    reference: bool = False  # whether it trains on all images, and so competes with no other
    # Independent runs: seeds, where there are several, as the draws of one share its stage 1.
    measurements: int | None = None

    @property
    def label(self) -> str:
        """Return the name, marked if the numbers are published ones."""
        return f"{self.name}, published" if self.source == "published" else self.name

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


def number(value: float | None, decimals: int = 2) -> str:
    """Format with no minus before a zero; a dash stands for None."""
    return "–" if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}"


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

    They are those of the same methods, or all of the benchmark. Only results of the official split
    have any.
    """
    rows = [published_row(result) for result in results] if with_published or all_published else []
    if all_published and any(map(follows_protocol, results)):
        benchmark = results[0].benchmark
        rows += [*published.published(benchmark).values(), *published.later(benchmark).values()]
    return list(dict.fromkeys(row for row in rows if row))


def build(
    results: Sequence[RunResult],
    *,
    with_published: bool = True,
    all_published: bool = False,
    labels: Sequence[str] | None = None,
    remarks: Sequence[str] | None = None,
    improvement_of: str | None = None,
    with_nothing_learnt: bool = False,
) -> Table:
    """Build the table of one group of results, each followed by its method's published row.

    Args:
        results: one group, as `groups` returns it.
        with_published: whether the published rows of the same methods are shown.
        all_published: whether all published rows of the benchmark are shown, at the end.
        labels: names of the results, where their methods' names do not say enough.
        remarks: one more detail of each result, or an empty text.
        improvement_of: a method whose performance drop is subtracted from that of each row,
            measured from measured and published from published.
        with_nothing_learnt: whether the first row is stage 1 without any later learning, computed
            from the best base session of stage 1 alone, where a result has one.
    """
    labels = labels or names(results)
    remarks = remarks or [""] * len(results)
    beside = published_rows(results, with_published=with_published, all_published=all_published)
    remaining = list(beside)
    rows = _computed_rows(results, labels) if with_nothing_learnt else []
    several_splits = len({result.split for result in results}) > 1
    for i, (result, label, remark) in enumerate(zip(results, labels, remarks, strict=True)):
        split = split_text(result) if several_splits and result.split not in label else ""
        rows.append(_measured_row(result, label, (remark, split)))
        theirs = published_row(result)
        # A published row follows the last result that it belongs to.
        if theirs in remaining and theirs not in map(published_row, results[i + 1 :]):
            remaining.remove(theirs)
            rows.append(_published_row(theirs))
    rows += map(_published_row, remaining)
    first = results[0]
    split = "several splits" if several_splits else split_text(first)
    notes = (
        *([nothing_learnt.NOTE] if any(row.source == "computed" for row in rows) else []),
        *benchmark_notes(results),
        *std_notes(results, labels),
        *recipe_notes(results, labels),
        *layer_notes(results, labels),
        *shared_stage1_notes(results),
        *exam_notes(results),
        *source_notes(beside),
    )
    full_title = heading(results, split)
    table = Table(first.benchmark, full_title, len(first.sessions), tuple(rows), notes)
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
        own = own_drop["published" if row.source == "published" else "measured"]
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


def heading(results: Sequence[RunResult], split: str) -> str:
    """Describe what all results of a table have in common."""
    return "; ".join(filter(None, (title(results[0]), split, measured_with(results))))


def measured_with(results: Sequence[RunResult]) -> str:
    """Say what all results were measured with that is not the default; empty if nothing."""
    shared = shared_settings(results)
    return f"measured with {shared}" if shared else ""


def split_text(result: RunResult) -> str:
    """Name the split: "official split", or how it was drawn."""
    return f"{OFFICIAL} split" if result.split == OFFICIAL else f"split: {result.split}"


def _measured_row(result: RunResult, name: str, remarks: Iterable[str]) -> Row:
    columns: list[Sequence[float | None]] = list(zip(*result.accuracy, strict=True))
    columns += [result.average, result.pd]
    columns += [
        [run[-1] for run in table] for table in (result.base, result.novel, result.harmonic)
    ]
    columns.append(result.gacc)
    costs = (
        mean_cell(result.mean_forgetting),
        replace(mean_cell(result.total_seconds), decimals=1),
        Cell(mean_cell(result.test_views).mean, decimals=0),
        replace(mean_cell(result.images_kept), decimals=0),
    )
    about = (_describe_runs(result), *remarks, _describe_views(result), _describe_memory(result))
    return Row(
        name,
        "measured",
        ", ".join(filter(None, about)),
        tuple(map(mean_cell, columns)),
        result.recipe,
        "; ".join(settings_of(result)),
        result.split,
        result.runs,
        costs,
        reference=result.method == "joint",
        measurements=len(set(result.seeds)) if len(set(result.seeds)) > 1 else result.runs,
    )


def _computed_rows(results: Sequence[RunResult], labels: Sequence[str]) -> list[Row]:
    """Return the row of stage 1 without any later learning, where it can be computed."""
    source = nothing_learnt.source_of(results)
    if source is None:
        return []
    label = labels[results.index(source)]
    row = _measured_row(nothing_learnt.nothing_learnt(source), nothing_learnt.NAME, ())
    detail = f"computed from the base session of {label}"
    return [replace(row, source="computed", detail=detail, costs=())]


def _published_row(row: PublishedRow) -> Row:
    summary = [Cell(row.average), Cell(row.pd), *[Cell()] * (len(SUMMARY) - 2)]
    cells = (*map(Cell, row.sessions), *summary)
    return Row(row.name, "published", row.backbone or "", cells, split=OFFICIAL)


def _describe_runs(result: RunResult) -> str:
    """Count the runs, by seeds and draws where they are a full grid."""
    seeds = len(set(result.seeds))
    draws = len(set(result.draws))
    if seeds * draws == result.runs > 1:
        counts = ((seeds, "seeds"), (draws, "draws"))
        return " × ".join(f"{count} {kind}" for count, kind in counts if count > 1)
    return "1 run" if result.runs == 1 else f"{result.runs} runs"


def _describe_views(result: RunResult) -> str:
    """Describe how many views of a test image are averaged, if it is more than one."""
    views = max((count or 1 for count in result.test_views), default=1)
    if views == 1:
        return ""
    alone = f", with one {number(mean_cell(result.one_view).mean)}" if result.one_view else ""
    return f"{views:.0f} test views{alone}"


def _describe_memory(result: RunResult) -> str:
    """Describe what a method keeps of old images, without which no comparison is fair."""
    counts = [run[-1] for run in result.extra.get("images_kept", ()) if run[-1] is not None]
    if counts:
        return f"keeps {max(counts):,.0f} images"
    return f"keeps {result.keeps}" if result.keeps else ""


def seconds_text(result: RunResult) -> str:
    """Format the mean seconds of a run; say what they do not include, or include of others."""
    seconds = mean_cell(result.total_seconds).mean
    if seconds is None:
        return "–"
    shared = [times[SHARED_STAGE1] for times in result.seconds if SHARED_STAGE1 in times]
    notes = []
    if shared:
        notes.append("stage 1 shared" if min(shared) else "without the shared stage 1")
    if result.machine.get(BUSY):
        notes.append(BUSY)
    return f"{seconds:.0f} ({', '.join(notes)})" if notes else f"{seconds:.0f}"
