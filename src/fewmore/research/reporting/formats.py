"""Write tables and grids as CSV, Markdown and LaTeX."""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fewmore.research.reporting.tables import SUMMARY, Cell, Grid, Row, Table, number

ABOUT = ("benchmark", "method", "source", "recipe", "split", "runs", "detail")  # of a CSV's row
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
    summary = (*SUMMARY, *more)
    columns = [
        *(f"session_{i}" for i in range(sessions)),
        *(name.lower().replace(" ", "_") for name in summary),
    ]
    lines: list[list[object]] = [[*ABOUT, *columns, *(f"{name}_std" for name in columns)]]
    for table in tables:
        for row in table.rows:
            cell_of = dict(zip(table.columns, row.cells, strict=True))
            cells = [cell_of.get(name, Cell()) for name in (*map(str, range(sessions)), *summary)]
            about = (row.name, row.source, row.recipe, row.split, row.runs, row.detail)
            lines.append([table.benchmark, *about, *_csv_numbers(cells)])
    return _csv_text(lines)


def grid_to_csv(grid: Grid) -> str:
    """Write one line a row; standard deviations, if any, in columns of their own."""
    with_std = any(cell.std is not None for _, cells in grid.rows for cell in cells)
    stds = [f"{name}_std" for name in grid.columns if with_std]
    lines: list[list[object]] = [[grid.corner, *grid.columns, *stds]]
    lines += [[name, *_csv_numbers(cells, with_std)] for name, cells in grid.rows]
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
    """Write a LaTeX tabular in booktabs style, as narrow as the paper's: no summary but PD.

    The best measured means of a column are bold, and all within one standard error of them. Title,
    details and notes are comments.
    """
    shown = [
        i
        for i, name in enumerate(table.columns)
        if i < table.sessions or name == "PD" or name in table.more
    ]
    competitors = [row for row in table.rows if row.source == "measured" and not row.reference]
    best = {i: _best_rows(competitors, i, lower=table.columns[i] == "PD") for i in shown}
    body = []
    for row in table.rows:
        label = _escape_latex(row.label)
        texts = [label if row.source == "measured" else f"\\textit{{{label}}}"]
        for i in shown:
            text = _latex_cell(replace(row.cells[i], std=None))
            texts.append(f"\\textbf{{{text}}}" if row in best[i] else text)
        body.append(_latex_line(texts))
    notes = [f"{row.label}: {row.detail}" for row in table.rows if row.detail]
    notes.append(
        "bold: the best measured mean, and all within one standard error of it; "
        "deviations are in the other formats"
    )
    return _tabular(table.title, len(shown), _latex_head(table), body, [*notes, *table.notes])


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


def _best_rows(rows: Sequence[Row], column: int, lower: bool) -> list[Row]:
    """Return the rows with the best number of a column, and those within its standard error.

    A row without competitors is not the best, and neither is a signed difference.
    """
    candidates = [
        row for row in rows if row.cells[column].mean is not None and not row.cells[column].signed
    ]
    if len(candidates) < 2:
        return []

    def mean(row: Row) -> float:
        return row.cells[column].mean or 0

    best = min(candidates, key=mean) if lower else max(candidates, key=mean)
    error = (best.cells[column].std or 0) / math.sqrt(best.runs or 1)
    return [row for row in candidates if abs(mean(row) - mean(best)) <= error]


def _latex_cell(cell: Cell) -> str:
    if cell.mean is None:
        return "--"
    std = f"\\,{{\\scriptsize$\\pm${number(cell.std)}}}" if cell.std is not None else ""
    return cell.text.replace("-", "$-$") + std


def _escape_latex(text: str) -> str:
    return "".join(LATEX.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
