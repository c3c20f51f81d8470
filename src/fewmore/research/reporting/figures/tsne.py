"""Draw embeddings and class weights before and after adaptation, laid out by t-SNE."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fewmore.research.metrics import Floats, Ints
from fewmore.research.reporting.figures.style import (
    BLACK,
    BLUE,
    FAINT,
    FRAMED,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    WINE,
)

# Of single classes. Arrows are vermilion.
CLASS_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, "#C9B800", WINE, BLACK, GREY)
MARKER_POINTS = 9  # the size of a weight's marker
ARROW = {
    "arrowstyle": "-|>",
    "color": VERMILION,
    "linewidth": 1.2,
    "mutation_scale": 8,
    "shrinkA": 4,
    "shrinkB": 5,
}


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
    """Draw embeddings of a few classes with their weights before and after adaptation.

    Weights before adaptation are crosses, after it triangles, joined by red arrows. The first
    `base` classes have filled dots, the new ones rings. All are laid out by one t-SNE of their
    cosines. The remark is a line below the title.
    """
    points = _layout(np.concatenate([embeddings, before, after]))
    dots, crosses, triangles = np.split(points, [len(embeddings), len(embeddings) + len(before)])
    with matplotlib.rc_context(FRAMED):
        figure = Figure(figsize=(6.6, 4.8))
        axes = figure.add_axes((0.03, 0.04, 0.7, 0.88))
        for number, name in enumerate(class_names):
            color = CLASS_COLORS[number % len(CLASS_COLORS)]
            own = dots[labels == number]
            axes.scatter(
                own[:, 0],
                own[:, 1],
                s=14,
                facecolors=color if number < base else "none",
                edgecolors=color,
                linewidths=0.7,
                alpha=0.55,
                label=name,
                zorder=1,
            )
            axes.plot(*crosses[number], **_cross(color), zorder=4)
            axes.plot(*triangles[number], **_triangle(color), zorder=4)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.margins(0.05)
        axes.autoscale_view()
        _draw_arrows(axes, crosses, triangles, figure.dpi)
        _draw_legend(axes)
        new = len(class_names) - base
        heading = f"{benchmark}: {base} base classes (dots) and {new} new ones (rings)"
        axes.set_title(heading, pad=22)
        axes.annotate(
            remark,
            (0, 1),
            (0, 7),
            xycoords="axes fraction",
            textcoords="offset points",
            color=FAINT,
        )
    return figure


def _draw_arrows(axes: Axes, crosses: Floats, triangles: Floats, dpi: float) -> None:
    """Draw an arrow from each cross to its triangle, if there is room for it between the two."""
    ends = np.stack([axes.transData.transform(places) for places in (crosses, triangles)])
    ends = ends * 72 / dpi  # points
    lengths = np.linalg.norm(ends[1] - ends[0], axis=1)
    for cross, triangle, length in zip(crosses, triangles, lengths, strict=True):
        if length > 1.6 * MARKER_POINTS:
            axes.annotate("", triangle, cross, arrowprops=ARROW, zorder=3)


def _draw_legend(axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    markers = [Line2D([], [], **_cross(INK)), Line2D([], [], **_triangle(INK))]
    legend = axes.legend(
        [*handles, *markers],
        [*names, "weights before", "weights after"],
        loc="upper left",
        bbox_to_anchor=(1.01, 1.01),
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _cross(color: str) -> dict[str, Any]:
    """Return the marker of a weight before adaptation."""
    return {
        "marker": "X",
        "markerfacecolor": "white",
        "markeredgecolor": color,
        "markeredgewidth": 1.6,
        "markersize": MARKER_POINTS,
        "linestyle": "",
    }


def _triangle(color: str) -> dict[str, Any]:
    """Return the marker of a weight after adaptation."""
    return {
        "marker": "^",
        "markerfacecolor": color,
        "markeredgecolor": "white",
        "markeredgewidth": 0.9,
        "markersize": MARKER_POINTS,
        "linestyle": "",
    }


def _layout(points: Floats) -> Floats:
    """Return a position in two dimensions for each point: t-SNE of the cosines, from PCA on."""
    from sklearn.manifold import TSNE  # takes a second to import

    unit = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    layout = TSNE(
        perplexity=min(30.0, (len(points) - 1) / 3),
        init="pca",
        learning_rate="auto",
        random_state=0,
    )
    positions: Floats = layout.fit_transform(unit).astype(np.float64)
    return positions
