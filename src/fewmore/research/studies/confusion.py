"""Compare confusion matrices with and without the adapter (Fig. 3)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewmore.research.experiment import Experiment, run_name
from fewmore.research.metrics import Floats, Ints
from fewmore.research.predictions import read_predictions
from fewmore.research.reporting import figures, tables
from fewmore.research.reporting.tables import Grid
from fewmore.research.studies.base import Finished, Setting, Study

WITHOUT_ADAPTER = "CEC without its adapter"
# By heading: a method, and the name of its scores; "" is the method's own.
SCORES = {
    "Decoupled-Cosine": ("decoupled-cosine", ""),
    WITHOUT_ADAPTER: ("cec", "cosine_after_pil"),
    "CEC": ("cec", ""),
}
COLUMNS = (
    "base right",
    "new right",
    "new taken for base",
    "base taken for new",
    "entropy of base",
    "entropy of new",
)


def experiments(setting: Setting) -> dict[str, Experiment]:
    """Return the experiments of CEC and of the same features without adaptation."""
    return {method: setting.experiment(method) for method in ("decoupled-cosine", "cec")}


def draw(setting: Setting, finished: Mapping[str, Finished], out: Path) -> Grid:
    """Draw the confusion matrices over all runs, and return what they show as numbers."""
    matrices: dict[str, list[Ints]] = {}
    for heading, (method, scores) in SCORES.items():
        matrices[heading], session_of_class = _confusion_matrices(finished[method], scores)
    pooled: dict[str, Ints] = {heading: np.sum(runs, axis=0) for heading, runs in matrices.items()}
    figure = figures.confusions_figure(pooled, session_of_class, ("CEC", WITHOUT_ADAPTER))
    figures.save_all(figure, out / "confusion")
    new = session_of_class > 0
    measures = {
        heading: np.array([_measures(matrix, new) for matrix in runs])
        for heading, runs in matrices.items()
    }  # runs × columns
    rows = [(heading, tuple(map(tables.mean_cell, runs.T))) for heading, runs in measures.items()]
    for other in (WITHOUT_ADAPTER, "Decoupled-Cosine"):
        cells = map(tables.mean_cell, (measures["CEC"] - measures[other]).T)
        rows.append((f"CEC minus {other}", tuple(replace(cell, signed=True) for cell in cells)))
    notes = (
        "after the last session, in percent of the images",
        "entropy: of the predictions of one class's images, in bits, mean over classes; "
        "0 where all are the same",
    )
    title = f"{setting.benchmark}: how scattered the predictions are"
    return Grid(title, "classifier", COLUMNS, tuple(rows), notes)


def _confusion_matrices(finished: Finished, scores: str) -> tuple[list[Ints], Ints]:
    """Return the matrix of each run after the last session, and the session of each class."""
    runs = [
        read_predictions(finished.folder / run_name(*run), scores)
        for run in finished.experiment.runs()
    ]
    return [run.confusion() for run in runs], runs[0].session_of_class


def _measures(confusion: Ints, new: NDArray[np.bool_]) -> list[float]:
    """Return the columns of the table for one confusion matrix."""
    shares: Floats = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    entropy = -(shares * np.log2(np.where(shares > 0, shares, 1))).sum(1)
    correct = np.diag(shares)
    values = [
        100 * correct[~new],
        100 * correct[new],
        100 * shares[new][:, ~new].sum(1),
        100 * shares[~new][:, new].sum(1),
        entropy[~new],
        entropy[new],
    ]
    return [float(value.mean()) if len(value) else math.nan for value in values]


STUDY = Study(
    "confusion", "Confusion matrices with and without the adapter", "Fig. 3", 2, experiments, draw
)
