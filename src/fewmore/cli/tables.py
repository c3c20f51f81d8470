"""Render tables for a terminal: each mean above its deviation.

A table that is too wide is stacked in pieces; no number is left out.
"""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from fewmore.research.reporting.tables import Cell, Grid, Row, Table, number

# Short headings where the name is wider than the numbers below it.
HEADINGS = {"average": "avg", "harmonic": "harm.", "relative improvement": "impr."}
FAINT = "dim"
PUBLISHED = "italic dim"


def render(table: Table | Grid, width: int) -> RenderableType:
    """Render a table or grid for a terminal of a width."""
    body = _render_grid(table) if isinstance(table, Grid) else _render_table(table, width)
    notes = (Text(note, style=FAINT) for note in table.notes)
    return Group(Text(table.title, style="bold"), Text(), *body, *notes)


def _render_table(table: Table, width: int) -> list[RenderableType]:
    """Render the table whole, with the names folded if need be, or the sessions above the rest."""
    columns = range(len(table.columns))
    lines = ["method", *(line for row in table.rows for line in (row.label, row.detail))]
    longest_word = max(len(word) for line in lines for word in line.split())
    folded_names = min(longest_word, max(width // 3, 10))
    room = width - folded_names
    pieces: list[list[int]] = [list(columns)]
    if _total_width(table, columns) > room:
        sessions = _split_columns(table, columns[: table.sessions], room)
        summary = _split_columns(table, columns[table.sessions :], room)
        pieces = sessions + summary
    free = width - max(_total_width(table, piece) for piece in pieces)
    names = max(min(max(map(len, lines)), free), folded_names)
    parts: list[RenderableType] = []
    for piece in pieces:
        parts += [_render_piece(table, piece, names), Text()]
    return parts


def _render_grid(grid: Grid) -> list[RenderableType]:
    """Render a grid; its columns fold their headings where they must."""
    table = RichTable(
        grid.corner, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    for name in grid.columns:
        table.add_column(name, justify="right")
    for name, cells in grid.rows:
        table.add_row(Text(name, style="bold"), *(Text("\n".join(_lines(cell))) for cell in cells))
    return [table, Text()]


def _split_columns(table: Table, columns: Sequence[int], room: int) -> list[list[int]]:
    """Split columns into pieces that fit; one that never fits has a piece of its own."""
    pieces: list[list[int]] = [[]]
    for column in columns:
        if pieces[-1] and _total_width(table, [*pieces[-1], column]) > room:
            pieces.append([])
        pieces[-1].append(column)
    return pieces


def _total_width(table: Table, columns: Sequence[int]) -> int:
    """Return the width of columns, each with the space before it."""
    return sum(1 + _width(table, column) for column in columns)


def _width(table: Table, column: int) -> int:
    lines = [line for row in table.rows for line in _lines(row.cells[column])]
    return max(map(len, [_heading(table, column), *lines]))


def _heading(table: Table, column: int) -> str:
    return HEADINGS.get(table.columns[column], table.columns[column])


def _lines(cell: Cell) -> list[str]:
    return [cell.text] + ([f"±{number(cell.std)}"] if cell.std is not None else [])


def _render_piece(table: Table, columns: Sequence[int], names: int) -> RichTable:
    piece = RichTable(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    piece.add_column("method", width=names, overflow="fold")
    for column in columns:
        piece.add_column(_heading(table, column), justify="right", width=_width(table, column))
    for row in table.rows:
        cells = (_render_cell(row.cells[column], row) for column in columns)
        piece.add_row(_render_name(row), *cells)
    return piece


def _render_name(row: Row) -> Text:
    name = Text(row.label, style=PUBLISHED if row.source != "measured" else "bold")
    return name.append(f"\n{row.detail}", style=f"not bold {FAINT}") if row.detail else name


def _render_cell(cell: Cell, row: Row) -> Text:
    mean, *std = _lines(cell)
    text = Text(mean, style=PUBLISHED if row.source != "measured" else "")
    return text.append("".join(f"\n{line}" for line in std), style=FAINT)
