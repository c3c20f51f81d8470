"""Tables in the terminal: each mean above its deviation; what is too wide for one table is stacked, and nothing is left out."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from fewmore.research.reporting.tables import Cell, Grid, Row, Table, number

HEADS = {
    "average": "avg",
    "harmonic": "harm.",
    "relative improvement": "impr.",
}  # where the name is wider than the numbers below it
FAINT = "dim"
PUBLISHED = "italic dim"


def render(table: Table, width: int) -> RenderableType:
    """The table for a terminal of a width: whole, with the names folded if need be, or the sessions above the summary."""
    columns = range(len(table.columns))
    lines = ["method", *(line for row in table.rows for line in (row.label, row.detail))]
    whole = max(map(len, lines))
    folded = min(max(len(word) for line in lines for word in line.split()), max(width // 3, 10))
    room = width - folded
    pieces: list[list[int]] = [list(columns)]
    if _needs(table, columns) > room:
        pieces = _pieces(table, columns[: table.sessions], room) + _pieces(
            table, columns[table.sessions :], room
        )
    names = min(whole, width - max(_needs(table, piece) for piece in pieces))
    parts: list[RenderableType] = [Text(table.title, style="bold"), Text()]
    for piece in pieces:
        parts += [_piece(table, piece, max(names, folded)), Text()]
    return Group(*parts, *(Text(note, style=FAINT) for note in table.notes))


def render_grid(grid: Grid) -> RenderableType:
    """A grid for a terminal; its columns fold their heads where they must."""
    table = RichTable(
        grid.corner, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    for name in grid.columns:
        table.add_column(name, justify="right")
    for name, cells in grid.rows:
        table.add_row(Text(name, style="bold"), *(Text("\n".join(_lines(cell))) for cell in cells))
    return Group(
        Text(grid.title, style="bold"),
        Text(),
        table,
        Text(),
        *(Text(note, style=FAINT) for note in grid.notes),
    )


def _pieces(table: Table, columns: Sequence[int], room: int) -> list[list[int]]:
    """The columns in pieces that fit; one that never fits has a piece of its own."""
    found: list[list[int]] = [[]]
    for column in columns:
        if found[-1] and _needs(table, [*found[-1], column]) > room:
            found.append([])
        found[-1].append(column)
    return found


def _needs(table: Table, columns: Sequence[int]) -> int:
    """How wide the columns are, each with the space before it."""
    return sum(1 + _width(table, column) for column in columns)


def _width(table: Table, column: int) -> int:
    lines = [line for row in table.rows for line in _lines(row.cells[column])]
    return max(map(len, [_head(table, column), *lines]))


def _head(table: Table, column: int) -> str:
    return HEADS.get(table.columns[column], table.columns[column])


def _lines(cell: Cell) -> list[str]:
    return [cell.text] + ([f"±{number(cell.std)}"] if cell.std is not None else [])


def _piece(table: Table, columns: Sequence[int], names: int) -> RichTable:
    piece = RichTable(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    piece.add_column("method", width=names, overflow="fold")
    for column in columns:
        piece.add_column(_head(table, column), justify="right", width=_width(table, column))
    for row in table.rows:
        piece.add_row(_name(row), *(_cell(row.cells[column], row) for column in columns))
    return piece


def _name(row: Row) -> Text:
    name = Text(row.label, style=PUBLISHED if row.source == "published" else "bold")
    return name.append(f"\n{row.detail}", style=f"not bold {FAINT}") if row.detail else name


def _cell(cell: Cell, row: Row) -> Text:
    mean, *spread = _lines(cell)
    text = Text(mean, style=PUBLISHED if row.source == "published" else "")
    return text.append("".join(f"\n{line}" for line in spread), style=FAINT)
