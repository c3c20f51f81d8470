"""Format Markdown: paragraphs, tables and the numbers in them."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from fewmore.research.reporting import tables

ALIGNMENT = {"l": "---", "r": "---:"}
WIDTH = 100
UNMEASURED = "Not measured yet.\n"


def paragraph(text: str, first: str = "", later: str = "") -> str:
    """Wrap a text, its first line and its later lines indented."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def bullet(text: str) -> str:
    """Wrap an item of a list."""
    return paragraph(text, "- ", "  ")


def markdown_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], align: str | None = None
) -> list[str]:
    """Return the lines of a table; `align` has an "l" or an "r" per column, all "l" by default."""
    rules = [ALIGNMENT[letter] for letter in align or "l" * len(titles)]
    if len(rules) != len(titles):
        raise ValueError(f"{len(titles)} titles and {len(rules)} letters of alignment: {titles}")
    return [f"| {' | '.join(cells)} |" for cells in (titles, rules, *rows)]


def mean_and_std(mean: float | None, std: float | None) -> str:
    """Format "mean ± std", or the mean alone."""
    return tables.number(mean) + (f" ± {tables.number(std)}" if std is not None else "")


def over_runs(values: Sequence[float | None]) -> str:
    """Format the mean over runs with its standard deviation."""
    cell = tables.mean_cell(values)
    return mean_and_std(cell.mean, cell.std)


def italic(value: float | None) -> str:
    """Format a published number."""
    return f"*{tables.number(value)}*" if value is not None else "–"


def short(value: Any) -> str:
    """Format a measured value with three significant digits, large ones without decimals."""
    if value is None:
        return "–"
    if isinstance(value, float) and abs(value) < 100:
        return f"{value:,.3g}"
    if isinstance(value, (int, float)):
        return f"{value:,.0f}"
    return str(value)
