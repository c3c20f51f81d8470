"""Compare the rows of the ablation, the paper's Table 1."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from claims.evidence import Evidence, side
from claims.judge import AVERAGE, LAST, PD, Comparison, Measure, Rule, Side, is_better, is_no_better
from fewmore.research import published
from fewmore.research.published import METHOD_OF_ABLATION
from fewmore.research.results import RunResult

NO_INIT = {"session.data_init": "false"}
LABELS = (
    "linear",
    "decoupled linear",
    "cosine",
    "decoupled cosine",
    "linear, data init",
    "L2, data init",
    "DeepEMD, data init",
    "cosine, data init",
    "adapter by meta-learning",
    "CEC",
)
ABLATION: dict[str, tuple[str, Mapping[str, str]]] = {
    label: (method, {} if data_init or not method.startswith("decoupled-") else NO_INIT)
    for label, (method, data_init) in zip(LABELS, METHOD_OF_ABLATION, strict=True)
}
NO_QUERY = "CEC without the query node"
NO_GRAPH = "plain cosine after stage 2"


def ablation_sides(evidence: Evidence, benchmark: str, measure: Measure) -> dict[str, Side]:
    """Return the rows of the ablation by label; the published values are those on CUB200."""
    rows = evidence.rows("ablation", benchmark)
    published_rows = dict(zip(LABELS, published.ablation(), strict=True))
    sides = {
        label: side(label, rows, measure, method, settings, published_rows[label])
        for label, (method, settings) in ABLATION.items()
    }
    without_query = {"adapter.query_node": "false"}
    sides[NO_QUERY] = side(NO_QUERY, rows, measure, "cec", without_query, None)
    no_graph = [without_graph(row) for row in rows if "cosine_after_pil" in row.extra]
    sides[NO_GRAPH] = side(NO_GRAPH, no_graph, measure, "cec", {}, None)
    return sides


def without_graph(cec: RunResult) -> RunResult:
    """Return the accuracies of CEC's encoder and class means without the graph."""
    accuracy = tuple(tuple(map(float, run)) for run in cec.extra["cosine_after_pil"])
    return replace(cec, accuracy=accuracy)


def compare_pairs(
    evidence: Evidence,
    pairs: Sequence[tuple[str, str]],
    measures: Sequence[Measure],
    rule: Rule = is_better,
) -> list[Comparison]:
    """Compare pairs of labels, the first claimed to be better, by each measure."""
    comparisons = []
    for benchmark in evidence.benchmarks("ablation"):
        sides = {measure: ablation_sides(evidence, benchmark, measure) for measure in measures}
        comparisons += [
            evidence.compare(
                benchmark, sides[measure][better], sides[measure][worse], measure, rule
            )
            for better, worse in pairs
            for measure in measures
        ]
    return comparisons


def decoupling(evidence: Evidence) -> list[Comparison]:
    """Compare frozen features with networks that are trained in every session."""
    pairs = [("decoupled linear", "linear"), ("decoupled cosine", "cosine")]
    return compare_pairs(evidence, pairs, (PD, LAST))


def data_init(evidence: Evidence) -> list[Comparison]:
    """Compare class weights that start as class means with randomly initialized ones."""
    pairs = [
        ("linear, data init", "decoupled linear"),
        ("cosine, data init", "decoupled cosine"),
    ]
    return compare_pairs(evidence, pairs, (PD, LAST))


def cosine_best(evidence: Evidence) -> list[Comparison]:
    """Compare the cosine classifier with the three others, all with data initialisation."""
    others = ("linear", "L2", "DeepEMD")
    pairs = [("cosine, data init", f"{other}, data init") for other in others]
    return compare_pairs(evidence, pairs, (LAST, AVERAGE))


def meta_learning(evidence: Evidence) -> list[Comparison]:
    """Compare the adapter learnt by meta-learning with no adapter."""
    pairs = [("adapter by meta-learning", "cosine, data init")]
    return compare_pairs(evidence, pairs, (LAST, AVERAGE, PD), is_no_better)


def pseudo_incremental(evidence: Evidence) -> list[Comparison]:
    """Compare CEC with the adapter by meta-learning, no stage 2, and stage 2 without its graph."""
    others = ("adapter by meta-learning", "cosine, data init", NO_GRAPH)
    pairs = [("CEC", other) for other in others]
    return compare_pairs(evidence, pairs, (LAST, AVERAGE, PD))


def query_node(evidence: Evidence) -> list[Comparison]:
    """Compare CEC with and without the query in the graph."""
    return compare_pairs(evidence, [("CEC", NO_QUERY)], (LAST, AVERAGE, PD))
