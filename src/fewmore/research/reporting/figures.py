"""Figures of results, in one style: a method keeps its colour from figure to figure, and lines are named at their ends.

Colours are those of Okabe and Ito and a wine red, which colour-blind readers can tell apart; markers tell lines apart in grey print.
Nothing here touches pyplot or its global state.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm, LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from fewmore.errors import ConfigError
from fewmore.research.metrics import Floats, Ints, mean_std
from fewmore.research.published import PublishedRow
from fewmore.research.reporting.tables import groups, title
from fewmore.research.results import RunResult, Table, names

FORMATS = (".png", ".svg", ".pdf")
INK, FAINT, GRID = "#222222", "#777777", "#e4e4e4"
VERMILION, BLUE, GREEN, PURPLE, ORANGE, SKY, GREY, BLACK, WINE = (
    "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#888888", "#000000", "#882255",
)  # fmt: skip
BAR, MARK = "#B8C7D6", "#5B7083"  # of rows that are not the subject: a bar, and a point
LESS_TO_MORE = LinearSegmentedColormap.from_list(
    "less to more", ["#5E2A84", "#C2A5CF", "#FFFFFF", "#A6DBA0", "#00682A"], N=257
)
PALETTE = (VERMILION, BLUE, GREEN, PURPLE, ORANGE, SKY, GREY, BLACK, WINE)
CLASSES = (
    BLUE,
    ORANGE,
    GREEN,
    PURPLE,
    SKY,
    "#C9B800",
    WINE,
    BLACK,
    GREY,
)  # of single classes: arrows are vermilion
NAMED_CLASSES = 40  # that a confusion matrix has room to name
SIGN_POINTS = 9  # the size of a weight's sign
ARROW = {
    "arrowstyle": "-|>",
    "color": VERMILION,
    "linewidth": 1.2,
    "mutation_scale": 8,
    "shrinkA": 4,
    "shrinkB": 5,
}
LABEL_POINTS = 11.5  # the height of a name beside a line
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
FAVOURITES = {
    "cec": VERMILION,
    "decoupled-cosine": BLUE,
    "topic": GREEN,
    "lucir": PURPLE,
    "eeil": ORANGE,
    "icarl": SKY,
    "finetune": GREY,
    "joint": BLACK,
    "decoupled-deepemd": WINE,
}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "ytick.left": False,
    "legend.frameon": False,
    "svg.hashsalt": "fewmore",
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,
}
BEHIND: dict[str, Any] = {
    "facecolor": "white",
    "edgecolor": "none",
    "pad": 0.8,
}  # keeps lines out of a number
REMARK: dict[str, Any] = {"color": FAINT, "fontsize": 8}  # a line below a figure
FRAMED: dict[Any, Any] = {
    **STYLE,
    "axes.grid": False,
    "axes.spines.top": True,
    "axes.spines.right": True,
}


@dataclass(frozen=True)
class _Look:
    colour: str
    marker: str


@dataclass(frozen=True)
class _End:
    """Where a line ends, and what to write there."""

    value: float
    name: str
    colour: str
    strong: bool


def _looks(methods: Sequence[str]) -> list[_Look]:
    """A look for each line: the method's own colour if no line has it yet, else one that is free, else any."""
    wanted = {FAVOURITES[method] for method in methods if method in FAVOURITES}
    colours: list[str] = []
    for i, method in enumerate(methods):
        favourite = [FAVOURITES[method]] if method in FAVOURITES else []
        unwanted = [colour for colour in PALETTE if colour not in wanted]
        free = [colour for colour in (*favourite, *unwanted, *PALETTE) if colour not in colours]
        colours.append(free[0] if free else PALETTE[i % len(PALETTE)])
    return [_Look(colour, MARKERS[i % len(MARKERS)]) for i, colour in enumerate(colours)]


def sessions_figure(
    results: Sequence[RunResult], published_rows: Sequence[PublishedRow] = ()
) -> Figure:
    """Accuracy over all seen classes, session by session: means with bands of ± one deviation, published rows dashed.

    A published row has the colour of its method, whose line bears the published name too where that is another. Where only its
    first and last session are known, these are rings.
    """
    _comparable(results)
    rows = [row for row in published_rows if len(row.sessions) == len(results[0].sessions)]
    looks = _looks([result.method for result in results])
    taken = {look.colour for look in looks}
    colours = {method: colour for method, colour in FAVOURITES.items() if colour not in taken}
    colours |= {
        result.method: look.colour
        for result, look in reversed(list(zip(results, looks, strict=True)))
    }  # the first one's
    theirs = {row.method: row.name for row in rows if row.method and row.name.lower() != row.method}
    height = max(
        3.25, LABEL_POINTS * (len(results) + len(rows)) / 72
    )  # of the axes, with room for a name a line
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, height + 1.15))
        axes = figure.add_axes((0.08, 0.7 / (height + 1.15), 0.66, height / (height + 1.15)))
        ends: list[_End] = []
        for row in rows:
            colour = colours.get(row.method or "", FAINT)
            known = [(x, y) for x, y in enumerate(row.sessions) if y is not None]
            if len(known) == len(row.sessions):
                axes.plot(
                    *zip(*known, strict=True),
                    color=colour,
                    linewidth=1,
                    linestyle=(0, (4, 2)),
                    zorder=2,
                )
            else:
                axes.plot(
                    *zip(*known, strict=True),
                    color=colour,
                    linestyle="",
                    marker="o",
                    markersize=4,
                    fillstyle="none",
                    zorder=2,
                )
            ends.append(_End(known[-1][1], f"{row.name}, published", colour, strong=False))
        for result, name, look in zip(results, names(results), looks, strict=True):
            mean = _line(axes, result.accuracy, look)
            beside = f" ({theirs[result.method]})" if result.method in theirs else ""
            ends.append(_End(mean[-1], name + beside, look.colour, strong=True))
        _session_axis(axes, results[0])
        axes.set_ylim(0, _top([axes]))
        axes.set_ylabel("accuracy over all seen classes (%)")
        axes.set_title(title(results[0]))
        _name_ends(figure, axes, ends)
    return figure


def base_novel_figure(results: Sequence[RunResult]) -> Figure:
    """Base accuracy, novel accuracy and their harmonic mean, session by session, side by side on one scale."""
    _comparable(results)
    looks = _looks([result.method for result in results])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.6))
        panels = [figure.add_axes((0.06 + 0.26 * i, 0.18, 0.235, 0.66)) for i in range(3)]
        ends: list[_End] = []
        for axes, (field, heading) in zip(
            panels,
            (("base", "base classes"), ("novel", "new classes"), ("harmonic", "harmonic mean")),
            strict=True,
        ):
            for result, name, look in zip(results, names(results), looks, strict=True):
                mean = _line(axes, getattr(result, field), look)
                if axes is panels[-1] and not np.isnan(mean[-1]):
                    ends.append(_End(mean[-1], name, look.colour, strong=True))
            _session_axis(axes, results[0], every=2)
            axes.set_title(heading)
        for axes in panels:
            axes.set_ylim(0, _top(panels))
        for axes in panels[1:]:
            axes.tick_params(labelleft=False)
        panels[0].set_ylabel("accuracy among all seen classes (%)")
        figure.text(0.06, 0.985, title(results[0]), va="top", color=FAINT)
        _name_ends(figure, panels[-1], ends)
    return figure


def confusion_figure(
    confusion: Ints, session_of_class: Ints, heading: str = "", class_names: Sequence[str] = ()
) -> Figure:
    """What each class (row) is taken for (column), as shares of its test images; lines between the base and new classes.

    Colours grow with the square root of the share, so that scattered mistakes are seen beside the diagonal. Where names of
    the classes are given, and there is room for them, they stand at the axes.
    """
    _check_confusion(confusion, session_of_class)
    with matplotlib.rc_context(FRAMED):
        figure = Figure(figsize=(5.6, 5.0))
        axes = figure.add_axes((0.12, 0.1, 0.7, 0.78))
        image, seen, base = _confusion(axes, confusion, session_of_class, class_names)
        axes.set_title(heading or f"{seen} classes, {base} of them base")
        _shares_bar(figure, image, (0.85, 0.1, 0.025, 0.78))
    return figure


def confusions_figure(
    confusions: Mapping[str, Ints], session_of_class: Ints, difference: tuple[str, str]
) -> Figure:
    """Confusion matrices of the same classes, two in a row, each under its heading; then one of them minus another.

    The difference is white where there is none, and its numbers are what changed in each of the four blocks, in points.
    """
    for confusion in confusions.values():
        _check_confusion(confusion, session_of_class)
    side, gap, left, right, top, bottom = 3.0, 0.3, 0.5, 0.75, 0.6, 0.75  # inches
    panels = [*confusions, " minus ".join(difference)]
    lines = (len(panels) + 1) // 2
    width, height = left + 2 * (side + gap) + right, lines * (side + top) + bottom
    with matplotlib.rc_context(FRAMED):
        figure = Figure(figsize=(width, height))
        for number, heading in enumerate(panels):
            line, column = divmod(number, 2)
            x, y = left + column * (side + gap), height - (line + 1) * (side + top)
            axes = figure.add_axes((x / width, y / height, side / width, side / height))
            bar = ((x + side + gap / 2) / width, y / height, 0.1 / width, side / height)
            if heading in confusions:
                image, *_ = _confusion(axes, confusions[heading], session_of_class)
                if number == 1:
                    _shares_bar(figure, image, bar)
            else:
                first, second = (confusions[name] for name in difference)
                image = _confusion_difference(axes, first, second, session_of_class)
                _bar(figure, image, bar, "difference (points)")
            axes.set_title(heading)
            if column:
                axes.set_ylabel("")
                axes.tick_params(labelleft=False)
            if line < lines - 1:
                axes.set_xlabel("")
        figure.text(
            left / width,
            0.1 / height,
            "numbers: how many points a block gains or loses, mean over its true classes",
            **REMARK,
        )
    return figure


def _confusion_difference(
    axes: Axes, confusion: Ints, other: Ints, session_of_class: Ints
) -> AxesImage:
    """How many points more of a class's images are taken for a class; the colours grow with the square root, as those of shares."""
    seen = _seen(confusion, session_of_class)
    change = (_shares(confusion) - _shares(other))[:seen, :seen]
    limit = max(float(np.ceil(np.abs(change).max())), 1.0)
    root = FuncNorm(
        (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * x**2),
        vmin=-limit,
        vmax=limit,
    )
    image = axes.imshow(change, cmap=LESS_TO_MORE, norm=root, interpolation="nearest")
    base = _frame_confusion(axes, session_of_class[:seen])
    for rows in (slice(0, base), slice(base, None)):
        for columns in (slice(0, base), slice(base, None)):
            block = change[rows, columns]
            if block.size:
                place = (
                    block.shape[1] / 2 - 0.5 + columns.start,
                    rows.start + block.shape[0] / 2 - 0.5,
                )
                axes.text(
                    *place,
                    f"{block.sum(1).mean():+.1f}".replace("-", "−"),
                    ha="center",
                    va="center_baseline",
                    bbox=BEHIND,
                )
    return image


def _check_confusion(confusion: Ints, session_of_class: Ints) -> None:
    classes = len(session_of_class)
    if confusion.shape != (classes, classes):
        raise ConfigError(
            f"a confusion matrix of {classes} classes must be {classes} × {classes}, not {' × '.join(map(str, confusion.shape))}"
        )


def _seen(confusion: Ints, session_of_class: Ints) -> int:
    """How many classes are shown: those that have not arrived are left out."""
    return max(
        int((confusion.sum(1) > 0).nonzero()[0].max(initial=-1)) + 1,
        int((session_of_class == 0).sum()),
    )


def _shares(confusion: Ints) -> Floats:
    """Of each class's images, in percent."""
    found: Floats = 100 * confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    return found


def _confusion(
    axes: Axes, confusion: Ints, session_of_class: Ints, class_names: Sequence[str] = ()
) -> tuple[AxesImage, int, int]:
    """One matrix in its axes; returns its image, and how many classes are seen and how many of these are base."""
    seen = _seen(confusion, session_of_class)
    shares = _shares(confusion)[:seen, :seen]
    image = axes.imshow(
        shares, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=100), interpolation="nearest"
    )
    base = _frame_confusion(axes, session_of_class[:seen], class_names)
    return image, seen, base


def _frame_confusion(axes: Axes, session_of_class: Ints, class_names: Sequence[str] = ()) -> int:
    """Lines between sessions and names at the axes; returns how many classes are base."""
    seen, base = len(session_of_class), int((session_of_class == 0).sum())
    for before, after in pairwise(session_of_class):
        if before != after and before != 0:
            edge = int((session_of_class <= before).sum()) - 0.5
            for draw in (axes.axhline, axes.axvline):
                draw(edge, color=FAINT, linewidth=0.4, alpha=0.5)
    if base < seen:
        for draw in (axes.axhline, axes.axvline):
            draw(base - 0.5, color=VERMILION, linewidth=1.2)
        middles, words = [(base - 1) / 2, (base + seen - 1) / 2], ["base", "new"]
    else:
        middles, words = [(base - 1) / 2], ["base"]
    if class_names and seen <= NAMED_CLASSES:
        names = [name if len(name) <= 20 else f"{name[:19]}…" for name in class_names[:seen]]
        axes.set_xticks(range(seen), names, rotation=90, fontsize=7, parse_math=False)
        axes.set_yticks(range(seen), names, fontsize=7, parse_math=False)
    else:
        axes.set_xticks(middles, words)
        axes.set_yticks(middles, words, rotation=90, va="center")
    axes.tick_params(length=0)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    return base


def _shares_bar(figure: Figure, image: AxesImage, place: tuple[float, float, float, float]) -> None:
    _bar(figure, image, place, "share of the true class (%)", [0, 1, 5, 10, 25, 50, 75, 100])


def _bar(
    figure: Figure,
    image: AxesImage,
    place: tuple[float, float, float, float],
    label: str,
    ticks: Sequence[float] | None = None,
) -> None:
    bar = figure.colorbar(image, cax=figure.add_axes(place), ticks=ticks)
    bar.set_label(label)
    bar.outline.set_visible(False)


def bars_figure(results: Mapping[str, RunResult], subject: str = "") -> Figure:
    """Average accuracy and performance drop as bars from zero, one for each named result; the subject's are coloured."""

    def draw(axes: Axes, means: Floats, stds: Floats, colours: Sequence[str]) -> None:
        axes.barh(range(len(means)), means, 0.7, color=colours)
        axes.set_xlim(0, 1.18 * max(float((means + stds).max()), 1))

    return _measures_figure(
        results, draw, [VERMILION if label == subject else BAR for label in results]
    )


def points_figure(results: Mapping[str, RunResult], subject: str = "") -> Figure:
    """Average accuracy and performance drop as points on axes that are cut to them, for results that differ by little.

    The subject's are coloured.
    """

    def draw(axes: Axes, means: Floats, stds: Floats, colours: Sequence[str]) -> None:
        low, high = float((means - stds).min()), float((means + stds).max())
        span = max(high - low, 1.0)  # differences of less than a point stay small
        for y, (mean, colour) in enumerate(zip(means, colours, strict=True)):
            axes.axhline(y, color=GRID, linewidth=0.8, linestyle=(0, (1, 2)), zorder=0)
            axes.plot(mean, y, marker="o", markersize=6, color=colour, zorder=3)
        axes.set_xlim(low - 0.1 * span, low + 1.3 * span)

    colours = [VERMILION if label == subject else MARK for label in results]
    return _measures_figure(results, draw, colours, "the axes do not begin at 0")


def _measures_figure(
    results: Mapping[str, RunResult],
    draw: Callable[[Axes, Floats, Floats, Sequence[str]], None],
    colours: Sequence[str],
    *remarks: str,
) -> Figure:
    """Two panels, a row for each result: its mean, drawn by `draw`, its deviation over runs, and the mean as a number."""
    _comparable(list(results.values()))
    runs = min(result.runs for result in results.values())
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x", "axes.spines.left": False}):
        names = 0.25 + 0.07 * max(map(len, results))  # inches, at nine points
        height, width = 0.3 * len(results) + 1.3, names + 6.1
        figure = Figure(figsize=(width, height))
        panels = [
            figure.add_axes(
                ((names + 3.05 * i) / width, 0.65 / height, 2.6 / width, (height - 1.3) / height)
            )
            for i in range(2)
        ]
        for axes, (field, heading) in zip(
            panels,
            (("average", "average accuracy (%) ↑"), ("pd", "performance drop (points) ↓")),
            strict=True,
        ):
            means, stds = np.transpose(
                [mean_std(getattr(result, field)) for result in results.values()]
            )
            stds = np.nan_to_num(stds)
            draw(axes, means, stds, colours)
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
                place = (max(mean + std, axes.get_xlim()[0]), y)
                axes.annotate(
                    f"{mean:.2f}",
                    place,
                    (7, 0),
                    textcoords="offset points",
                    va="center_baseline",
                    fontsize=8,
                    bbox=BEHIND,
                )
            axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            axes.set_ylim(len(means) - 0.4, -0.6)
            axes.set_title(heading)
            axes.set_yticks(
                range(len(means)),
                list(results) if axes is panels[0] else [""] * len(means),
                parse_math=False,
            )
        figure.text(
            names / width, 0.995, title(next(iter(results.values()))), va="top", color=FAINT
        )
        spread = (
            f"± one standard deviation over {runs} runs"
            if runs > 1
            else "one run each: how much runs differ is not known"
        )
        figure.text(names / width, 0.1 / height, "; ".join((spread, *remarks)), **REMARK)
    return figure


def grid_figure(
    accuracy: Floats,
    ways: Sequence[int],
    shots: Sequence[int],
    heading: str,
    remark: str,
    error: float = np.nan,
) -> Figure:
    """Last session's accuracy by ways (rows) and shots (columns) of the pseudo-incremental episodes, with a remark below.

    NaN is a cell that was not measured. `error` is the standard error of a cell where it is known: cells within it of the best are framed.
    """
    if accuracy.shape != (len(ways), len(shots)):
        raise ConfigError(
            f"{len(ways)} ways and {len(shots)} shots make a grid of {len(ways)} × {len(shots)}, not {' × '.join(map(str, accuracy.shape))}"
        )
    width, height = 1.4 + 0.75 * len(shots), 1.55 + 0.55 * len(ways)
    with matplotlib.rc_context(
        {**STYLE, "axes.grid": False, "axes.spines.left": False, "axes.spines.bottom": False}
    ):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes(
            (0.6 / width, 0.75 / height, 0.75 * len(shots) / width, 0.55 * len(ways) / height)
        )
        axes.imshow(accuracy, cmap="Blues", aspect="auto")
        known = ~np.isnan(accuracy)
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
        axes.set_xticks(range(len(shots)), list(map(str, shots)))
        axes.set_yticks(range(len(ways)), list(map(str, ways)))
        axes.tick_params(length=0)
        axes.set_xlabel("shots")
        axes.set_ylabel("ways")
        axes.set_title(heading)
        framed = [] if np.isnan(error) else ["framed: within one standard error of the best"]
        figure.text(0.6 / width, 0.2 / height, "\n".join([remark, *framed]), va="top", **REMARK)
    return figure


def run_figure(
    result: RunResult, lines: Mapping[str, Table], published_rows: Sequence[PublishedRow] = ()
) -> Figure:
    """Named measures of one result by session, small enough to be read on a phone; a line's colour is its place's."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2, 3.0))
        axes = figure.add_axes((0.1, 0.21, 0.6, 0.75))
        ends = [
            _End(float(row.sessions[-1] or 0), "published", FAINT, strong=False)
            for row in published_rows
        ]
        for row in published_rows:
            known = [(x, y) for x, y in enumerate(row.sessions) if y is not None]
            axes.plot(
                *zip(*known, strict=True), color=FAINT, linewidth=1, linestyle=(0, (4, 2)), zorder=2
            )
        for (name, runs), colour, marker in zip(lines.items(), PALETTE, MARKERS, strict=False):
            mean = _line(axes, runs, _Look(colour, marker))
            if not np.isnan(mean[-1]):
                ends.append(_End(mean[-1], name, colour, strong=True))
        _session_axis(axes, result, every=max(1, len(result.sessions) // 6))
        axes.set_ylim(0, _top([axes]))
        axes.set_ylabel("accuracy (%)")
        _name_ends(figure, axes, ends)
    return figure


def reliability_figure(confidence: Floats, right: Floats) -> Figure:
    """How often answers are right, by how confident they were; below, how many there are of each."""
    bins = 10
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    share = 100 * np.divide(
        np.bincount(place, right, bins), count, out=np.full(bins, np.nan), where=count > 0
    )
    middles, width = (np.arange(bins) + 0.5) * 100 / bins, 94 / bins
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2, 3.3))
        upper, lower = (
            figure.add_axes((0.13, 0.38, 0.83, 0.58)),
            figure.add_axes((0.13, 0.14, 0.83, 0.16)),
        )
        upper.bar(middles, share, width, color=BLUE, zorder=2)
        upper.plot(
            [0, 100], [0, 100], color=VERMILION, linewidth=1.2, linestyle=(0, (4, 2)), zorder=3
        )
        upper.text(2, 97, "dashed: as right as confident", color=VERMILION, fontsize=8, va="top")
        upper.set_ylim(0, 100)
        upper.set_ylabel("right (%)")
        upper.tick_params(labelbottom=False)
        lower.bar(middles, 100 * count / max(1, len(confidence)), width, color=GREY, zorder=2)
        lower.set_ylabel("answers (%)")
        lower.set_xlabel("confidence (%)")
        for axes in (upper, lower):
            axes.set_xlim(0, 100)
    return figure


def tsne_figure(
    embeddings: Floats,
    labels: Ints,
    before: Floats,
    after: Floats,
    class_names: Sequence[str],
    base: int,
    benchmark: str,
    remark: str,
) -> Figure:
    """Embeddings of a few classes with their weights before (crosses) and after adaptation (triangles), joined by red arrows.

    The first `base` classes have filled dots, the new ones rings. All are laid out by one t-SNE of their cosines. Where a weight moves
    too little to leave room for an arrow between the two signs, there is none. The remark is a line below the title.
    """
    points = _laid_out(np.concatenate([embeddings, before, after]))
    dots, crosses, triangles = np.split(points, [len(embeddings), len(embeddings) + len(before)])
    with matplotlib.rc_context(FRAMED):
        figure = Figure(figsize=(6.6, 4.8))
        axes = figure.add_axes((0.03, 0.04, 0.7, 0.88))
        for number, name in enumerate(class_names):
            colour = CLASSES[number % len(CLASSES)]
            own = dots[labels == number]
            face = colour if number < base else "none"
            axes.scatter(
                own[:, 0],
                own[:, 1],
                s=14,
                facecolors=face,
                edgecolors=colour,
                linewidths=0.7,
                alpha=0.55,
                label=name,
                zorder=1,
            )
            for place, sign in (
                (crosses[number], _before(colour)),
                (triangles[number], _after(colour)),
            ):
                axes.plot(*place, **sign, zorder=4)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.margins(0.05)
        axes.autoscale_view()
        paths = (
            np.stack([axes.transData.transform(ends) for ends in (crosses, triangles)])
            * 72
            / figure.dpi
        )  # points
        for cross, triangle, length in zip(
            crosses, triangles, np.linalg.norm(paths[1] - paths[0], axis=1), strict=True
        ):
            if length > 1.6 * SIGN_POINTS:
                axes.annotate("", triangle, cross, arrowprops=ARROW, zorder=3)
        handles, shown = axes.get_legend_handles_labels()
        signs = [Line2D([], [], **_before(INK)), Line2D([], [], **_after(INK))]
        legend = axes.legend(
            [*handles, *signs],
            [*shown, "weights before", "weights after"],
            loc="upper left",
            bbox_to_anchor=(1.01, 1.01),
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
        axes.set_title(
            f"{benchmark}: {base} base classes (dots) and {len(class_names) - base} new ones (rings)",
            pad=22,
        )
        axes.annotate(
            remark,
            (0, 1),
            (0, 7),
            xycoords="axes fraction",
            textcoords="offset points",
            color=FAINT,
        )
    return figure


def _before(colour: str) -> dict[str, Any]:
    """The sign of a weight before adaptation."""
    look = {
        "marker": "X",
        "markerfacecolor": "white",
        "markeredgecolor": colour,
        "markeredgewidth": 1.6,
    }
    return {**look, "markersize": SIGN_POINTS, "linestyle": ""}


def _after(colour: str) -> dict[str, Any]:
    """The sign of a weight after adaptation."""
    look = {
        "marker": "^",
        "markerfacecolor": colour,
        "markeredgecolor": "white",
        "markeredgewidth": 0.9,
    }
    return {**look, "markersize": SIGN_POINTS, "linestyle": ""}


def _laid_out(points: Floats) -> Floats:
    """Two dimensions for each point, so that near ones stay near: t-SNE of the cosines, from the main axes on."""
    from sklearn.manifold import TSNE  # takes a second

    unit = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    layout = TSNE(
        perplexity=min(30.0, (len(points) - 1) / 3),
        init="pca",
        learning_rate="auto",
        random_state=0,
    )
    found: Floats = layout.fit_transform(unit).astype(np.float64)
    return found


def save(figure: Figure, path: Path) -> list[Path]:
    """Write the figure as .png and .svg, or in the one format of FORMATS that the path ends in; returns the files."""
    targets = (
        [path]
        if path.suffix.lower() in FORMATS
        else [path.with_name(path.name + suffix) for suffix in (".png", ".svg")]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for target in targets:
            date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(
                target.suffix.lower(), {}
            )  # same figure, same bytes
            figure.savefig(
                target,
                dpi=200,
                bbox_inches="tight",
                pad_inches=0.1,
                facecolor="white",
                metadata=date,
            )
    return targets


def save_all(figure: Figure, path: Path) -> None:
    """Write the figure in all formats, for a paper and for a page."""
    for suffix in FORMATS:
        save(figure, path.with_name(path.name + suffix))


def to_svg(figure: Figure) -> str:
    """The figure as an <svg> element for a page: no background, no size of its own, nothing that a page does not need."""
    text = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(
            text,
            format="svg",
            transparent=True,
            bbox_inches="tight",
            pad_inches=0.05,
            metadata={"Date": None},
        )
    svg = text.getvalue()
    svg = re.sub(
        r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL
    )
    return re.sub(
        r'(<svg [^>]*?)width="[^"]*"([^>]*?)height="[^"]*"|(<svg [^>]*?)height="[^"]*"([^>]*?)width="[^"]*"',
        r"\1\2\3\4",
        svg,
        count=1,
    )


# ---- the parts of a figure


def _comparable(results: Sequence[RunResult]) -> None:
    if len(groups(results)) != 1:
        given = ", ".join(title(group[0]) for group in groups(results)) or "none"
        raise ConfigError(
            f"one figure shows results of one benchmark with the same sessions, and was given {given}: draw a figure for each"
        )


def _line(axes: Axes, runs: Sequence[Sequence[float | None]], look: _Look) -> list[float]:
    """The mean over runs, with a band of ± one deviation where there are several; returns the mean."""
    mean, std = mean_std([[np.nan if value is None else value for value in run] for run in runs])
    x = np.arange(len(mean))
    axes.plot(
        x,
        mean,
        color=look.colour,
        marker=look.marker,
        markersize=4.5,
        markeredgewidth=0,
        linewidth=1.8,
        zorder=3,
    )
    if len(runs) > 1:
        axes.fill_between(
            x, mean - std, mean + std, color=look.colour, alpha=0.18, linewidth=0, zorder=1
        )
    return [float(value) for value in mean]


def _session_axis(axes: Axes, result: RunResult, every: int = 1) -> None:
    sizes = result.sessions
    axes.set_xticks(
        range(0, len(sizes), every),
        [f"{i}\n{sizes[i].classes}" for i in range(0, len(sizes), every)],
    )
    axes.set_xlim(-0.25, max(len(sizes) - 1, 0) + 0.25)
    axes.set_xlabel("session, and classes seen")


def _top(panels: Sequence[Axes]) -> float:
    """The next ten above all that is drawn."""
    highest = max((axes.dataLim.y1 for axes in panels if np.isfinite(axes.dataLim.y1)), default=100)
    return float(np.clip(10 * np.ceil(highest / 10), 10, 100))


def _name_ends(figure: Figure, axes: Axes, ends: Sequence[_End]) -> None:
    """Names right of the lines' ends in the lines' colours, pushed apart where they would overlap."""
    low, high = axes.get_ylim()
    gap = LABEL_POINTS / (72 * axes.get_position().height * figure.get_figheight()) * (high - low)
    ordered = sorted(ends, key=lambda end: end.value)
    beside = axes.get_yaxis_transform()
    for end, y in zip(
        ordered, spread_apart([end.value for end in ordered], gap, low, high), strict=True
    ):
        axes.plot(
            [1, 1.02, 1.05, 1.06],
            [end.value, end.value, y, y],
            transform=beside,
            color=end.colour,
            linewidth=0.6,
            clip_on=False,
        )
        size, weight = (8.5, "bold") if end.strong else (7.5, "normal")
        axes.text(
            1.07,
            y,
            end.name,
            transform=beside,
            color=end.colour,
            fontsize=size,
            fontweight=weight,
            va="center_baseline",
        )


def spread_apart(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Rising positions near the rising values, at least `gap` apart, and within the limits if there is room.

    Neighbours that are too close become a block around the mean of their values; blocks that meet merge.
    """
    blocks: list[tuple[float, int]] = []  # middle, size
    for value in values:
        middle, size = float(value), 1
        while True:
            half = (size - 1) * gap / 2
            middle = (
                max(low + half, min(middle, high - half))
                if high - low >= 2 * half
                else (low + high) / 2
            )
            if (
                not blocks
                or middle - half - (blocks[-1][0] + (blocks[-1][1] - 1) * gap / 2) >= gap - 1e-9
            ):
                break
            other, count = blocks.pop()
            middle, size = (middle * size + other * count) / (size + count), size + count
        blocks.append((middle, size))
    return [middle + (i - (size - 1) / 2) * gap for middle, size in blocks for i in range(size)]
