"""Write tables and grids as CSV, Markdown and LaTeX."""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fewmore.research.reporting.tables import COSTS, SUMMARY, Cell, Grid, Row, Table, number

# The columns of a CSV before its numbers.
ABOUT = ("benchmark", "method", "source", "recipe", "settings", "split", "runs", "detail")
LOWER_IS_BETTER = ("PD", *COSTS)
UNRANKED = ("seconds", "views", "images kept")  # what a result cost is no contest
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "×": r"$\times$",
    "–": "--",
    "±": r"$\pm$",
    "°": r"$^\circ$",
}


def to_csv(tables: Sequence[Table]) -> str:
    """Write all tables as one CSV, a line a row.

    A field is empty where there is no number; standard deviations have columns of their own.
    """
    sessions = max((table.sessions for table in tables), default=0)
    more = tuple(dict.fromkeys(name for table in tables for name in table.more))
    summary = (*SUMMARY, *COSTS, *more)
    columns = [
        *(f"session_{i}" for i in range(sessions)),
        *(name.lower().replace(" ", "_") for name in summary),
    ]
    lines: list[list[object]] = [[*ABOUT, *columns, *(f"{name}_std" for name in columns)]]
    for table in tables:
        for row in table.rows:
            cells = [_cell(table, row, name) for name in (*map(str, range(sessions)), *summary)]
            method = (row.name, row.source, row.recipe, row.settings)
            about = (table.benchmark, *method, row.split, row.runs, row.detail)
            lines.append([*about, *_csv_numbers(cells)])
    return _csv_text(lines)


def _cell(table: Table, row: Row, column: str) -> Cell:
    """Return the number of a row in a column, an empty cell where the table has no such column."""
    cells = dict(zip(table.columns, row.cells, strict=True))
    return {**cells, **dict(zip(COSTS, row.costs, strict=False))}.get(column, Cell())


def grid_to_csv(grid: Grid) -> str:
    """Write one line a row; standard deviations, if any, in columns of their own."""
    with_std = any(cell.std is not None for _, cells in grid.rows for cell in cells)
    stds = [f"{name}_std" for name in grid.columns if with_std]
    lines: list[list[object]] = [[grid.corner, *grid.columns, *stds]]
    lines += [[name, *_csv_numbers(cells, with_std)] for name, cells in grid.rows]
    return _csv_text(lines)


def grids_to_csv(grids: Sequence[Grid]) -> str:
    """Write grids with the same columns and no deviations as one CSV; the title goes first."""
    lines: list[list[object]] = [
        ["table", grid.corner, *(name.replace(" ", "_") for name in grid.columns)]
        for grid in grids[:1]
    ]
    for grid in grids:
        for name, cells in grid.rows:
            numbers = ("" if cell.mean is None else f"{cell.mean:.6g}" for cell in cells)
            lines.append([grid.title, name, *numbers])  # a p value may be very small
    return _csv_text(lines)


def _csv_numbers(cells: Sequence[Cell], with_std: bool = True) -> list[str]:
    numbers = [*(cell.mean for cell in cells), *(cell.std for cell in cells if with_std)]
    return ["" if value is None else str(round(value, 4)) for value in numbers]


def _csv_text(lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """Write a Markdown table under its title in bold, with the notes below."""
    rows = tuple((row.full_label, row.cells) for row in table.rows)
    return grid_to_markdown(Grid(table.title, "method", table.columns, rows, table.notes))


def grid_to_markdown(grid: Grid) -> str:
    """Write a Markdown table under its title in bold, with the notes below."""
    lines = [f"**{_escape_markdown(grid.title)}**", ""]
    lines.append(_markdown_line(map(_escape_markdown, (grid.corner, *grid.columns))))
    lines.append("| --- |" + " ---: |" * len(grid.columns))
    lines += [
        _markdown_line([_escape_markdown(name), *map(_markdown_cell, cells)])
        for name, cells in grid.rows
    ]
    for note in grid.notes:
        lines += ["", _escape_markdown(note)]
    return "\n".join(lines) + "\n"


def _markdown_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_cell(cell: Cell) -> str:
    return cell.text + (f" ± {number(cell.std)}" if cell.std is not None else "")


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<\[\]])", r"\\\1", text)


def grid_to_latex(grid: Grid) -> str:
    """Write a LaTeX tabular in booktabs style; title and notes are comments."""
    head = [_latex_line(map(_escape_latex, (grid.corner, *grid.columns)))]
    body = [
        _latex_line([_escape_latex(name), *map(_latex_cell, cells)]) for name, cells in grid.rows
    ]
    return _tabular(grid.title, len(grid.columns), head, body, grid.notes)


def to_latex(table: Table) -> str:
    """Write two LaTeX tabulars in booktabs style: by session, and the summary with deviations.

    The first is as narrow as the paper's. The best measured means of a column are bold, and all
    within one standard error of them. Title, details and notes are comments.
    """
    notes = [f"{row.label}: {row.detail}" for row in table.rows if row.detail]
    notes.append(
        "bold: the best measured mean, and all within one standard error of it, over seeds where "
        "there are several"
    )
    return _latex_sessions(table) + "\n" + _latex_summary(table, [*notes, *table.notes])


def _latex_sessions(table: Table) -> str:
    shown = [
        i
        for i, name in enumerate(table.columns)
        if i < table.sessions or name == "PD" or name in table.more
    ]
    rows = [(row, [replace(row.cells[i], std=None) for i in shown]) for row in table.rows]
    best = [_best_rows(table, table.columns[i]) for i in shown]
    body = [_latex_row(row, cells, best) for row, cells in rows]
    return _tabular(table.title, len(shown), _latex_head(table), body, [])


def _latex_summary(table: Table, notes: Sequence[str]) -> str:
    last = str(table.sessions - 1)
    columns = ("last", *(name for name in SUMMARY if name != "PD"), *COSTS)
    headings = [f"{name} $\\downarrow$" if name in LOWER_IS_BETTER else name for name in columns]
    keys = [last if name == "last" else name for name in columns]
    best = [_best_rows(table, key) for key in keys]
    body = [_latex_row(row, [_cell(table, row, key) for key in keys], best) for row in table.rows]
    title = f"{table.title}: after the last session, and what it took"
    return _tabular(title, len(columns), [_latex_line(["method", *headings])], body, notes)


def _latex_row(row: Row, cells: Sequence[Cell], best: Sequence[Sequence[Row]]) -> str:
    label = _escape_latex(row.label)
    texts = [label if row.source == "measured" else f"\\textit{{{label}}}"]
    for cell, winners in zip(cells, best, strict=True):
        text = _latex_cell(cell)
        texts.append(f"\\textbf{{{text}}}" if row in winners else text)
    return _latex_line(texts)


def _latex_head(table: Table) -> list[str]:
    sessions = (
        f"\\multicolumn{{{table.sessions}}}{{c}}{{accuracy in each session (\\%) $\\uparrow$}}"
    )
    names = [
        "method",
        *map(str, range(table.sessions)),
        "PD $\\downarrow$",
        *(f"\\shortstack{{{_escape_latex(name)}}}".replace(" ", "\\\\") for name in table.more),
    ]
    return [
        f" & {sessions} &{' &' * len(table.more)} \\\\",
        f"\\cmidrule(lr){{2-{table.sessions + 1}}}",
        _latex_line(names),
    ]


def _tabular(
    title: str, columns: int, head: Sequence[str], body: Sequence[str], notes: Sequence[str]
) -> str:
    lines = [
        f"% {title}",
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * columns}}}",
        "\\toprule",
        *head,
        "\\midrule",
        *body,
        "\\bottomrule",
        "\\end{tabular}",
        *(f"% {note}" for note in notes),
    ]
    return "\n".join(lines) + "\n"


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + " \\\\"


def _best_rows(table: Table, column: str) -> list[Row]:
    """Return the rows with the best number of a column, and those within its standard error.

    A row without competitors is not the best, and neither is a signed difference.
    """
    rows = [row for row in table.rows if row.source == "measured" and not row.reference]
    cells = [(row, _cell(table, row, column)) for row in rows]
    candidates = [row for row, cell in cells if cell.mean is not None and not cell.signed]
    if len(candidates) < 2 or column in UNRANKED:
        return []

    def mean(row: Row) -> float:
        return _cell(table, row, column).mean or 0

    best = (min if column in LOWER_IS_BETTER else max)(candidates, key=mean)
    error = (_cell(table, best, column).std or 0) / math.sqrt(best.measurements or 1)
    return [row for row in candidates if abs(mean(row) - mean(best)) <= error]


def _latex_cell(cell: Cell) -> str:
    if cell.mean is None:
        return "--"
    if cell.std is None:
        return cell.text.replace("-", "$-$")
    std = number(cell.std, cell.decimals)
    return f"{cell.text.replace('-', '$-$')}\\,{{\\scriptsize$\\pm${std}}}"


def _escape_latex(text: str) -> str:
    return "".join(LATEX.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
