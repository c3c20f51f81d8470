"""Draw the accuracy after the last session of every method with the network of the paper."""

from dataclasses import dataclass, field
from statistics import fmean, stdev

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from fewmore.research import published
from fewmore.research.reporting.figures import style
from fewmore.research.results import RunResult
from sections import leaderboard
from sections.contents import NAMES

# Of published rows: what makes them another task. What is unknown of them does not.
UNLIKE = {
    "another backbone",
    "backbone unknown",
    "images kept",
    "extra data",
    "scores depend on the batch",
}
LEAST = 40.0  # methods that end lower, measured or published, are left to the table


@dataclass
class Line:
    """Hold what is known of a method: a published accuracy, and measured ones."""

    name: str
    published: float | None = None
    is_last_epoch: bool = False
    views: int = 1  # of a test image: of the measured row, else of the published one
    mark: str = ""
    measured: list[float] = field(default_factory=list)
    one_view: list[float] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Return the name with what a reader must know of the row."""
        return self.name + self.mark + (f", {self.views} views" if self.views > 1 else "")

    @property
    def rank(self) -> float:
        """Return what lines are sorted by: the measured accuracy, else the published one."""
        return fmean(self.measured) if self.measured else self.published or 0.0

    @property
    def lowest(self) -> float:
        """Return the lower one of both accuracies."""
        return min(self.rank, self.rank if self.published is None else self.published)


def draw() -> Figure:
    """Draw a panel for each benchmark, the highest method at the top, all to the same scale."""
    panels = {name: sorted(_lines(name), key=lambda line: line.rank) for name in NAMES}
    ranges = {name: _range(lines) for name, lines in panels.items()}
    span = max(high - low for low, high in ranges.values())
    with rc_context({**style.STYLE, "axes.grid.axis": "x"}):
        height = 1.1 + 0.21 * max(map(len, panels.values()))
        figure = Figure(figsize=(9.6, height), layout="constrained")
        for axes, (name, lines) in zip(
            figure.subplots(1, len(panels)), panels.items(), strict=True
        ):
            _panel(axes, lines)
            high = ranges[name][1]
            axes.set_xlim(high - span, high)
            axes.xaxis.set_major_locator(MultipleLocator(5))
            axes.set_title(f"{NAMES[name]}, {_network(name)}")
            axes.set_xlabel("last session (%)")
        shown = {}
        for axes in figure.axes:
            handles, labels = axes.get_legend_handles_labels()
            shown |= dict(zip(labels, handles, strict=True))
        ordered = sorted(shown)
        figure.legend(
            [shown[label] for label in ordered], ordered, loc="outside lower center", ncols=3
        )
    return figure


def _network(benchmark: str) -> str:
    return published.backbones()[published.backbone_of_cec(benchmark)].name


def _range(lines: list[Line]) -> tuple[float, float]:
    """Return where a panel begins and ends."""
    values = [
        value
        for line in lines
        for value in (line.published, *line.measured, *line.one_view)
        if value is not None
    ]
    return min(values, default=0.0) - 1, max(values, default=100.0) + 1


def _panel(axes: Axes, lines: list[Line]) -> None:
    for height, line in enumerate(lines):
        if line.measured:
            several = len(line.measured) > 1
            axes.errorbar(
                fmean(line.measured),
                height,
                xerr=stdev(line.measured) if several else None,
                fmt="o",
                color=style.VERMILION,
                markerfacecolor=style.VERMILION if several else "white",
                label=f"measured, {'several seeds' if several else 'one seed'}",
            )
        if line.one_view:
            axes.plot(
                fmean(line.one_view),
                height,
                "|",
                color=style.VERMILION,
                markersize=9,
                label="measured, with one view",
                linestyle="none",
            )
        if line.published is not None:
            chosen = "epoch: last" if line.is_last_epoch else "epoch: best on test, or unknown"
            axes.plot(
                line.published,
                height,
                "s" if line.is_last_epoch else "^",
                markerfacecolor="none",
                color=style.INK,
                markersize=5,
                zorder=3,  # not hidden by a measured row
                label=f"published, {chosen}",
                linestyle="none",
            )
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    for text, line in zip(axes.get_yticklabels(), lines, strict=True):
        if line.measured:
            text.set_fontweight("bold")


def _lines(benchmark: str) -> list[Line]:
    """Return the methods whose network and data are the paper's, and whose scores leak nothing."""
    lines: dict[str, Line] = {}
    for about in published.contents():
        for name in about.methods:
            last = published.accuracy_of(name, about, benchmark)[0]
            if last is None or UNLIKE & set(about.obstacles(benchmark)):
                continue
            views = about.views.get(benchmark) or 1
            lines[name] = Line(name, last, about.selection == "last epoch", views)
    for row in leaderboard.ranked(benchmark):
        if row.settings or row.recipe != "official" or row.keeps:
            continue
        name = leaderboard.published_name(row)
        line = lines.setdefault(name or row.method, Line(name or row.method))
        line.measured, line.one_view = list(row.last), _one_view(row)
        line.views, line.mark = leaderboard.test_views(row), leaderboard.mark(row)
    return [line for line in lines.values() if line.lowest >= LEAST]


def _one_view(row: RunResult) -> list[float]:
    """Return the accuracies with a single test view, where others have several."""
    several = leaderboard.test_views(row) > 1
    return [value for value in row.one_view if value is not None] if several else []
