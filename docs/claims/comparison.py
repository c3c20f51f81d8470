"""Compare the rows of the comparison of methods, the paper's Table 2 and Figure 7."""

from dataclasses import replace
from itertools import pairwise

from claims.ablation import NO_GRAPH, NO_QUERY, ablation_sides
from claims.evidence import COMPARED, COMPARISON, Evidence, best_of, side
from claims.judge import AVERAGE, LAST, PD, Comparison, Measure, Side
from fewmore.research import published
from fewmore.research.published import ROW_OF_METHOD

STEPS = (
    ("Ft-CNN",),
    ("iCaRL", "EEIL", "NCM"),
    ("TOPIC",),
    ("Decoupled-Cosine", "Decoupled-DeepEMD"),
    ("CEC",),
)  # the paper's order at the last session, from the lowest to the highest
EARLIER = STEPS[:3]  # the methods before the paper


def comparison_sides(evidence: Evidence, benchmark: str, measure: Measure) -> dict[str, Side]:
    """Return the rows of the comparison by the paper's names."""
    rows = evidence.rows(COMPARISON, benchmark)
    published_rows = published.published(benchmark)
    return {
        name: side(name, rows, measure, method, {}, published_rows[name])
        for method, name in ROW_OF_METHOD.items()
    }


def drop_of_topic(evidence: Evidence) -> list[Comparison]:
    """Compare CEC with TOPIC by performance drop."""
    comparisons = []
    for benchmark in evidence.benchmarks(COMPARISON, COMPARED):
        sides = comparison_sides(evidence, benchmark, PD)
        comparisons.append(evidence.compare(benchmark, sides["CEC"], sides["TOPIC"], PD))
    return comparisons


def above_all(evidence: Evidence) -> list[Comparison]:
    """Compare CEC with the best other row: of the comparison, then of the ablation."""
    measures = (AVERAGE, PD, LAST)
    groups = [
        (benchmark, benchmark, measure, comparison_sides(evidence, benchmark, measure))
        for benchmark in evidence.benchmarks(COMPARISON, COMPARED)
        for measure in measures
    ]
    groups += [
        (f"{name}, ablation", name, measure, ablation_sides(evidence, name, measure))
        for name in evidence.benchmarks("ablation")
        for measure in measures
    ]
    comparisons = []
    for where, benchmark, measure, sides in groups:
        others = [row for name, row in sides.items() if name not in ("CEC", NO_QUERY, NO_GRAPH)]
        result = evidence.compare(benchmark, sides["CEC"], best_of(others, measure), measure)
        comparisons.append(replace(result, where=where))
    return comparisons


def class_means(evidence: Evidence) -> list[Comparison]:
    """Compare class means on frozen features with the best of the earlier methods."""
    comparisons = []
    for benchmark in evidence.benchmarks(COMPARISON, COMPARED):
        for measure in (LAST, AVERAGE):
            sides = comparison_sides(evidence, benchmark, measure)
            earlier = [sides[name] for step in EARLIER for name in step]
            best = best_of(earlier, measure)
            result = evidence.compare(benchmark, sides["Decoupled-Cosine"], best, measure)
            comparisons.append(result)
    return comparisons


def order(evidence: Evidence) -> list[Comparison]:
    """Compare each row of a step with each row of the step below."""
    comparisons = []
    for benchmark in evidence.benchmarks(COMPARISON, COMPARED):
        sides = comparison_sides(evidence, benchmark, LAST)
        for below, above in pairwise(STEPS):
            comparisons += [
                evidence.compare(benchmark, sides[better], sides[worse], LAST)
                for better in above
                for worse in below
            ]
    return comparisons
