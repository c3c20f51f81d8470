"""Define the style of all figures, and choose colors and markers.

Colors are those of Okabe and Ito and a wine red, which color-blind readers can tell apart; markers
tell lines apart in grey print.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

INK = "#222222"
FAINT = "#777777"
GRID = "#e4e4e4"
VERMILION = "#D55E00"
BLUE = "#0072B2"
GREEN = "#009E73"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREY = "#888888"
BLACK = "#000000"
WINE = "#882255"

PALETTE = (VERMILION, BLUE, GREEN, PURPLE, ORANGE, SKY, GREY, BLACK, WINE)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
METHOD_COLORS = {
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
FRAMED: dict[Any, Any] = {
    **STYLE,
    "axes.grid": False,
    "axes.spines.top": True,
    "axes.spines.right": True,
}
REMARK: dict[str, Any] = {"color": FAINT, "fontsize": 8}  # a line below a figure
# The box behind a number, so that no line runs through it.
BEHIND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


@dataclass(frozen=True)
class Look:
    """Hold the color and marker of a line."""

    color: str
    marker: str


def choose_looks(methods: Sequence[str]) -> list[Look]:
    """Choose a look for each line.

    The color is the method's own if no line has it yet, else one that is free, else any.
    """
    reserved = {METHOD_COLORS[method] for method in methods if method in METHOD_COLORS}
    colors: list[str] = []
    for i, method in enumerate(methods):
        own = [METHOD_COLORS[method]] if method in METHOD_COLORS else []
        unreserved = [color for color in PALETTE if color not in reserved]
        free = [color for color in (*own, *unreserved, *PALETTE) if color not in colors]
        colors.append(free[0] if free else PALETTE[i % len(PALETTE)])
    return [Look(color, MARKERS[i % len(MARKERS)]) for i, color in enumerate(colors)]
