"""Draw accuracy as a grid over the ways and shots of pseudo-incremental episodes."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fewmore.errors import ConfigError
from fewmore.research.metrics import Floats
from fewmore.research.reporting.figures.style import INK, REMARK, STYLE, VERMILION

UNFRAMED: dict[Any, Any] = {
    **STYLE,
    "axes.grid": False,
    "axes.spines.left": False,
    "axes.spines.bottom": False,
}


def ways_shots_figure(
    accuracy: Floats,
    ways: Sequence[int],
    shots: Sequence[int],
    heading: str,
    remark: str,
    error: float = np.nan,
) -> Figure:
    """Draw the last session's accuracy by ways (rows) and shots (columns), with a remark below.

    NaN is a cell that was not measured. `error` is the standard error of a cell if it is known:
    cells within it of the best are framed.
    """
    if accuracy.shape != (len(ways), len(shots)):
        shape = " × ".join(map(str, accuracy.shape))
        raise ConfigError(
            f"{len(ways)} ways and {len(shots)} shots make a grid of {len(ways)} × {len(shots)}, "
            f"not {shape}"
        )
    width = 1.4 + 0.75 * len(shots)
    height = 1.55 + 0.55 * len(ways)
    with matplotlib.rc_context(UNFRAMED):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes(
            (0.6 / width, 0.75 / height, 0.75 * len(shots) / width, 0.55 * len(ways) / height)
        )
        _draw_cells(axes, accuracy, error)
        axes.set_xticks(range(len(shots)), list(map(str, shots)))
        axes.set_yticks(range(len(ways)), list(map(str, ways)))
        axes.tick_params(length=0)
        axes.set_xlabel("shots")
        axes.set_ylabel("ways")
        axes.set_title(heading)
        framed = [] if np.isnan(error) else ["framed: within one standard error of the best"]
        figure.text(0.6 / width, 0.2 / height, "\n".join([remark, *framed]), va="top", **REMARK)
    return figure


def _draw_cells(axes: Axes, accuracy: Floats, error: float) -> None:
    axes.imshow(accuracy, cmap="Blues", aspect="auto")
    known = ~np.isnan(accuracy)
    # Above this value a cell is so dark that its number is white.
    dark = 0.4 * accuracy[known].min() + 0.6 * accuracy[known].max() if known.any() else 0
    for row, column in np.argwhere(known):
        value = accuracy[row, column]
        axes.text(
            column,
            row,
            f"{value:.2f}",
            ha="center",
            va="center_baseline",
            color="white" if value > dark else INK,
        )
    best = accuracy[known].max(initial=-np.inf)
    for row, column in np.argwhere(accuracy >= best - error):
        axes.add_patch(
            Rectangle(
                (column - 0.5, row - 0.5),
                1,
                1,
                fill=False,
                edgecolor=VERMILION,
                linewidth=2,
                clip_on=False,
            )
        )
