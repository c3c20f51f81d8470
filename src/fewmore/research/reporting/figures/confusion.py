"""Draw confusion matrices, and the difference of two."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm, LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from fewmore.errors import ConfigError
from fewmore.research.metrics import Floats, Ints
from fewmore.research.reporting.figures.style import BEHIND, FAINT, FRAMED, REMARK, VERMILION

NAMED_CLASSES = 40  # the most classes that are named at the axes
# A figure with one matrix grows with its classes, which have 3 pixels or more, up to LARGEST.
INCHES_PER_CLASS = 0.02
LARGEST = 20.0
DIFFERENCE_COLORS = LinearSegmentedColormap.from_list(
    "less to more", ["#5E2A84", "#C2A5CF", "#FFFFFF", "#A6DBA0", "#00682A"], N=257
)
# Inches of the figure with several matrices: a matrix, the gap between two, and the margins.
SIDE = 3.0
GAP = 0.3
LEFT = 0.5
RIGHT = 0.75
TOP = 0.6
BOTTOM = 0.75

Rectangle = tuple[float, float, float, float]


def confusion_figure(
    confusion: Ints, session_of_class: Ints, heading: str = "", class_names: Sequence[str] = ()
) -> Figure:
    """Draw how each class (row) is predicted (column), as shares of its test images.

    Lines separate base and new classes. Colors grow with the square root of the share, so that
    scattered errors are seen beside the diagonal. Class names stand at the axes if there is room.
    """
    _check_shape(confusion, session_of_class)
    with matplotlib.rc_context(FRAMED):
        side = max(5.0, min(len(confusion) * INCHES_PER_CLASS, LARGEST))
        figure = Figure(figsize=(side + 0.6, side))
        axes = figure.add_axes((0.12, 0.1, 0.7, 0.78))
        image = _draw_matrix(axes, confusion, session_of_class, class_names)
        seen = _classes_seen(confusion, session_of_class)
        base = int((session_of_class == 0).sum())
        axes.set_title(heading or f"{seen} classes, {base} of them base")
        _add_share_bar(figure, image, (0.85, 0.1, 0.025, 0.78))
    return figure


def confusions_figure(
    confusions: Mapping[str, Ints], session_of_class: Ints, difference: tuple[str, str]
) -> Figure:
    """Draw confusion matrices of the same classes, two in a row, then one of them minus another.

    The difference is white where there is none, and its numbers are what changed in each of the
    four blocks, in points.
    """
    for confusion in confusions.values():
        _check_shape(confusion, session_of_class)
    panels = [*confusions, " minus ".join(difference)]
    lines = (len(panels) + 1) // 2
    width = LEFT + 2 * (SIDE + GAP) + RIGHT
    height = lines * (SIDE + TOP) + BOTTOM
    with matplotlib.rc_context(FRAMED):
        figure = Figure(figsize=(width, height))
        for number, heading in enumerate(panels):
            line, column = divmod(number, 2)
            x = LEFT + column * (SIDE + GAP)
            y = height - (line + 1) * (SIDE + TOP)
            axes = figure.add_axes((x / width, y / height, SIDE / width, SIDE / height))
            bar = ((x + SIDE + GAP / 2) / width, y / height, 0.1 / width, SIDE / height)
            if heading in confusions:
                image = _draw_matrix(axes, confusions[heading], session_of_class)
                if number == 1:
                    _add_share_bar(figure, image, bar)
            else:
                first, second = (confusions[name] for name in difference)
                image = _draw_difference(axes, first, second, session_of_class)
                _add_color_bar(figure, image, bar, "difference (points)")
            axes.set_title(heading)
            if column:
                axes.set_ylabel("")
                axes.tick_params(labelleft=False)
            if line < lines - 1:
                axes.set_xlabel("")
        remark = "numbers: how many points a block gains or loses, mean over its true classes"
        figure.text(LEFT / width, 0.1 / height, remark, **REMARK)
    return figure


def _check_shape(confusion: Ints, session_of_class: Ints) -> None:
    classes = len(session_of_class)
    if confusion.shape != (classes, classes):
        shape = " × ".join(map(str, confusion.shape))
        raise ConfigError(
            f"a confusion matrix of {classes} classes must be {classes} × {classes}, not {shape}"
        )


def _classes_seen(confusion: Ints, session_of_class: Ints) -> int:
    """Return how many classes are shown: those that have not arrived are left out."""
    with_images = int((confusion.sum(1) > 0).nonzero()[0].max(initial=-1)) + 1
    return max(with_images, int((session_of_class == 0).sum()))


def _shares(confusion: Ints) -> Floats:
    """Return the percentage of each class's images."""
    shares: Floats = 100 * confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    return shares


def _draw_matrix(
    axes: Axes, confusion: Ints, session_of_class: Ints, class_names: Sequence[str] = ()
) -> AxesImage:
    seen = _classes_seen(confusion, session_of_class)
    shares = _shares(confusion)[:seen, :seen]
    image = axes.imshow(
        shares, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=100), interpolation="nearest"
    )
    _draw_frame(axes, session_of_class[:seen], class_names)
    return image


def _draw_difference(axes: Axes, confusion: Ints, other: Ints, session_of_class: Ints) -> AxesImage:
    """Draw by how many points the share of each prediction is larger than in the other matrix.

    The colors grow with the square root, as those of shares do.
    """
    seen = _classes_seen(confusion, session_of_class)
    change = (_shares(confusion) - _shares(other))[:seen, :seen]
    limit = max(float(np.ceil(np.abs(change).max())), 1.0)
    root = FuncNorm(
        (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * x**2),
        vmin=-limit,
        vmax=limit,
    )
    image = axes.imshow(change, cmap=DIFFERENCE_COLORS, norm=root, interpolation="nearest")
    _draw_frame(axes, session_of_class[:seen])
    base = int((session_of_class == 0).sum())
    for rows in (slice(0, base), slice(base, None)):
        for columns in (slice(0, base), slice(base, None)):
            block = change[rows, columns]
            if block.size:
                axes.text(
                    columns.start + block.shape[1] / 2 - 0.5,
                    rows.start + block.shape[0] / 2 - 0.5,
                    f"{block.sum(1).mean():+.1f}".replace("-", "−"),
                    ha="center",
                    va="center_baseline",
                    bbox=BEHIND,
                )
    return image


def _draw_frame(axes: Axes, session_of_class: Ints, class_names: Sequence[str] = ()) -> None:
    """Draw lines between sessions, and names at the axes."""
    seen = len(session_of_class)
    base = int((session_of_class == 0).sum())
    for before, after in pairwise(session_of_class):
        if before != after and before != 0:
            edge = int((session_of_class <= before).sum()) - 0.5
            _draw_edge(axes, edge, color=FAINT, linewidth=0.4, alpha=0.5)
    if base < seen:
        _draw_edge(axes, base - 0.5, color=VERMILION, linewidth=1.2)
    if class_names and seen <= NAMED_CLASSES:
        names = [name if len(name) <= 20 else f"{name[:19]}…" for name in class_names[:seen]]
        axes.set_xticks(range(seen), names, rotation=90, fontsize=7, parse_math=False)
        axes.set_yticks(range(seen), names, fontsize=7, parse_math=False)
    else:
        middles = {"base": (base - 1) / 2}
        if base < seen:
            middles["new"] = (base + seen - 1) / 2
        axes.set_xticks(list(middles.values()), list(middles))
        axes.set_yticks(list(middles.values()), list(middles), rotation=90, va="center")
    axes.tick_params(length=0)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")


def _draw_edge(axes: Axes, place: float, color: str, linewidth: float, alpha: float = 1) -> None:
    axes.axhline(place, color=color, linewidth=linewidth, alpha=alpha)
    axes.axvline(place, color=color, linewidth=linewidth, alpha=alpha)


def _add_share_bar(figure: Figure, image: AxesImage, place: Rectangle) -> None:
    ticks = [0, 1, 5, 10, 25, 50, 75, 100]
    _add_color_bar(figure, image, place, "share of the true class (%)", ticks)


def _add_color_bar(
    figure: Figure,
    image: AxesImage,
    place: Rectangle,
    label: str,
    ticks: Sequence[float] | None = None,
) -> None:
    bar = figure.colorbar(image, cax=figure.add_axes(place), ticks=ticks)
    bar.set_label(label)
    bar.outline.set_visible(False)
