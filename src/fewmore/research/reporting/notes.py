"""Say below a table what its numbers leave open: deviations, recipes, stage 1, sources, exam."""

import math
import shlex
from collections.abc import Sequence

from fewmore.research import metrics, published
from fewmore.research.outdated import recipe_changes
from fewmore.research.published import PublishedRow
from fewmore.research.results import SHARED_STAGE1, RunResult, same_benchmark

SHARED = "stage 1 from another run"


def std_notes(results: Sequence[RunResult], labels: Sequence[str]) -> list[str]:
    """Say what ± is, and how much of it comes from seeds and from draws."""
    notes = []
    if any(result.runs > 1 for result in results):
        notes.append("±: standard deviation over runs (n − 1)")
    for result, label in zip(results, labels, strict=True):
        over_seeds = metrics.std_within(result.last, fixed=result.draws)
        over_draws = metrics.std_within(result.last, fixed=result.seeds)
        several_of_both = len(set(result.seeds)) > 1 and len(set(result.draws)) > 1
        if several_of_both and not math.isnan(over_seeds + over_draws):
            notes.append(
                f"{label}, last session: ± {over_seeds:.2f} over seeds with the draw fixed, "
                f"± {over_draws:.2f} over draws"
            )
    return notes


def recipe_notes(results: Sequence[RunResult], labels: Sequence[str]) -> list[str]:
    """Name the rows whose recipe has other settings today, with these settings."""
    changes = zip(labels, map(recipe_changes, results), strict=True)
    return [
        f"{label}: measured with an earlier recipe: {'; '.join(map(str, changed))}"
        for label, changed in changes
        if changed
    ]


def layer_failures(results: Sequence[RunResult], labels: Sequence[str]) -> dict[str, list[str]]:
    """Return the rows that a GPU trained without fused layers, by why these failed to load."""
    rows: dict[str, list[str]] = {}
    for result, label in zip(results, labels, strict=True):
        if result.layer_failure:
            rows.setdefault(result.layer_failure, []).append(label)
    return rows


def layer_notes(results: Sequence[RunResult], labels: Sequence[str]) -> list[str]:
    """Name the rows whose fused layers failed to load, and the error."""
    return [
        f"{', '.join(rows)}: trained with PyTorch's own layers, as the fused ones failed to load: "
        f"{failure}"
        for failure, rows in layer_failures(results, labels).items()
    ]


def benchmark_notes(results: Sequence[RunResult]) -> list[str]:
    """Say where the benchmark was edited between the results, so that images may differ."""
    if same_benchmark(results):
        return []
    return [f"rows name several versions of {results[0].benchmark}: their images may differ"]


def shared_stage1_notes(results: Sequence[RunResult]) -> list[str]:
    """Say how many runs took over stage 1 from another run, and whether its seconds are known."""
    times = [run[SHARED_STAGE1] for r in results for run in r.seconds if SHARED_STAGE1 in run]
    counted = sum(seconds > 0 for seconds in times)
    notes = []
    if counted:
        runs = "1 run" if counted == 1 else f"{counted} runs"
        notes.append(f"{runs} took over {SHARED}; the seconds of training it are included")
    if len(times) > counted:  # in results from before the seconds were recorded
        missing = len(times) - counted
        runs = "1 run" if missing == 1 else f"{missing} runs"
        notes.append(f"{runs} took over {SHARED}; the seconds of training it are not included")
    return notes


def exam_notes(results: Sequence[RunResult]) -> list[str]:
    """Name the methods that are not fewmore's own: only those pass the exam in every release."""
    own = {
        _typed(result): result.method
        for result in results
        if "method_source" in result.machine or ":" in result.method
    }
    if not own:
        return []
    names = dict.fromkeys(own.values())
    what = "is a user's method" if len(names) == 1 else "are users' methods"
    exam = f"fewmore exam {shlex.join(own)} checks {'it' if len(own) == 1 else 'them'}"
    return [f"{', '.join(names)} {what}, not known to have passed the exam: {exam}"]


def _typed(result: RunResult) -> str:
    """Return a user's method as a command names it; older results have its file alone."""
    source = result.machine.get("method_source")
    if not isinstance(source, dict):
        return result.method
    return str(source.get("named") or f"{source.get('file')}:CLASS")


def source_notes(rows: Sequence[PublishedRow]) -> list[str]:
    """Say where published rows were printed."""
    notes = []
    if rows:
        notes.append(f"published: {published.source()}")
    if any(row.backbone for row in rows):
        notes.append(f"published, with a backbone: {published.later_note()}")
    return notes
