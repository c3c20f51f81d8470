"""Compare how scattered the predictions for new classes are with and without the adapter."""

import csv
import math

from claims.evidence import Evidence
from claims.judge import Comparison, Estimate, is_better, required_gain

WITHOUT_ADAPTER = ("CEC without its adapter", "Decoupled-Cosine")
COLUMNS = {"entropy of new": -1, "new right": 1, "new taken for base": -1}  # the sign of a gain


def confusion(evidence: Evidence) -> list[Comparison]:
    """Compare by the study's table, which has the differences seed by seed."""
    return [
        comparison
        for benchmark in evidence.benchmarks("confusion")
        for comparison in _confusion(evidence, benchmark)
    ]


def _confusion(evidence: Evidence, benchmark: str) -> list[Comparison]:
    path = evidence.folder("confusion", benchmark) / "table.csv"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    table = {row["classifier"]: row for row in csv.DictReader(lines)}
    seeds = max((result.runs for result in evidence.rows("confusion", benchmark)), default=0)

    def estimate(classifier: str, column: str, sign: int = 1) -> Estimate:
        row = table[classifier]
        std = row.get(f"{column}_std")
        return Estimate(sign * float(row[column]), float(std) if std else None, seeds)

    comparisons = []
    for without in WITHOUT_ADAPTER:
        for column, sign in COLUMNS.items():
            names = (benchmark, "CEC", without, column)
            if not table:
                comparisons.append(Comparison(*names))
                continue
            gain = estimate(f"CEC minus {without}", column, sign)
            required = required_gain(gain, math.nan)  # a single seed can hold in part at most
            both = (estimate("CEC", column), estimate(without, column))
            verdict = is_better(gain.mean, required)
            comparisons.append(Comparison(*names, (None, None), both, gain, required, verdict))
    return comparisons
