"""Read what is recorded below results/."""

import json
import re
from pathlib import Path
from typing import Any

from claims.evidence import COMPARISON, Evidence, study_settings

from fewmore.methods import METHODS
from fewmore.research import results
from fewmore.research.published import OFFICIAL
from fewmore.research.results import RunResult

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "results"

# Files recorded before the project was renamed are kept as they were written.
PRESENT_WORDS = {
    "cecil": "fewmore",
    "picture": "image",
    "pictures": "images",
    "answers": "predictions",
}


def read_text(path: Path) -> str:
    """Read a recorded text in the project's present words."""
    old = re.compile(rf"\b({'|'.join(PRESENT_WORDS)})\b")
    return old.sub(lambda match: PRESENT_WORDS[match[0]], path.read_text(encoding="utf-8"))


def read_benchmark(path: Path) -> dict[str, Any]:
    """Read a speed measurement that a script in benchmarks/ has recorded."""
    recorded: dict[str, Any] = json.loads(read_text(path))
    return recorded


def read_results(benchmark: str) -> list[RunResult]:
    """Read all results of a benchmark, in the order of the table of methods.

    Rows of the comparison fill in where there is no other.
    """
    order = list(METHODS)
    compared = Evidence(RESULTS).rows(COMPARISON, benchmark)
    rows = {
        results.file_name(row): row
        for row in (
            *(row for row in compared if not study_settings(row)),
            *map(results.read, sorted(RESULTS.glob(f"{benchmark}-*.json"))),
        )
    }

    def key(result: RunResult) -> tuple[int, str, str]:
        known = result.method in order
        position = order.index(result.method) if known else len(order)
        return position, result.recipe or "", str(result.settings)

    return sorted(rows.values(), key=key)


def read_explanations() -> list[RunResult]:
    """Read the runs with changed settings that explain gaps to published rows."""
    return [results.read(path) for path in sorted((RESULTS / "explain").glob("*.json"))]


def read_compared(benchmark: str) -> dict[str, RunResult]:
    """Read the row of each method that can be set beside a published one."""
    return {
        row.method: row
        for row in read_results(benchmark)
        if not row.settings and row.recipe == "official" and row.split == OFFICIAL
    }


def read_re_encoded(benchmark: str) -> dict[str, RunResult]:
    """Read the rows, by method, that were measured from re-encoded copies of the images."""
    rows = map(results.read, sorted((RESULTS / "re-encoded").glob(f"{benchmark}-*.json")))
    return {row.method: row for row in rows}
