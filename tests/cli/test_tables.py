"""Test that tables in the terminal fit every width and lose no number."""

import io
import re

import pytest
from rich.console import Console

from fewmore.cli.tables import render
from fewmore.research.reporting.tables import SUMMARY, Cell, Row, Table


def table(
    sessions, with_std=True, names=("cec", "decoupled-cosine", "Linear+Data Init., decoupled")
):
    """Make a table whose numbers all differ, so that each can be found again."""
    columns = sessions + len(SUMMARY)
    rows = []
    for i, name in enumerate(names):
        cells = tuple(
            Cell(10 + i * columns + j + 0.25, (i + 1) / 10 + j / 100 if with_std else None)
            for j in range(columns)
        )
        rows.append(Row(name, "measured", "3 seeds × 3 draws", cells))
    blank = [Cell(), Cell(), Cell(), Cell()]
    rows.append(Row("Decoupled-DeepEMD", "published", "", (*[Cell(99.5)] * (columns - 4), *blank)))
    return Table("cub200", "cub200: 100 classes", sessions, tuple(rows), ("a note",))


def printed(table, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(render(table, width))
    return console.file.getvalue()


@pytest.mark.parametrize("sessions", [1, 2, 9, 11, 21])
@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 120, 200])
def test_every_number_is_there_and_no_line_is_too_long(sessions, width):
    made = table(sessions)
    text = printed(made, width)
    assert max(map(len, text.splitlines())) <= width
    found = re.findall(r"±?\d+\.\d\d", text)
    expected = [
        f"{cell.mean:.2f}" for row in made.rows for cell in row.cells if cell.mean is not None
    ]
    expected += [
        f"±{cell.std:.2f}" for row in made.rows for cell in row.cells if cell.std is not None
    ]
    assert sorted(found) == sorted(expected)
    assert "…" not in text


@pytest.mark.parametrize(("sessions", "width"), [(9, 120), (11, 120), (9, 110)])
def test_the_benchmarks_fit_into_one_table(sessions, width):
    text = printed(table(sessions), width)
    assert text.count("method") == 1
    head = next(line for line in text.splitlines() if line.startswith("method"))
    assert head.split() == [
        "method",
        *map(str, range(sessions)),
        "avg",
        "PD",
        "base",
        "novel",
        "harm.",
        "gAcc",
    ]


@pytest.mark.parametrize(("sessions", "width"), [(9, 100), (9, 80), (11, 100)])
def test_in_less_room_the_sessions_stand_above_the_summary(sessions, width):
    heads = [
        line.split()[1:]
        for line in printed(table(sessions), width).splitlines()
        if line.startswith("method")
    ]
    assert heads == [
        [str(i) for i in range(sessions)],
        ["avg", "PD", "base", "novel", "harm.", "gAcc"],
    ]


def test_deviations_stand_below_their_means():
    lines = printed(table(9, names=["cec"]), 120).splitlines()
    mean = next(i for i, line in enumerate(lines) if line.startswith("cec"))
    assert lines[mean].split()[1:3] == ["10.25", "11.25"]
    assert lines[mean + 1].split()[-15:][:2] == ["±0.10", "±0.11"]
    assert [m.end() for m in re.finditer(r"\d\.\d\d", lines[mean])] == [
        m.end() for m in re.finditer(r"\d\.\d\d", lines[mean + 1])
    ]


def test_published_rows_and_gaps_are_marked():
    text = printed(table(9), 120)
    line = next(
        line for line in text.splitlines() if line.startswith("Decoupled-DeepEMD, published")
    )
    assert line.split()[-4:] == ["–"] * 4
    assert text.startswith("cub200: 100 classes\n")
    assert text.rstrip().endswith("a note")
