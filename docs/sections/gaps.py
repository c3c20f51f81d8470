"""Write the rows that end far from the published ones, with the runs that explain why."""

import math
from collections.abc import Sequence

from fewmore.methods import METHODS
from fewmore.research.published import published_row
from fewmore.research.reporting import tables
from fewmore.research.results import RunResult
from sections import recorded
from sections.markdown import UNMEASURED, italic, markdown_table, mean_and_std

GAP = 5.0  # points at the last session that need an explanation
TITLES = (
    "method",
    "base session",
    "*published*",
    "difference",
    "last session",
    "*published*",
    "difference",
)


def gaps(benchmark: str) -> str:
    """Write rows far from the published ones, each above the same method with other settings."""
    measured = recorded.read_results(benchmark)
    compared = recorded.read_compared(benchmark)
    rows = [
        compared[name] for name in METHODS if name in compared and published_row(compared[name])
    ]
    if not rows:
        return UNMEASURED
    far = [row for row in rows if abs(last_gap(row)) > GAP]
    if not far:
        return f"No row of {benchmark} ends more than {GAP:.0f} points from the published one.\n"
    others = [row for row in measured if row not in rows] + recorded.read_explanations()
    lines = markdown_table(TITLES, [], "lrrrrrr")
    for row in far:
        lines += _gap_lines(row, others)
    near = [row.method for row in rows if row not in far]
    if near:
        lines += ["", f"Within {GAP:.0f} points: {', '.join(near)}."]
    return "\n".join(lines) + "\n"


def _gap_lines(row: RunResult, others: Sequence[RunResult]) -> list[str]:
    """Return the line of a row, and one for each experiment with the same method."""
    same_method = [other for other in others if other.method == row.method]
    experiments = [other for other in same_method if other.benchmark == row.benchmark]
    lines = [_gap_line(f"**{row.method}**", row, row)]
    lines += [_gap_line(f"↳ {_changes(other, row)}", other, row) for other in experiments]
    if not experiments:
        elsewhere = sorted({other.benchmark for other in same_method if other.settings})
        note = f"see {', '.join(elsewhere)}" if elsewhere else "no experiment yet"
        lines.append(f"| ↳ {note} |" + " |" * (len(TITLES) - 1))
    return lines


def _gap_line(name: str, result: RunResult, published_as: RunResult) -> str:
    """Format a result's first and last session beside the published ones of a row."""
    published = published_row(published_as)
    cells = [name]
    for session in (0, -1):
        measured = tables.mean_cell([run[session] for run in result.accuracy])
        printed = published.sessions[session] if published else None
        difference = None
        if printed is not None and measured.mean is not None:
            difference = measured.mean - printed
        cells.append(mean_and_std(measured.mean, measured.std))
        cells.append(italic(printed))
        cells.append(tables.Cell(difference, signed=True).text)
    return f"| {' | '.join(cells)} |"


def last_gap(result: RunResult) -> float:
    """Return how far above the published row a result ends; NaN where there is none."""
    published = published_row(result)
    if published is None:
        return math.nan
    return sum(result.last) / result.runs - float(published.sessions[-1] or 0)


def _changes(result: RunResult, row: RunResult) -> str:
    """Name the recipe and the settings that differ from a row; an earlier run of it by its date."""
    recipe = [f"recipe {result.recipe}"] if result.recipe != row.recipe else []
    settings = [f"{key}={value}" for key, value in result.settings.items()]
    return ", ".join([*recipe, *settings]) or f"settings of {result.date[:10]}"
