"""Reproduce the paper's tables and figures, one file a study; STUDIES lists them.

May import research and research.reporting; `fewmore reproduce NAME` is its command.
Start at base.py, then comparison.py: a study is its experiments and how they are drawn.
"""

from fewmore.errors import UnknownName
from fewmore.research.studies import (
    ablation,
    comparison,
    confusion,
    rotation,
    tsne,
    ways_shots,
)
from fewmore.research.studies.base import Finished, Setting, Study, write

__all__ = ["STUDIES", "Finished", "Setting", "Study", "find", "write"]

STUDIES = {
    study.name: study
    for study in (
        Study(
            "comparison",
            "All methods session by session, beside the published rows",
            paper="Fig. 7, Table 2, supplement",
            size=9,
            experiments=comparison.experiments,
            draw=comparison.draw,
        ),
        Study(
            "ablation",
            "Part by part: decoupling, data init, adapter, PIL, query node",
            paper="Table 1",
            size=11,
            experiments=ablation.experiments,
            draw=ablation.draw,
        ),
        Study(
            "rotation",
            "Accuracy and drop by the angles of pseudo-incremental classes",
            paper="Fig. 6",
            size=7,
            experiments=rotation.experiments,
            draw=rotation.draw,
        ),
        Study(
            "ways-shots",
            "Last session's accuracy by ways and shots of an episode",
            paper="Fig. 5",
            size=25,
            experiments=ways_shots.experiments,
            draw=ways_shots.draw,
        ),
        Study(
            "confusion",
            "Confusion matrices with and without the adapter",
            paper="Fig. 3",
            size=2,
            experiments=confusion.experiments,
            draw=confusion.draw,
        ),
        Study(
            "tsne",
            "Embeddings and weights before and after adaptation",
            paper="Fig. 4",
            size=1,
            experiments=tsne.experiments,
            draw=tsne.draw,
        ),
    )
}


def find(name: str) -> Study:
    """Return a study by its name."""
    if name not in STUDIES:
        raise UnknownName("study", name, [*STUDIES, "all", "list"])
    return STUDIES[name]
