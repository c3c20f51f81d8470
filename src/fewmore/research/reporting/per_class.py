"""Measure a run class by class, after its last session: accuracy, and what it is taken for."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fewmore.research.metrics import Ints
from fewmore.research.predictions import Predictions
from fewmore.research.reporting.tables import Cell, mean_cell

COLUMNS = ("class", "session", "images", "accuracy", "accuracy_std", "taken_for", "taken_for_share")


@dataclass(frozen=True)
class ClassRow:
    """Hold the measures of one class over all runs."""

    name: str
    session: int  # in which it arrived; 0 for base classes
    images: int  # test images
    accuracy: Cell
    taken_for: str  # the class that its images are most often taken for; empty: none
    share: float  # of its images that are, in percent


def class_rows(runs: Sequence[Predictions]) -> list[ClassRow]:
    """Return a row a class, in the order of arrival."""
    first = runs[0]
    accuracies = np.stack([run.class_accuracy() for run in runs])
    mistakes = pooled_confusion(runs)
    totals = np.maximum(mistakes.sum(1), 1)
    np.fill_diagonal(mistakes, 0)
    rows = []
    for label, session in enumerate(first.session_of_class):
        other = int(mistakes[label].argmax())
        count = int(mistakes[label, other])
        rows.append(
            ClassRow(
                first.class_names[label],
                int(session),
                int((first.labels == label).sum()),
                mean_cell(accuracies[:, label].tolist()),
                first.class_names[other] if count else "",
                100 * count / int(totals[label]),
            )
        )
    return rows


def pooled_confusion(runs: Sequence[Predictions]) -> Ints:
    """Return the confusion matrix after the last session, summed over runs."""
    confusion: Ints = np.sum([run.confusion() for run in runs], axis=0)
    return confusion


def weakest(rows: Sequence[ClassRow], count: int) -> list[ClassRow]:
    """Return the classes of the lowest accuracy, the lowest first."""
    known = [row for row in rows if row.accuracy.mean is not None]
    return sorted(known, key=lambda row: row.accuracy.mean or 0.0)[:count]


def to_csv(rows: Sequence[ClassRow]) -> str:
    """Write a line a class; a field is empty where there is no number."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for row in rows:
        numbers = [
            "" if value is None else round(value, 4)
            for value in (row.accuracy.mean, row.accuracy.std)
        ]
        share = round(row.share, 4) if row.taken_for else ""
        lines.writerow([row.name, row.session, row.images, *numbers, row.taken_for, share])
    return text.getvalue()
