"""Draw the parts that figures by session share: lines over runs, the session axis, its limits."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from fewmore.errors import ConfigError
from fewmore.research.metrics import mean_std
from fewmore.research.reporting.figures.style import Look
from fewmore.research.reporting.tables import groups, title
from fewmore.research.results import RunResult


def check_comparable(results: Sequence[RunResult]) -> None:
    """Refuse results that do not belong in one figure."""
    if len(groups(results)) != 1:
        titles = ", ".join(title(group[0]) for group in groups(results)) or "none"
        raise ConfigError(
            "one figure shows results of one benchmark with the same sessions, "
            f"and was given {titles}: draw a figure for each"
        )


def plot_mean(axes: Axes, runs: Sequence[Sequence[float | None]], look: Look) -> list[float]:
    """Plot the mean over runs, with a band of ± one deviation if there are several; return it."""
    mean, std = mean_std([[np.nan if value is None else value for value in run] for run in runs])
    x = np.arange(len(mean))
    axes.plot(
        x,
        mean,
        color=look.color,
        marker=look.marker,
        markersize=4.5,
        markeredgewidth=0,
        linewidth=1.8,
        zorder=3,
    )
    if len(runs) > 1:
        axes.fill_between(
            x, mean - std, mean + std, color=look.color, alpha=0.18, linewidth=0, zorder=1
        )
    return [float(value) for value in mean]


def set_session_axis(axes: Axes, result: RunResult, every: int = 1) -> None:
    """Label the x axis with the sessions and the classes seen."""
    sizes = result.sessions
    shown = range(0, len(sizes), every)
    axes.set_xticks(shown, [f"{i}\n{sizes[i].classes}" for i in shown])
    axes.set_xlim(-0.25, max(len(sizes) - 1, 0) + 0.25)
    axes.set_xlabel("session, and classes seen")


def lower_limit(axes: Axes) -> float:
    """Return the multiple of ten below all that is drawn."""
    lowest = axes.dataLim.y0 if np.isfinite(axes.dataLim.y0) else 0
    return float(np.clip(10 * np.floor(lowest / 10), 0, 90))


def upper_limit(panels: Sequence[Axes]) -> float:
    """Return the next multiple of ten above all that is drawn, at most 100."""
    highest = max((axes.dataLim.y1 for axes in panels if np.isfinite(axes.dataLim.y1)), default=100)
    return float(np.clip(10 * np.ceil(highest / 10), 10, 100))
