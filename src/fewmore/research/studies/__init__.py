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
from fewmore.research.studies.base import Finished, Setting, Study, check_out, write

__all__ = ["STUDIES", "Finished", "Setting", "Study", "check_out", "find", "write"]

# In the order in which `fewmore reproduce all` runs them.
MODULES = (comparison, ablation, rotation, ways_shots, confusion, tsne)
STUDIES: dict[str, Study] = {module.STUDY.name: module.STUDY for module in MODULES}


def find(name: str) -> Study:
    """Return a study by its name."""
    if name not in STUDIES:
        raise UnknownName("study", name, [*STUDIES, "all", "list"])
    return STUDIES[name]
