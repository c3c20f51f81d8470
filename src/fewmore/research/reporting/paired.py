"""Build tables of paired differences: each result against one of them, over shared runs."""

from collections.abc import Mapping, Sequence

from fewmore.errors import ConfigError, UnknownName
from fewmore.research.reporting.tables import Cell, Grid, heading, split_text
from fewmore.research.results import RunKey, RunResult, names, run_keys, same_benchmark
from fewmore.research.statistics import common_runs, paired_difference

COLUMNS = ("difference", "low", "high", "p", "pairs")
MEASURES = {"last": "accuracy after the last session", "average": "average accuracy"}
NOTES = (
    "difference: the row minus the reference, in points, mean over runs of the same seed and draw",
    "low, high: its 95 % confidence interval; p: two-sided, of no difference (paired t test, "
    "not corrected for several comparisons)",
    "pairs: seeds, of which each is the mean over its draws; or draws, where there is one seed",
)
SAME = "–: the difference is the same in all pairs, so that these are one measurement, not several"


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
    shared = {i: _shared_runs(result, other) for i, result in enumerate(results) if i != place}
    missing = tuple(
        f"{labels[i]} and {labels[place]} {_why_not(results[i], other)}"
        for i, runs in shared.items()
        if len(runs) < 2
    )
    if len(missing) == len(shared):
        raise ConfigError("\n".join(f"{subject}: {sentence}" for sentence in missing))
    grids = []
    for name, meaning in MEASURES.items():
        rows = tuple(
            (labels[i], _cells(_by_run(results[i], name), _by_run(other, name)))
            for i, runs in shared.items()
            if len(runs) > 1
        )
        full_title = f"{subject}: {meaning}, compared with {labels[place]}"
        same = (SAME,) if any(cells[1].mean is None for _, cells in rows) else ()
        grids.append(Grid(full_title, "method", COLUMNS, rows, (*missing, *NOTES, *same)))
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


def _by_run(result: RunResult, measure: str) -> dict[RunKey, float]:
    return dict(zip(run_keys(result), getattr(result, measure), strict=True))


def _shared_runs(result: RunResult, other: RunResult) -> set[RunKey]:
    same = same_benchmark([result, other])
    return set(run_keys(result)) & set(run_keys(other)) if same else set()


def _why_not(result: RunResult, other: RunResult) -> str:
    """Say why two results have no paired difference."""
    if not same_benchmark([result, other]):
        return (
            f"are of different versions of {other.benchmark}, and a difference is over the same "
            "images: run both on the same version"
        )
    return (
        f"share {'1 run' if _shared_runs(result, other) else 'no run'}, and a difference has an "
        "interval from 2 on: run both with the same seeds, such as --seeds 3"
    )


def _cells(values: Mapping[RunKey, float], reference: Mapping[RunKey, float]) -> tuple[Cell, ...]:
    found = paired_difference(*common_runs(values, reference))
    points = (Cell(value, signed=True) for value in (found.mean, found.low, found.high))
    return (*points, Cell(found.p, decimals=4), Cell(found.pairs, decimals=0))
