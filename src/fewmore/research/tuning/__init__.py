"""Choose settings on the validation split of the base classes: `fewmore tune`.

May import all of research but studies. No test image and no new class of a benchmark is used.
Start at search.py (`tune`); space.py says what is tried, record.py what is written of it.
"""

from fewmore.research.tuning.record import MEASURES, Record, Trial, read
from fewmore.research.tuning.search import Search, tune
from fewmore.research.tuning.space import Range, Values, parse_range, parse_values
from fewmore.research.tuning.summary import command_of_best, edge_notes, grid_of_trials

__all__ = [
    "MEASURES",
    "Range",
    "Record",
    "Search",
    "Trial",
    "Values",
    "command_of_best",
    "edge_notes",
    "grid_of_trials",
    "parse_range",
    "parse_values",
    "read",
    "tune",
]
