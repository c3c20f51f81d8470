"""Draw average accuracy and performance drop of several results side by side."""

from collections.abc import Callable, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fewmore.research.metrics import Floats, mean_std
from fewmore.research.reporting.figures.axes import check_comparable
from fewmore.research.reporting.figures.style import (
    BEHIND,
    FAINT,
    GRID,
    INK,
    REMARK,
    STYLE,
    VERMILION,
)
from fewmore.research.reporting.tables import measured_with, title
from fewmore.research.results import RunResult

BAR = "#B8C7D6"  # of rows that are not highlighted
POINT = "#5B7083"
PANELS = {"average": "average accuracy (%) ↑", "pd": "performance drop (points) ↓"}

Draw = Callable[[Axes, Floats, Floats, Sequence[str]], None]  # means, deviations, colors


def bars_figure(results: Mapping[str, RunResult], highlight: str = "") -> Figure:
    """Draw one bar from zero for each named result; that of `highlight` is colored."""

    def draw(axes: Axes, means: Floats, stds: Floats, colors: Sequence[str]) -> None:
        axes.barh(range(len(means)), means, 0.7, color=colors)
        axes.set_xlim(0, 1.18 * max(float((means + stds).max()), 1))

    colors = [VERMILION if label == highlight else BAR for label in results]
    return _measures_figure(results, draw, colors)


def points_figure(results: Mapping[str, RunResult], highlight: str = "") -> Figure:
    """Draw one point for each named result on axes cut to them, where differences are small.

    That of `highlight` is colored.
    """

    def draw(axes: Axes, means: Floats, stds: Floats, colors: Sequence[str]) -> None:
        low = float((means - stds).min())
        high = float((means + stds).max())
        span = max(high - low, 1.0)  # differences of less than a point stay small
        for y, (mean, color) in enumerate(zip(means, colors, strict=True)):
            axes.axhline(y, color=GRID, linewidth=0.8, linestyle=(0, (1, 2)), zorder=0)
            axes.plot(mean, y, marker="o", markersize=6, color=color, zorder=3)
        axes.set_xlim(low - 0.1 * span, low + 1.3 * span)

    colors = [VERMILION if label == highlight else POINT for label in results]
    return _measures_figure(results, draw, colors, "the axes do not begin at 0")


def _measures_figure(
    results: Mapping[str, RunResult], draw: Draw, colors: Sequence[str], *remarks: str
) -> Figure:
    """Draw two panels with a row for each result: its mean, deviation over runs, and number."""
    check_comparable(list(results.values()))
    runs = min(result.runs for result in results.values())
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x", "axes.spines.left": False}):
        names = 0.25 + 0.07 * max(map(len, results))  # inches, at nine points
        height = 0.3 * len(results) + 1.3
        width = names + 6.1
        figure = Figure(figsize=(width, height))
        for i, (field, heading) in enumerate(PANELS.items()):
            left = (names + 3.05 * i) / width
            axes = figure.add_axes((left, 0.65 / height, 2.6 / width, (height - 1.3) / height))
            measures = [mean_std(getattr(result, field)) for result in results.values()]
            means, stds = np.transpose(measures)
            stds = np.nan_to_num(stds)
            draw(axes, means, stds, colors)
            _draw_numbers(axes, means, stds)
            axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            axes.set_ylim(len(means) - 0.4, -0.6)
            axes.set_title(heading)
            labels = list(results) if i == 0 else [""] * len(means)
            axes.set_yticks(range(len(means)), labels, parse_math=False)
        compared = list(results.values())
        heading = "; ".join(filter(None, (title(compared[0]), measured_with(compared))))
        figure.text(names / width, 0.995, heading, va="top", color=FAINT)
        deviation = (
            f"± one standard deviation over {runs} runs"
            if runs > 1
            else "one run each: how much runs differ is not known"
        )
        figure.text(names / width, 0.1 / height, "; ".join((deviation, *remarks)), **REMARK)
    return figure


def _draw_numbers(axes: Axes, means: Floats, stds: Floats) -> None:
    """Draw the error bars, and right of them the means as numbers."""
    for y, (mean, std) in enumerate(zip(means, stds, strict=True)):
        if std:
            axes.errorbar(
                mean,
                y,
                xerr=std,
                fmt="none",
                ecolor=INK,
                elinewidth=0.9,
                capsize=2,
                capthick=0.9,
                zorder=2,
            )
        axes.annotate(
            f"{mean:.2f}",
            (max(mean + std, axes.get_xlim()[0]), y),
            (7, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=8,
            bbox=BEHIND,
        )
