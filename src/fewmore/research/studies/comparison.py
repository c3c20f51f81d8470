"""Compare all methods by session: the tables of the supplement and the line charts (Fig. 7)."""

from collections.abc import Mapping
from pathlib import Path

from fewmore.research import published
from fewmore.research.experiment import Experiment
from fewmore.research.reporting import figures, tables
from fewmore.research.reporting.tables import Table
from fewmore.research.studies.base import Finished, Setting, Study

SLOW = "joint"  # trains anew at each session: left out of a quick comparison


def experiments(setting: Setting) -> dict[str, Experiment]:
    """Return an experiment for each method."""
    methods = [*published.ROW_OF_METHOD, *([] if setting.quick else [SLOW])]
    return {method: setting.experiment(method) for method in methods}


def draw(setting: Setting, finished: Mapping[str, Finished], out: Path) -> Table:
    """Draw accuracy by session, and return the table with the improvement of CEC."""
    results = [each.result for each in finished.values()]
    sessions = figures.sessions_figure(results, tables.published_rows(results))
    figures.save_all(sessions, out / "sessions")
    if len(results[0].sessions) > 1:
        figures.save_all(figures.base_novel_figure(results), out / "base-novel")
    return tables.build(results, improvement_of="cec", with_nothing_learnt=True)


STUDY = Study(
    "comparison",
    "All methods session by session, beside the published rows",
    "Fig. 7, Table 2, supplement",
    9,
    experiments,
    draw,
)
