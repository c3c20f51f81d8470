"""Draw the reliability diagram of a classifier."""

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from fewmore.research.metrics import Floats
from fewmore.research.reporting.figures.style import BLUE, GREY, STYLE, VERMILION

BINS = 10


def reliability_figure(confidence: Floats, correct: Floats) -> Figure:
    """Draw accuracy by confidence, and below it how many predictions there are of each."""
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    hits = np.bincount(bins, correct, BINS)
    accuracy = 100 * np.divide(hits, count, out=np.full(BINS, np.nan), where=count > 0)
    middles = (np.arange(BINS) + 0.5) * 100 / BINS
    width = 94 / BINS
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2, 3.3))
        upper = figure.add_axes((0.13, 0.38, 0.83, 0.58))
        lower = figure.add_axes((0.13, 0.14, 0.83, 0.16))
        upper.bar(middles, accuracy, width, color=BLUE, zorder=2)
        upper.plot(
            [0, 100], [0, 100], color=VERMILION, linewidth=1.2, linestyle=(0, (4, 2)), zorder=3
        )
        upper.text(2, 97, "dashed: as right as confident", color=VERMILION, fontsize=8, va="top")
        upper.set_ylim(0, 100)
        upper.set_ylabel("right (%)")
        upper.tick_params(labelbottom=False)
        lower.bar(middles, 100 * count / max(1, len(confidence)), width, color=GREY, zorder=2)
        lower.set_ylabel("images (%)")
        lower.set_xlabel("confidence (%)")
        for axes in (upper, lower):
            axes.set_xlim(0, 100)
    return figure
