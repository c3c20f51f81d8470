"""Results as tables: one description of a table, and CSV, Markdown and LaTeX made from it.

A table holds one benchmark with one sequence of sessions. A measured row is the mean over its runs, with the standard
deviation beside it; the published row of the same method follows it. What has no sessions is a grid of named rows.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fewmore.research import metrics, published
from fewmore.research.published import PublishedRow
from fewmore.research.results import RunResult, follows_protocol, names, published_row

SUMMARY = (
    "average",
    "PD",
    "base",
    "novel",
    "harmonic",
    "gAcc",
)  # the columns after the sessions; base, novel, harmonic: last session
IMPROVEMENT = (
    "relative improvement"  # a column more: how much smaller a method's drop is than the row's
)


@dataclass(frozen=True)
class Cell:
    """A number and its spread over runs; None where there is none."""

    mean: float | None = None
    std: float | None = None
    signed: bool = False  # whether a plus is written

    @property
    def text(self) -> str:
        """The mean as it is written."""
        return ("+" if self.signed and (self.mean or 0) > 0 else "") + number(self.mean)


@dataclass(frozen=True)
class Row:
    """A method: what it is, where its numbers come from, and the numbers in the order of the table's columns."""

    name: str
    source: str  # "measured" or "published"
    detail: str  # runs and what is kept of old images, or the backbone
    cells: tuple[Cell, ...]
    recipe: str | None = None
    split: str | None = None
    runs: int | None = None
    reference: bool = False  # whether it trains on all images, and is no rival

    @property
    def label(self) -> str:
        """The name, marked where the numbers are not ours."""
        return self.name if self.source == "measured" else f"{self.name}, published"

    @property
    def full_label(self) -> str:
        """The label, with the detail in brackets."""
        return f"{self.label} ({self.detail})" if self.detail else self.label


@dataclass(frozen=True)
class Table:
    """Rows that can be compared, under one title."""

    benchmark: str
    title: str
    sessions: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    more: tuple[str, ...] = ()  # columns after the summary

    @property
    def columns(self) -> tuple[str, ...]:
        return (*map(str, range(self.sessions)), *SUMMARY, *self.more)


@dataclass(frozen=True)
class Grid:
    """Numbers by named rows and columns, under one title."""

    title: str
    corner: str  # what the names of the rows are
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    notes: tuple[str, ...] = ()


# ---- from results to tables


def groups(results: Iterable[RunResult]) -> list[list[RunResult]]:
    """Results that can stand in one table: of one benchmark, with as many classes in each session."""
    found: dict[tuple[object, ...], list[RunResult]] = {}
    for result in results:
        found.setdefault(
            (result.benchmark, *(size.classes for size in result.sessions)), []
        ).append(result)
    return list(found.values())


def published_rows(
    results: Sequence[RunResult], *, with_published: bool = True, all_published: bool = False
) -> list[PublishedRow]:
    """The published rows to show with one group of results: those of the same methods, or all of the benchmark."""
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
    """The table of one group of results, each followed by the published row of its method, and all others at the end.

    `labels` name the results where their methods' names do not say enough. `improvement_of` is a method whose drop is held against
    all others': measured against measured, published against published.
    """
    beside = published_rows(results, with_published=with_published, all_published=all_published)
    rows: list[Row] = []
    left = list(beside)
    for i, (result, name) in enumerate(zip(results, labels or names(results), strict=True)):
        rows.append(_measured(result, name))
        theirs = published_row(result)
        if theirs in left and theirs not in map(
            published_row, results[i + 1 :]
        ):  # below the last that it belongs to
            left.remove(theirs)
            rows.append(_published(theirs))
    rows += map(_published, left)
    notes = _spread_notes(results, labels or names(results))
    if beside:
        notes.append(f"published: {published.source()}")
    if any(row.backbone for row in beside):
        notes.append(f"published, with a backbone: {published.later_note()}")
    made = Table(
        results[0].benchmark, title(results[0]), len(results[0].sessions), tuple(rows), tuple(notes)
    )
    return _with_improvement(made, results, beside, improvement_of) if improvement_of else made


def _with_improvement(
    table: Table, results: Sequence[RunResult], beside: Sequence[PublishedRow], method: str
) -> Table:
    """The table with the drop of each row minus the method's own drop: the paper's "our relative improvement"."""
    place = table.columns.index("PD")
    measured = next((spread(result.pd).mean for result in results if result.method == method), None)
    own = {
        "measured": measured,
        "published": next((row.pd for row in beside if row.method == method), None),
    }

    def improvement(row: Row) -> Cell:
        drop, least = row.cells[place].mean, own[row.source]
        return (
            Cell()
            if drop is None or least is None or drop == least
            else Cell(drop - least, signed=True)
        )

    rows = tuple(replace(row, cells=(*row.cells, improvement(row))) for row in table.rows)
    note = f"{IMPROVEMENT}: the row's PD minus that of {method}, measured minus measured, published minus published"
    return replace(table, rows=rows, notes=(*table.notes, note), more=(IMPROVEMENT,))


def title(result: RunResult) -> str:
    """The benchmark and its sessions: "cifar100: 60 classes, then 8 sessions of 5"."""
    seen = [size.classes for size in result.sessions]
    if len(seen) == 1:
        return f"{result.benchmark}: {seen[0]} classes"
    steps = {after - before for before, after in pairwise(seen)}
    size = f"of {steps.pop()}" if len(steps) == 1 else f"up to {seen[-1]}"
    return f"{result.benchmark}: {seen[0]} classes, then {len(seen) - 1} session{'s' if len(seen) > 2 else ''} {size}"


def _measured(result: RunResult, name: str) -> Row:
    columns: list[Sequence[float | None]] = list(zip(*result.accuracy, strict=True))
    columns += [result.average, result.pd]
    columns += [
        [run[-1] for run in table] for table in (result.base, result.novel, result.harmonic)
    ]
    columns.append(result.gacc)
    detail = ", ".join(filter(None, (_runs(result), _kept(result))))
    return Row(
        name,
        "measured",
        detail,
        tuple(map(spread, columns)),
        result.recipe,
        result.split,
        result.runs,
        result.method == "joint",
    )


def spread(values: Sequence[float | None]) -> Cell:
    """The mean over runs and its deviation, as far as they are defined."""
    mean, std = metrics.mean_std([math.nan if value is None else value for value in values])
    return Cell(None if math.isnan(mean) else float(mean), None if math.isnan(std) else float(std))


def _published(row: PublishedRow) -> Row:
    cells = [
        *map(Cell, row.sessions),
        Cell(row.average),
        Cell(row.pd),
        *[Cell()] * (len(SUMMARY) - 2),
    ]
    return Row(row.name, "published", row.backbone or "", tuple(cells))


def _runs(result: RunResult) -> str:
    """How many runs, by seeds and draws where they are a full grid."""
    seeds, draws = len(set(result.seeds)), len(set(result.draws))
    if seeds * draws == result.runs > 1:
        return " × ".join(
            f"{count} {what}" for count, what in ((seeds, "seeds"), (draws, "draws")) if count > 1
        )
    return "1 run" if result.runs == 1 else f"{result.runs} runs"


def _kept(result: RunResult) -> str:
    """What a method keeps of old images, in the end: it is no fair comparison without it."""
    counts = [run[-1] for run in result.extra.get("images_kept", ()) if run[-1] is not None]
    if counts:
        return f"keeps {max(counts):,.0f} images"
    return f"keeps {result.keeps}" if result.keeps else ""


def _spread_notes(results: Sequence[RunResult], labels: Sequence[str]) -> list[str]:
    notes = []
    if any(result.runs > 1 for result in results):
        notes.append("±: standard deviation over runs (n − 1)")
    for result, name in zip(results, labels, strict=True):
        over_seeds = metrics.std_within(result.last, fixed=result.draws)
        over_draws = metrics.std_within(result.last, fixed=result.seeds)
        if (
            len(set(result.seeds)) > 1
            and len(set(result.draws)) > 1
            and not math.isnan(over_seeds + over_draws)
        ):
            notes.append(
                f"{name}, last session: ± {over_seeds:.2f} over seeds with the draw fixed, ± {over_draws:.2f} over draws"
            )
    return notes


# ---- from tables to text


def number(value: float | None) -> str:
    """Two decimals and no minus before a zero, or a dash."""
    return "–" if value is None else f"{round(value, 2) + 0.0:.2f}"


def to_csv(tables: Sequence[Table]) -> str:
    """One CSV of all tables: a line a row, an empty field where there is no number, deviations in columns of their own."""
    sessions = max((table.sessions for table in tables), default=0)
    more = tuple(dict.fromkeys(name for table in tables for name in table.more))
    columns = [
        *(f"session_{i}" for i in range(sessions)),
        *(name.lower().replace(" ", "_") for name in (*SUMMARY, *more)),
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "benchmark",
            "method",
            "source",
            "recipe",
            "split",
            "runs",
            "detail",
            *columns,
            *(f"{name}_std" for name in columns),
        ]
    )
    for table in tables:
        for row in table.rows:
            known = dict(zip(table.columns, row.cells, strict=True))
            cells = [
                known.get(name, Cell()) for name in (*map(str, range(sessions)), *SUMMARY, *more)
            ]
            numbers = [*(cell.mean for cell in cells), *(cell.std for cell in cells)]
            about = [
                table.benchmark,
                row.name,
                row.source,
                row.recipe,
                row.split,
                row.runs,
                row.detail,
            ]
            writer.writerow(
                [*about, *("" if value is None else str(round(value, 4)) for value in numbers)]
            )
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """A Markdown table under its title in bold, with the notes below."""
    return grid_to_markdown(
        Grid(
            table.title,
            "method",
            table.columns,
            tuple((r.full_label, r.cells) for r in table.rows),
            table.notes,
        )
    )


def grid_to_markdown(grid: Grid) -> str:
    """A Markdown table under its title in bold, with the notes below."""
    lines = [f"**{_markdown(grid.title)}**", ""]
    lines.append("| " + " | ".join(map(_markdown, (grid.corner, *grid.columns))) + " |")
    lines.append("| --- |" + " ---: |" * len(grid.columns))
    lines += [
        "| " + " | ".join([_markdown(name), *map(_markdown_cell, cells)]) + " |"
        for name, cells in grid.rows
    ]
    lines += [line for note in grid.notes for line in ("", _markdown(note))]
    return "\n".join(lines) + "\n"


def _markdown_cell(cell: Cell) -> str:
    return cell.text + (f" ± {number(cell.std)}" if cell.std is not None else "")


def grid_to_csv(grid: Grid) -> str:
    """One line a row; deviations, where there are any, in columns of their own."""
    spread = any(cell.std is not None for _, cells in grid.rows for cell in cells)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [grid.corner, *grid.columns, *(f"{name}_std" for name in grid.columns if spread)]
    )
    for name, cells in grid.rows:
        numbers = [*(cell.mean for cell in cells), *(cell.std for cell in cells if spread)]
        writer.writerow(
            [name, *("" if value is None else str(round(value, 4)) for value in numbers)]
        )
    return text.getvalue()


def grid_to_latex(grid: Grid) -> str:
    """A LaTeX tabular in the manner of booktabs; title and notes are comments."""
    lines = [
        f"% {grid.title}",
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        "\\toprule",
    ]
    lines += [" & ".join(map(_latex, (grid.corner, *grid.columns))) + " \\\\", "\\midrule"]
    lines += [
        " & ".join([_latex(name), *map(_latex_cell, cells)]) + " \\\\" for name, cells in grid.rows
    ]
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {note}" for note in grid.notes)]
    return "\n".join(lines) + "\n"


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<\[\]])", r"\\\1", text)


def to_latex(table: Table) -> str:
    """A LaTeX tabular in the manner of booktabs, as narrow as the paper's: sessions, PD and what follows the summary.

    The best measured means of a column are bold, as far as one standard error goes. Title, details and notes are comments.
    """
    shown = [
        i
        for i, name in enumerate(table.columns)
        if i < table.sessions or name == "PD" or name in table.more
    ]
    rivals = [row for row in table.rows if row.source == "measured" and not row.reference]
    bold = {i: _best(rivals, i, lower=table.columns[i] == "PD") for i in shown}
    lines = [
        f"% {table.title}",
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * len(shown)}}}",
        "\\toprule",
    ]
    sessions = (
        f"\\multicolumn{{{table.sessions}}}{{c}}{{accuracy in each session (\\%) $\\uparrow$}}"
    )
    lines += [
        f" & {sessions} &{' &' * len(table.more)} \\\\",
        f"\\cmidrule(lr){{2-{table.sessions + 1}}}",
    ]
    heads = [
        *map(str, range(table.sessions)),
        "PD $\\downarrow$",
        *(f"\\shortstack{{{_latex(name)}}}".replace(" ", "\\\\") for name in table.more),
    ]
    lines += [" & ".join(["method", *heads]) + " \\\\", "\\midrule"]
    for row in table.rows:
        name = _latex(row.label) if row.source == "measured" else f"\\textit{{{_latex(row.label)}}}"
        texts = [_latex_cell(replace(row.cells[i], std=None)) for i in shown]
        texts = [
            f"\\textbf{{{text}}}" if row in bold[i] else text
            for i, text in zip(shown, texts, strict=True)
        ]
        lines.append(" & ".join([name, *texts]) + " \\\\")
    details = [f"{row.label}: {row.detail}" for row in table.rows if row.detail]
    about = [
        *details,
        "bold: the best measured mean, and all within one standard error of it; deviations are in the other formats",
    ]
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {note}" for note in (*about, *table.notes))]
    return "\n".join(lines) + "\n"


def _best(rows: Sequence[Row], column: int, lower: bool) -> list[Row]:
    """The rows with the best number of a column, and those within its standard error; none without rivals, or of differences."""
    found = [
        row for row in rows if row.cells[column].mean is not None and not row.cells[column].signed
    ]
    if len(found) < 2:
        return []
    sign = -1 if lower else 1
    best = max(found, key=lambda row: sign * (row.cells[column].mean or 0))
    error = (best.cells[column].std or 0) / math.sqrt(best.runs or 1)
    return [
        row
        for row in found
        if abs((row.cells[column].mean or 0) - (best.cells[column].mean or 0)) <= error
    ]


def _latex_cell(cell: Cell) -> str:
    if cell.mean is None:
        return "--"
    spread = f"\\,{{\\scriptsize$\\pm${number(cell.std)}}}" if cell.std is not None else ""
    return cell.text.replace("-", "$-$") + spread


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "×": r"$\times$",
    "–": "--",
    "±": r"$\pm$",
    "°": r"$^\circ$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
