"""Build tables of paired differences: each result against one of them, over shared runs."""

from collections.abc import Sequence

from fewmore.errors import ConfigError, UnknownName
from fewmore.research.reporting.tables import Cell, Grid, heading, split_text
from fewmore.research.results import RunResult, names, run_keys
from fewmore.research.statistics import paired_difference

COLUMNS = ("difference", "low", "high", "p", "pairs")
MEASURES = {"last": "accuracy after the last session", "average": "average accuracy"}
NOTES = (
    "difference: the row minus the reference, in points, mean over runs of the same seed and draw",
    "low, high: its 95 % confidence interval; p: two-sided, of no difference (paired t test, "
    "not corrected for several comparisons)",
)


def build(results: Sequence[RunResult], reference: str | None = None) -> list[Grid]:
    """Compare each result of a group with the reference, in one grid a measure.

    Args:
        results: one group, as `tables.groups` returns it.
        reference: a method, or a row's name where there are several of that method; by default the
            first result.
    """
    labels = names(results)
    place = _find(results, labels, reference)
    other = results[place]
    subject = heading(results, split_text(other))
    if len(results) == 1:
        raise ConfigError(f"{subject}: {labels[0]} is alone, and a difference needs two results")
    shared = {
        i: _shared_runs(result, other) for i, result in enumerate(results) if result is not other
    }
    missing = tuple(
        f"{labels[i]} and {labels[place]} share {'1 run' if pairs else 'no run'}, and a difference "
        "has an interval from 2 on: run both with the same seeds, such as --seeds 3"
        for i, pairs in shared.items()
        if len(pairs) < 2
    )
    if len(missing) == len(shared):
        raise ConfigError("\n".join(f"{subject}: {sentence}" for sentence in missing))
    grids = []
    for name, meaning in MEASURES.items():
        rows = tuple(
            (labels[i], _cells(getattr(results[i], name), getattr(other, name), pairs))
            for i, pairs in shared.items()
            if len(pairs) > 1
        )
        full_title = f"{subject}: {meaning}, compared with {labels[place]}"
        grids.append(Grid(full_title, "method", COLUMNS, rows, (*missing, *NOTES)))
    return grids


def _find(results: Sequence[RunResult], labels: Sequence[str], reference: str | None) -> int:
    """Return the place of the reference among the results."""
    if reference is None:
        return 0
    if reference in labels:
        return labels.index(reference)
    places = [i for i, result in enumerate(results) if result.method == reference]
    if not places:
        raise UnknownName(f"result on {results[0].benchmark}", reference, labels)
    if len(places) > 1:
        several = " or ".join(f"'{labels[i]}'" for i in places)
        raise ConfigError(f"--reference {reference} stands for several results: use {several}")
    return places[0]


def _shared_runs(result: RunResult, other: RunResult) -> list[tuple[int, int]]:
    """Return the places of the runs that both have, in the one and in the other."""
    theirs = {key: i for i, key in enumerate(run_keys(other))}
    return [(i, theirs[key]) for i, key in enumerate(run_keys(result)) if key in theirs]


def _cells(
    values: Sequence[float], reference: Sequence[float], shared: Sequence[tuple[int, int]]
) -> tuple[Cell, ...]:
    found = paired_difference([values[i] for i, _ in shared], [reference[j] for _, j in shared])
    points = (Cell(value, signed=True) for value in (found.mean, found.low, found.high))
    return (*points, Cell(found.p, decimals=4), Cell(found.pairs, decimals=0))
