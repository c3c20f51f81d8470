"""Draw figures of results in one style: a method keeps its color, lines are named at their ends.

May import matplotlib, research.metrics, research.published, research.results and reporting.tables.
Start at style.py; nothing here touches pyplot or its global state.
"""

from fewmore.research.reporting.figures.confusion import confusion_figure, confusions_figure
from fewmore.research.reporting.figures.files import FORMATS, save, save_all, to_svg
from fewmore.research.reporting.figures.measures import bars_figure, points_figure
from fewmore.research.reporting.figures.reliability import reliability_figure
from fewmore.research.reporting.figures.sessions import (
    base_novel_figure,
    run_figure,
    sessions_figure,
)
from fewmore.research.reporting.figures.trials import trials_figure
from fewmore.research.reporting.figures.tsne import tsne_figure
from fewmore.research.reporting.figures.ways_shots import ways_shots_figure

__all__ = [
    "FORMATS",
    "bars_figure",
    "base_novel_figure",
    "confusion_figure",
    "confusions_figure",
    "points_figure",
    "reliability_figure",
    "run_figure",
    "save",
    "save_all",
    "sessions_figure",
    "to_svg",
    "trials_figure",
    "tsne_figure",
    "ways_shots_figure",
]
