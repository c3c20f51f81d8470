"""Draw the accuracy after the last session of every method with the network of the paper."""

from dataclasses import dataclass, field
from statistics import fmean, stdev

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    measured: list[float] = field(default_factory=list)
    one_view: list[float] = field(default_factory=list)

    @property
    def rank(self) -> float:
        """Return what lines are sorted by: the measured accuracy, else the published one."""
        return fmean(self.measured) if self.measured else self.published or 0.0

    @property
    def lowest(self) -> float:
        """Return the lower one of both accuracies."""
        return min(self.rank, self.rank if self.published is None else self.published)


def draw() -> Figure:
    """Draw a panel for each benchmark, the highest method at the top."""
    panels = {name: sorted(_lines(name), key=lambda line: line.rank) for name in NAMES}
    with rc_context({**style.STYLE, "axes.grid.axis": "x"}):
        height = 0.9 + 0.21 * max(map(len, panels.values()))
        figure = Figure(figsize=(9.6, height), layout="constrained")
        for axes, (name, lines) in zip(
            figure.subplots(1, len(panels)), panels.items(), strict=True
        ):
            _panel(axes, lines)
            network = published.backbones()[published.backbone_of_cec(name)].name
            axes.set_title(f"{NAMES[name]}, {network}")
            axes.set_xlabel("last session (%)")
        handles, labels = axes.get_legend_handles_labels()
        shown = dict(zip(labels, handles, strict=True))
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=4)
    return figure


def _panel(axes: Axes, lines: list[Line]) -> None:
    for height, line in enumerate(lines):
        if line.published is not None:
            chosen = "epoch: last" if line.is_last_epoch else "epoch: best on test, or unknown"
            marker = "o" if line.is_last_epoch else "^"
            axes.plot(
                line.published,
                height,
                marker,
                markerfacecolor="white",
                color=style.FAINT,
                label=f"published, {chosen}",
                linestyle="none",
            )
        if line.measured:
            spread = stdev(line.measured) if len(line.measured) > 1 else None
            axes.errorbar(
                fmean(line.measured),
                height,
                xerr=spread,
                fmt="o",
                color=style.VERMILION,
                label="measured, all test views",
            )
        if line.one_view:
            axes.plot(
                fmean(line.one_view),
                height,
                "|",
                color=style.VERMILION,
                markersize=9,
                label="measured, one test view",
                linestyle="none",
            )
    axes.set_yticks(range(len(lines)), [line.name for line in lines])
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
            lines[name] = Line(name, last, about.selection == "last epoch")
    for row in leaderboard.ranked(benchmark):
        if row.settings or row.recipe != "official" or row.keeps:
            continue
        name = leaderboard.published_name(row)
        line = lines.setdefault(name or row.method, Line(name or row.method))
        line.measured, line.one_view = list(row.last), _one_view(row)
    return [line for line in lines.values() if line.lowest >= LEAST]


def _one_view(row: RunResult) -> list[float]:
    """Return the accuracies with a single test view, where others have several."""
    several = max(count or 1 for count in row.test_views) > 1
    return [value for value in row.one_view if value is not None] if several else []
