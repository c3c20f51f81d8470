"""Write names beside the ends of lines, without overlap."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

LABEL_POINTS = 11.5  # the height of a name beside a line


@dataclass(frozen=True)
class LineEnd:
    """Hold where a line ends and the name to write there."""

    value: float
    name: str
    color: str
    strong: bool


def name_line_ends(figure: Figure, axes: Axes, ends: Sequence[LineEnd]) -> None:
    """Write names right of the lines' ends in their colors, pushed apart if they would overlap."""
    low, high = axes.get_ylim()
    gap = LABEL_POINTS / (72 * axes.get_position().height * figure.get_figheight()) * (high - low)
    ordered = sorted(ends, key=lambda end: end.value)
    positions = spread_apart([end.value for end in ordered], gap, low, high)
    beside = axes.get_yaxis_transform()
    for end, y in zip(ordered, positions, strict=True):
        axes.plot(
            [1, 1.02, 1.05, 1.06],
            [end.value, end.value, y, y],
            transform=beside,
            color=end.color,
            linewidth=0.6,
            clip_on=False,
        )
        axes.text(
            1.07,
            y,
            end.name,
            transform=beside,
            color=end.color,
            fontsize=8.5 if end.strong else 7.5,
            fontweight="bold" if end.strong else "normal",
            va="center_baseline",
        )


def spread_apart(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions near rising values, at least `gap` apart, within the limits if they fit.

    Neighbours that are too close become a block around the mean of their values; blocks that meet
    merge.
    """
    blocks: list[tuple[float, int]] = []  # middle, size
    for value in values:
        middle = float(value)
        size = 1
        while True:
            half = (size - 1) * gap / 2
            if high - low >= 2 * half:
                middle = max(low + half, min(middle, high - half))
            else:
                middle = (low + high) / 2
            if not blocks or middle - half - _top(blocks[-1], gap) >= gap - 1e-9:
                break
            other, count = blocks.pop()
            middle = (middle * size + other * count) / (size + count)
            size += count
        blocks.append((middle, size))
    return [middle + (i - (size - 1) / 2) * gap for middle, size in blocks for i in range(size)]


def _top(block: tuple[float, int], gap: float) -> float:
    middle, size = block
    return middle + (size - 1) * gap / 2
