"""Draw accuracy by session."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewmore.research.published import PublishedRow
from fewmore.research.reporting.figures.axes import (
    check_comparable,
    lower_limit,
    plot_mean,
    set_session_axis,
    upper_limit,
)
from fewmore.research.reporting.figures.labels import LABEL_POINTS, LineEnd, name_line_ends
from fewmore.research.reporting.figures.style import (
    FAINT,
    MARKERS,
    METHOD_COLORS,
    PALETTE,
    STYLE,
    Look,
    choose_looks,
)
from fewmore.research.reporting.tables import measured_with, title
from fewmore.research.results import RunResult, RunsBySession, names

DASHES = (0, (4, 2))  # the line style of published numbers
PANELS = {"base": "base classes", "novel": "new classes", "harmonic": "harmonic mean"}


def sessions_figure(
    results: Sequence[RunResult], published_rows: Sequence[PublishedRow] = ()
) -> Figure:
    """Draw accuracy over all seen classes by session: means with bands of ± one deviation.

    Published rows are dashed, in the color of their method; the method's own line bears the
    published name too where that differs. A line of one run says so where others have several.
    Where only the first and last session of a published row are known, these are rings. The axis
    begins below the lowest line, so that methods are apart; its label says where, unless at zero.
    """
    check_comparable(results)
    rows = [row for row in published_rows if len(row.sessions) == len(results[0].sessions)]
    looks = choose_looks([result.method for result in results])
    published_names = {
        row.method: row.name for row in rows if row.method and row.name.lower() != row.method
    }
    several = any(result.runs > 1 for result in results)
    # The height of the axes leaves room for a name a line.
    height = max(3.25, LABEL_POINTS * (len(results) + len(rows)) / 72)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, height + 1.15))
        axes = figure.add_axes((0.08, 0.7 / (height + 1.15), 0.66, height / (height + 1.15)))
        colors = _published_colors(results, looks)
        ends = [
            _plot_published(
                axes, row, colors.get(row.method or "", FAINT), f"{row.name}, published"
            )
            for row in rows
        ]
        for result, name, look in zip(results, names(results), looks, strict=True):
            mean = plot_mean(axes, result.accuracy, look)
            known_as = published_names.get(result.method)
            label = f"{name} ({known_as})" if known_as else name
            if result.runs == 1 and several:
                label += ", one run"
            ends.append(LineEnd(mean[-1], label, look.color, strong=True))
        set_session_axis(axes, results[0])
        bottom = lower_limit(axes)
        axes.set_ylim(bottom, upper_limit([axes]))
        cut = f", from {bottom:.0f} %" if bottom else ""
        axes.set_ylabel(f"accuracy over all seen classes (%){cut}")
        axes.set_title(_title(results, "\n"))
        name_line_ends(figure, axes, ends)
    return figure


def _title(results: Sequence[RunResult], separator: str) -> str:
    return separator.join(filter(None, (title(results[0]), measured_with(results))))


def _published_colors(results: Sequence[RunResult], looks: Sequence[Look]) -> dict[str, str]:
    """Return the color of each method's published row: that of its first measured line if any."""
    taken = {look.color for look in looks}
    colors = {method: color for method, color in METHOD_COLORS.items() if color not in taken}
    for result, look in reversed(list(zip(results, looks, strict=True))):
        colors[result.method] = look.color
    return colors


def _plot_published(axes: Axes, row: PublishedRow, color: str, name: str) -> LineEnd:
    known = [(x, y) for x, y in enumerate(row.sessions) if y is not None]
    if len(known) == len(row.sessions):
        axes.plot(*zip(*known, strict=True), color=color, linewidth=1, linestyle=DASHES, zorder=2)
    else:
        axes.plot(
            *zip(*known, strict=True),
            color=color,
            linestyle="",
            marker="o",
            markersize=4,
            fillstyle="none",
            zorder=2,
        )
    return LineEnd(known[-1][1], name, color, strong=False)


def base_novel_figure(results: Sequence[RunResult]) -> Figure:
    """Draw base accuracy, novel accuracy and their harmonic mean by session, on one scale."""
    check_comparable(results)
    looks = choose_looks([result.method for result in results])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.6))
        panels = [figure.add_axes((0.06 + 0.26 * i, 0.18, 0.235, 0.66)) for i in range(3)]
        ends: list[LineEnd] = []
        for axes, (field, heading) in zip(panels, PANELS.items(), strict=True):
            for result, name, look in zip(results, names(results), looks, strict=True):
                mean = plot_mean(axes, getattr(result, field), look)
                if axes is panels[-1] and not np.isnan(mean[-1]):
                    ends.append(LineEnd(mean[-1], name, look.color, strong=True))
            set_session_axis(axes, results[0], every=2)
            axes.set_title(heading)
        for axes in panels:
            axes.set_ylim(0, upper_limit(panels))
        for axes in panels[1:]:
            axes.tick_params(labelleft=False)
        panels[0].set_ylabel("accuracy among all seen classes (%)")
        figure.text(0.06, 0.985, _title(results, "; "), va="top", color=FAINT)
        name_line_ends(figure, panels[-1], ends)
    return figure


def run_figure(
    result: RunResult,
    lines: Mapping[str, RunsBySession],
    published_rows: Sequence[PublishedRow] = (),
) -> Figure:
    """Draw named measures of one result by session, small enough to be read on a phone."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2, 3.0))
        axes = figure.add_axes((0.1, 0.21, 0.6, 0.75))
        ends = [_plot_published(axes, row, FAINT, "published") for row in published_rows]
        for (name, runs), color, marker in zip(lines.items(), PALETTE, MARKERS, strict=False):
            mean = plot_mean(axes, runs, Look(color, marker))
            if not np.isnan(mean[-1]):
                ends.append(LineEnd(mean[-1], name, color, strong=True))
        set_session_axis(axes, result, every=max(1, len(result.sessions) // 6))
        axes.set_ylim(0, upper_limit([axes]))
        axes.set_ylabel("accuracy (%)")
        name_line_ends(figure, axes, ends)
    return figure
