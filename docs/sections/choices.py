"""Write which settings of the compared methods were chosen, and what they reach on test images."""

from collections.abc import Sequence
from typing import Any

from fewmore.research import results
from fewmore.research.reporting import tables
from fewmore.research.results import RunResult
from sections import recorded
from sections.markdown import UNMEASURED, markdown_table, over_runs, paragraph

MEASURES = ("last", "novel", "harmonic")
BY = {"by last": "last", "by harmonic": "harmonic"}

Json = dict[str, Any]


def choices() -> str:
    """Write both choices of each method: on the validation split, and on test images if run."""
    paths = sorted(recorded.RESULTS.glob("bench-tuning-*-gpu.json"))
    searches = [recorded.read_benchmark(path) for path in paths]
    if not searches:
        return UNMEASURED
    rows = [results.read(path) for path in sorted((recorded.RESULTS / "choices").glob("*.json"))]
    measured = []
    chosen = []
    missing = []
    for search in searches:
        about = search["about"]
        for key, measure in BY.items():
            row = _find(rows, about, about[key])
            names = [f"`{about['method']}`", measure]
            numbers = [tables.number(about[key].get(name)) for name in MEASURES]
            measured.append([*names, *numbers, *_test_cells(row)])
            chosen.append([*names, *_settings_cells(about[key])])
            if row is None:
                missing.append(f"    {about[key]['command']}")
    titles = ("method", "the best by", *MEASURES, *(f"test: {name}" for name in MEASURES))
    parts = [
        "\n".join(markdown_table(titles, measured, "llrrrrrr")),
        "\n".join(markdown_table(("method", "the best by", "settings", "at an edge"), chosen)),
        _about(searches),
    ]
    if missing:
        commands = "\n".join(dict.fromkeys(missing))
        parts.append(f"The runs on test images that are not recorded yet:\n\n{commands}")
    return "\n\n".join(parts) + "\n"


def _find(rows: Sequence[RunResult], about: Json, choice: Json) -> RunResult | None:
    """Return the run with a choice on test images, or None."""
    wanted = (about["benchmark"], about["method"], choice["settings"])
    found = (row for row in rows if (row.benchmark, row.method, dict(row.settings)) == wanted)
    return next(found, None)


def _settings_cells(choice: Json) -> list[str]:
    settings = ", ".join(f"`{name}={text}`" for name, text in choice["settings"].items())
    return [settings, ", ".join(choice["at an edge"]) or "no"]


def _test_cells(row: RunResult | None) -> list[str]:
    if row is None:
        return ["–"] * len(MEASURES)
    by_measure = [row.last, *([run[-1] for run in getattr(row, name)] for name in MEASURES[1:])]
    return list(map(over_runs, by_measure))


def _about(searches: Sequence[Json]) -> str:
    """Write what was tried, on which images, where and when."""
    trials = ", ".join(
        f"{each['about']['trials']} of {each['about']['method']}" for each in searches
    )
    failed = sum("error" in row for each in searches for row in each["rows"])
    seeds = sorted({each["about"]["seeds"] for each in searches})
    splits = " and ".join(sorted({each["about"]["split"] for each in searches}))
    methods = [each["about"]["method"] for each in searches]
    templates = dict.fromkeys(
        each["command"].replace(f"--methods {method} ", "--methods METHOD ")
        for each, method in zip(searches, methods, strict=True)
    )
    commands = ", ".join(f"`{template}`" for template in templates)
    if len(templates) == 1 and "--methods METHOD " in commands:
        commands += f", METHOD = {', '.join(methods)}"
    machines = ", ".join(sorted({f"{each['machine']}, {each['date']}" for each in searches}))
    return paragraph(
        f"Trials: {trials}; {failed} diverged or failed and count as the worst. The first three "
        "numbers are of held-out images of the base classes, means over "
        f"{' or '.join(map(str, seeds))} seeds ({splits}); those of the test are of the "
        "benchmark's own sessions. A setting is at an edge if no trial has had its next lower or "
        "higher value. All trials are in results/bench-tuning-METHOD-gpu.json. "
        f"{machines}: {commands}"
    )
