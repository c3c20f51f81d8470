"""Read recorded studies and compare their rows run by run.

A study is a folder results/studies/STUDY-BENCHMARK with one JSON file per row.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

from claims.judge import (
    Comparison,
    Estimate,
    Measure,
    Rule,
    Side,
    is_better,
    required_gain,
)
from fewmore.research import results
from fewmore.research.published import ROW_OF_METHOD, PublishedRow
from fewmore.research.results import RunResult

MAIN = "cifar100"  # the benchmark of all studies
COMPARISON = "comparison"  # of all methods of the paper's tables
COMPARED = ("cifar100", "miniimagenet")  # the benchmarks of the comparison
PAPERS = "cub200"  # the benchmark of most studies of the paper


@dataclass(frozen=True)
class Evidence:
    """Give access to the results below a folder."""

    results: Path

    def folder(self, study: str, benchmark: str) -> Path:
        """Return the folder of a study."""
        return self.results / "studies" / f"{study}-{benchmark}"

    def rows(self, study: str, benchmark: str) -> list[RunResult]:
        """Read all results of a study; the list is empty where it was not run.

        Settings that the whole study was run with are left out of each row's. The comparison, where
        it was not run as a study, has the rows of the paper's methods that are measured.
        """
        folder = self.folder(study, benchmark) / "results"
        found = [results.read(path) for path in sorted(folder.glob("*.json"))]
        if study == COMPARISON and not found:
            paths = (self.results / f"{benchmark}-{method}.json" for method in ROW_OF_METHOD)
            found = [results.read(path) for path in paths if path.exists()]
        return [
            replace(
                row,
                settings={
                    name: value
                    for name, value in row.settings.items()
                    if f"{name}={value}" not in study_settings(row)
                },
            )
            for row in found
        ]

    def settings(self, study: str, benchmark: str) -> list[str]:
        """Return the settings that a whole study was run with, such as `pseudo.encoder=last`."""
        rows = self.rows(study, benchmark)
        return sorted({setting for row in rows for setting in study_settings(row)})

    def benchmarks(self, study: str, always: Sequence[str] = (MAIN,)) -> list[str]:
        """Return where a study is judged: some benchmarks always, CUB200 once it was measured."""
        return [*always, *([PAPERS] if self.rows(study, PAPERS) else [])]

    def seed_std(self, benchmark: str, measure: Measure) -> float:
        """Return the standard deviation of CEC's seeds; NaN, which no gain exceeds, if unknown."""
        path = self.results / f"{benchmark}-cec.json"
        values = measure.measured(results.read(path)) if path.exists() else ()
        return stdev(values) if len(values) > 1 else math.nan

    def compare(
        self,
        benchmark: str,
        better: Side,
        worse: Side,
        measure: Measure,
        rule: Rule = is_better,
    ) -> Comparison:
        """Compare two sides over the runs that both have: runs of one seed share stage 1."""
        published = (better.published, worse.published)
        names = (benchmark, better.name, worse.name, measure.name, published)
        common = [run for run in better.runs if run in worse.runs]
        if not common:
            return Comparison(*names)
        pairs = [(better.runs[run], worse.runs[run]) for run in common]
        sign = -1 if measure.lower_is_better else 1
        gain = Estimate.of([sign * (first - second) for first, second in pairs])
        required = required_gain(gain, self.seed_std(benchmark, measure))
        first, second = (Estimate.of(values) for values in zip(*pairs, strict=True))
        return Comparison(*names, (first, second), gain, required, rule(gain.mean, required))


def study_settings(row: RunResult) -> list[str]:
    """Return what follows --set in the command of a study; a row may be of a run of its own."""
    words = shlex.split(row.command)
    if "reproduce" not in words:
        return []
    return [value for option, value in pairwise(words) if option == "--set"]


def side(
    name: str,
    rows: Sequence[RunResult],
    measure: Measure,
    method: str,
    settings: Mapping[str, str],
    published: PublishedRow | None,
) -> Side:
    """Select the row of a method with these settings; without runs where there is none."""
    matching = [row for row in rows if row.method == method and row.settings == settings]
    if len(matching) > 1:  # left from an earlier run into the same folder
        raise ValueError(
            f"{', '.join(map(results.file_name, matching))} are the same row of a study: "
            "remove those that are old"
        )
    runs = {
        run: value
        for row in matching
        for run, value in zip(
            zip(row.seeds, row.draws, strict=True), measure.measured(row), strict=True
        )
    }
    printed = measure.published(published) if published else None
    return Side(name, runs, printed)


def mean_of(name: str, sides: Sequence[Side]) -> Side:
    """Average several rows over the runs that all of them have."""
    common = [run for run in sides[0].runs if all(run in other.runs for other in sides)]
    return Side(name, {run: fmean(row.runs[run] for row in sides) for run in common})


def best_of(sides: Sequence[Side], measure: Measure) -> Side:
    """Return the row with the best mean; if a row was not measured, return that row."""
    missing = [row for row in sides if not row.runs]
    if missing:
        return missing[0]
    choose = min if measure.lower_is_better else max
    return choose(sides, key=lambda row: row.mean)
