"""Draw the trials of a search: the measure against each setting that was tried."""

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewmore.research.reporting.figures.style import FAINT, REMARK, STYLE, VERMILION
from fewmore.research.tuning.record import Record, Trial

POINT = "#5B7083"
DECADE = 10  # numbers that span so many times the smallest are drawn by their logarithm


def trials_figure(record: Record) -> Figure:
    """Draw a panel for each setting, a point for each finished trial; the best is colored."""
    names = list(record.trials[0].settings)
    with matplotlib.rc_context(STYLE):
        width = 0.9 + 3.2 * len(names)
        figure = Figure(figsize=(width, 3.4))
        for i, name in enumerate(names):
            left = (0.75 + 3.2 * i) / width
            axes = figure.add_axes((left, 0.24, 2.75 / width, 0.58))
            _draw_panel(axes, record, name)
            if i == 0:
                axes.set_ylabel(f"{record.by} (%)")
            else:
                axes.set_yticklabels([])
        search = record.search
        heading = f"{search['method']} on {search['benchmark']}: {record.split}"
        figure.text(0.75 / width, 0.97, heading, va="top", color=FAINT)
        runs = len(search["seeds"]) * len(search["draws"])
        remark = f"a point a trial, the mean of {runs} runs" if runs > 1 else "a point a trial"
        remark += "; the best is colored; the axis does not begin at 0"
        figure.text(0.75 / width, 0.02, remark, **REMARK)
    return figure


def _draw_panel(axes: Axes, record: Record, name: str) -> None:
    points = [(trial, trial.mean(record.by)) for trial in record.ranked]
    shown = [(trial, score) for trial, score in points if score is not None]
    texts = [trial.settings[name] for trial, _ in shown]
    try:
        places = [float(text) for text in texts]
        if min(places) > 0 and max(places) >= DECADE * min(places):
            axes.set_xscale("log")
    except ValueError:  # not numbers
        known = sorted(set(texts))
        places = [float(known.index(text)) for text in texts]
        axes.set_xticks(range(len(known)), known, parse_math=False)
        axes.set_xlim(-0.5, len(known) - 0.5)
    best: Trial | None = record.best
    for place, (trial, score) in zip(places, shown, strict=True):
        is_best = best is not None and trial.number == best.number
        axes.plot(
            place, score, "o", color=VERMILION if is_best else POINT, zorder=3 if is_best else 2
        )
    axes.set_xlabel(name)
