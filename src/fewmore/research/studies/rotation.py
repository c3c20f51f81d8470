"""Vary the rotation angles that make pseudo-incremental classes of base classes (Fig. 6)."""

from collections.abc import Mapping
from pathlib import Path

from fewmore.research.experiment import Experiment
from fewmore.research.reporting import figures, tables
from fewmore.research.reporting.tables import Table
from fewmore.research.studies.base import Finished, Setting, Study

ANGLES = {
    "180°": "180",
    "±90°": "90,270",
    "±45°": "45,-45",
    "±20°": "20,-20",
    "±10°": "10,-10",
    "±5°": "5,-5",
    "90°, 180°, 270°": None,  # CEC's own
}


def experiments(setting: Setting) -> dict[str, Experiment]:
    """Return an experiment for each set of angles."""
    return {
        label: setting.experiment("cec", *([f"pseudo.angles={angles}"] if angles else []))
        for label, angles in ANGLES.items()
    }


def draw(setting: Setting, finished: Mapping[str, Finished], out: Path) -> Table:
    """Draw average accuracy and performance drop by angles, and return the table."""
    results = {
        label if ANGLES[label] else f"{label} (CEC)": each.result
        for label, each in finished.items()
    }
    own = next((label for label in results if label not in ANGLES), "")
    figures.save_all(figures.points_figure(results, highlight=own), out / "rotation")
    return tables.build(list(results.values()), with_published=False, labels=list(finished))


STUDY = Study(
    "rotation",
    "Accuracy and drop by the angles of pseudo-incremental classes",
    "Fig. 6",
    7,
    experiments,
    draw,
)
