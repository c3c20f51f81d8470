"""Reproduce the paper's tables and figures, one file a study; STUDIES lists them.

May import research and research.reporting; `fewmore reproduce NAME` is its command.
Start at base.py, then comparison.py: a study is its experiments and how they are drawn.
"""

from fewmore.errors import UnknownName
from fewmore.research.studies.ablation import ABLATION
from fewmore.research.studies.base import Finished, Setting, Study, write
from fewmore.research.studies.comparison import COMPARISON
from fewmore.research.studies.confusion import CONFUSION
from fewmore.research.studies.rotation import ROTATION
from fewmore.research.studies.tsne import TSNE
from fewmore.research.studies.ways_shots import WAYS_SHOTS

__all__ = ["STUDIES", "Finished", "Setting", "Study", "find", "write"]

STUDIES = {
    study.name: study for study in (COMPARISON, ABLATION, ROTATION, WAYS_SHOTS, CONFUSION, TSNE)
}


def find(name: str) -> Study:
    """Return a study by its name."""
    if name not in STUDIES:
        raise UnknownName("study", name, [*STUDIES, "all", "list"])
    return STUDIES[name]
