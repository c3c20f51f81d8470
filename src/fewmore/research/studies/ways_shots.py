"""Vary the ways and shots of pseudo-incremental episodes (Fig. 5)."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path

import numpy as np

from fewmore.errors import ConfigError
from fewmore.research.experiment import Experiment
from fewmore.research.reporting import figures, tables
from fewmore.research.reporting.tables import Cell, Grid
from fewmore.research.studies.base import Finished, Setting, Study

GRID = (1, 5, 10, 15, 20)  # ways, and shots
QUICK_GRID = (1, 5, 10)
QUERIES = 10  # of a class in an episode


def experiments(setting: Setting) -> dict[str, Experiment]:
    """Return an experiment for each cell of the grid that the base session is large enough for."""
    cells = {
        _label(way, shot): setting.experiment("cec", *_episode_settings(way, shot))
        for way, shot in product(_sizes(setting), repeat=2)
        if setting.fits(way, shot + 1)  # at least one query is left
    }
    if not cells:
        raise ConfigError(
            f"{setting.benchmark} has no base class with two images, and an episode needs one "
            "to learn from and one to query"
        )
    return cells


def _sizes(setting: Setting) -> tuple[int, ...]:
    return QUICK_GRID if setting.quick else GRID


def _label(way: int, shot: int) -> str:
    return f"{way}-way {shot}-shot"


def _episode_settings(way: int, shot: int) -> list[str]:
    sizes = {"way": way, "shot": shot, "query": QUERIES}
    return [
        f"pseudo.{group}_{name}={size}" for name, size in sizes.items() for group in ("base", "new")
    ]


def draw(setting: Setting, finished: Mapping[str, Finished], out: Path) -> Grid:
    """Draw the grid of last accuracies, and return it as a table."""
    sizes = _sizes(setting)

    def cell(way: int, shot: int) -> Cell:
        each = finished.get(_label(way, shot))
        return tables.mean_cell(each.result.last) if each else Cell()

    cells = [tuple(cell(way, shot) for shot in sizes) for way in sizes]
    accuracy = np.array([[math.nan if c.mean is None else c.mean for c in row] for row in cells])
    noise, error = _noise([each.result.last for each in finished.values()])
    measure = f"{setting.benchmark}: accuracy after the last session"
    below = "\n".join(filter(None, (noise, setting.remark)))
    figure = figures.ways_shots_figure(accuracy, sizes, sizes, f"{measure} (%)", below, error)
    figures.save_all(figure, out / "ways-shots")
    queries = (
        f"{QUERIES} queries a class; "
        "as many ways and shots of pseudo-base as of pseudo-incremental classes"
    )
    return Grid(
        f"{measure} by ways (rows) and shots (columns) of an episode",
        "ways",
        tuple(f"{shot} shots" for shot in sizes),
        tuple((str(way), row) for way, row in zip(sizes, cells, strict=True)),
        (queries, noise, *_missing_notes(setting, finished)),
    )


def _missing_notes(setting: Setting, finished: Mapping[str, Finished]) -> list[str]:
    """Tell cells that the base session is too small for from those that were not run."""
    too_small: list[str] = []
    not_run: list[str] = []
    for way, shot in product(_sizes(setting), repeat=2):
        if _label(way, shot) not in finished:
            cells = not_run if setting.fits(way, shot + 1) else too_small
            cells.append(_label(way, shot))
    notes = []
    if too_small:
        notes.append(f"–: the base session is too small for {', '.join(too_small)}")
    if not_run:
        notes.append(f"–: not run: {', '.join(not_run)}")
    return notes


def _noise(cells: Sequence[Sequence[float]]) -> tuple[str, float]:
    """Say how much the runs of one cell differ, and return the standard error of a cell's mean."""
    runs = min(map(len, cells))
    if runs < 2:
        return "one run a cell: how far apart two of them would be is not known", math.nan
    apart = np.mean([abs(a - b) for cell in cells for a, b in combinations(cell, 2)])
    deviation = np.sqrt(np.mean([np.var(cell, ddof=1) for cell in cells]))
    text = f"{runs} runs a cell, two of which are {apart:.2f} points apart on average"
    return text, float(deviation / np.sqrt(runs))


STUDY = Study(
    "ways-shots",
    "Last session's accuracy by ways and shots of an episode",
    "Fig. 5",
    25,
    experiments,
    draw,
)
