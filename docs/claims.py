"""The paper's claims, and the rule by which each is judged from what `fewmore reproduce` has measured.

A claim is a list of comparisons: one row of a study is said to be better than another by some measure. The rules are fixed here, and
`make docs` puts the verdicts on the page. A study lies in results/studies/STUDY-BENCHMARK, with one JSON a row.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

from scipy.stats import t as student

from fewmore.research import published, results
from fewmore.research.published import METHOD_OF_ABLATION, ROW_OF_METHOD, PublishedRow
from fewmore.research.results import RunResult
from fewmore.research.studies import ANGLES, GRID, QUERIES

HOLDS, PART, NOT, UNKNOWN = "holds", "holds in part", "does not hold", "not measured yet"
CERTAINTY = 0.95  # of a difference's sign, one-sided
DEVIATIONS = 2  # of CEC's seeds: what a difference must exceed that was measured with one seed
MAIN, COMPARED = (
    "cifar100",
    ("cifar100", "miniimagenet"),
)  # the benchmark of all studies, and those of the comparison
SEEDS = {"ways-shots": 1}  # that a study is run with; 3 elsewhere

Run = tuple[int, int | None]  # seed and draw


@dataclass(frozen=True)
class Measure:
    """What rows are compared by."""

    name: str
    measured: Callable[[RunResult], Sequence[float]]  # one number a run
    published: Callable[[PublishedRow], float | None]
    lower: bool = False  # whether less is better


LAST = Measure("last session", lambda r: r.last, lambda p: p.sessions[-1])
AVERAGE = Measure("average", lambda r: r.average, lambda p: p.average)
PD = Measure("PD", lambda r: r.pd, lambda p: p.pd, lower=True)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a row's name, what it measured in each run, and what was published for it."""

    name: str
    runs: Mapping[Run, float]
    published: float | None = None

    @property
    def mean(self) -> float:
        return fmean(self.runs.values()) if self.runs else math.nan


@dataclass(frozen=True)
class Figure:
    """A number over seeds."""

    mean: float
    std: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Part:
    """One comparison of a claim, judged."""

    where: str  # the benchmark, and the study where that is not the claim's own
    better: str  # the row that the claim is about
    worse: str  # what it is held against
    measure: str
    published: tuple[float | None, float | None] = (None, None)
    measured: tuple[Figure, Figure] | None = None
    gain: Figure | None = None  # how much better the first is, seed by seed
    needed: float = math.nan  # what the gain must exceed
    verdict: str = UNKNOWN


# ---- the rules


def needed(gain: Figure, deviation: float) -> float:
    """What a mean gain must exceed: its error by Student's t, or, with one seed, two deviations of CEC's own seeds."""
    if gain.std is None:
        return DEVIATIONS * deviation
    return float(student.ppf(CERTAINTY, gain.seeds - 1)) * gain.std / math.sqrt(gain.seeds)


def is_better(gain: float, needed: float) -> str:
    """Holds beyond what is needed; in part where only the sign is right."""
    return HOLDS if gain > needed else PART if gain > 0 else NOT


def is_no_better(gain: float, needed: float) -> str:
    """The reverse, for what is said not to help: does not hold where the gain is beyond what is needed, in part where it has that sign."""
    return {HOLDS: NOT, PART: PART, NOT: HOLDS}[is_better(gain, needed)]


def is_best(gain: float, needed: float) -> str:
    """Against the best of all others: holds for the best, in part within what is needed of it."""
    return HOLDS if gain > 0 else PART if gain > -needed else NOT


Rule = Callable[[float, float], str]


def overall(parts: Sequence[Part]) -> str:
    """All parts alike, or in part; parts that are not measured do not count."""
    found = {part.verdict for part in parts} - {UNKNOWN}
    return PART if len(found) > 1 else found.pop() if found else UNKNOWN


# ---- what was measured


@dataclass(frozen=True)
class Evidence:
    """The results in the repository."""

    results: Path

    def folder(self, study: str, benchmark: str) -> Path:
        return self.results / "studies" / f"{study}-{benchmark}"

    def rows(self, study: str, benchmark: str) -> list[RunResult]:
        """All results of a study; none where it was not run."""
        return [
            results.read(path)
            for path in sorted((self.folder(study, benchmark) / "results").glob("*.json"))
        ]

    def deviation(self, benchmark: str, measure: Measure) -> float:
        """How much CEC's seeds differ; NaN, which nothing exceeds, where that is not known."""
        path = self.results / f"{benchmark}-cec.json"
        found = measure.measured(results.read(path)) if path.exists() else ()
        return stdev(found) if len(found) > 1 else math.nan

    def compared(
        self, benchmark: str, better: Side, worse: Side, measure: Measure, rule: Rule = is_better
    ) -> Part:
        """Two sides by the runs that both have: the same seed has the same stage 1."""
        names = (
            benchmark,
            better.name,
            worse.name,
            measure.name,
            (better.published, worse.published),
        )
        common = [run for run in better.runs if run in worse.runs]
        if not common:
            return Part(*names)
        pairs = [(better.runs[run], worse.runs[run]) for run in common]
        gain = Figure.of([(b - a if measure.lower else a - b) for a, b in pairs])
        limit = needed(gain, self.deviation(benchmark, measure))
        first, second = (Figure.of(values) for values in zip(*pairs, strict=True))
        return Part(*names, (first, second), gain, limit, rule(gain.mean, limit))


def side(
    name: str,
    rows: Sequence[RunResult],
    measure: Measure,
    method: str,
    settings: Mapping[str, str],
    row: PublishedRow | None,
) -> Side:
    """The row of a method with these settings, as one side of a comparison; without runs where there is none."""
    found = [r for r in rows if r.method == method and r.settings == settings]
    if len(found) > 1:  # left from an earlier run into the same folder
        raise ValueError(
            f"{', '.join(map(results.file_name, found))} are the same row of a study: remove those that are old"
        )
    runs = {
        run: value
        for r in found
        for run, value in zip(zip(r.seeds, r.draws, strict=True), measure.measured(r), strict=True)
    }
    return Side(name, runs, row and measure.published(row))


def mean_of(name: str, sides: Sequence[Side]) -> Side:
    """The mean of several rows, in the runs that all of them have."""
    common = [run for run in sides[0].runs if all(run in one.runs for one in sides)]
    return Side(name, {run: fmean(one.runs[run] for one in sides) for run in common})


def best_of(sides: Sequence[Side], measure: Measure) -> Side:
    """The best row by its mean; one that was not measured where one is missing."""
    missing = [one for one in sides if not one.runs]
    return (
        missing[0]
        if missing
        else sorted(sides, key=lambda one: one.mean, reverse=not measure.lower)[0]
    )


# ---- the ablation's claims

NO_INIT = {"session.data_init": "false"}
LABELS = (
    "linear", "decoupled linear", "cosine", "decoupled cosine",
    "linear, data init", "L2, data init", "DeepEMD, data init", "cosine, data init", "adapter by meta-learning", "CEC",
)  # fmt: skip
ABLATION: dict[str, tuple[str, Mapping[str, str]]] = {
    label: (method, {} if data_init or not method.startswith("decoupled-") else NO_INIT)
    for label, (method, data_init) in zip(LABELS, METHOD_OF_ABLATION, strict=True)
}
NO_QUERY = "CEC without the query node"


def ablation_sides(evidence: Evidence, measure: Measure) -> dict[str, Side]:
    """The ablation's rows by their labels; published are those on CUB200."""
    rows = evidence.rows("ablation", MAIN)
    theirs = dict(zip(LABELS, published.ablation(), strict=True))
    sides = {
        label: side(label, rows, measure, method, changed, theirs[label])
        for label, (method, changed) in ABLATION.items()
    }
    return {
        **sides,
        NO_QUERY: side(NO_QUERY, rows, measure, "cec", {"adapter.query_node": "false"}, None),
    }


def ablated(
    evidence: Evidence,
    pairs: Sequence[tuple[str, str]],
    measures: Sequence[Measure],
    rule: Rule = is_better,
) -> list[Part]:
    """Pairs of the ablation's rows, the first said to be better, by each measure."""
    sides = {measure: ablation_sides(evidence, measure) for measure in measures}
    return [
        evidence.compared(MAIN, sides[m][better], sides[m][worse], m, rule)
        for better, worse in pairs
        for m in measures
    ]


def decoupling(evidence: Evidence) -> list[Part]:
    return ablated(
        evidence, [("decoupled linear", "linear"), ("decoupled cosine", "cosine")], (PD, LAST)
    )


def data_init(evidence: Evidence) -> list[Part]:
    return ablated(
        evidence,
        [("linear, data init", "decoupled linear"), ("cosine, data init", "decoupled cosine")],
        (PD, LAST),
    )


def cosine_best(evidence: Evidence) -> list[Part]:
    return ablated(
        evidence,
        [("cosine, data init", f"{other}, data init") for other in ("linear", "L2", "DeepEMD")],
        (LAST, AVERAGE),
    )


def meta_learning(evidence: Evidence) -> list[Part]:
    return ablated(
        evidence,
        [("adapter by meta-learning", "cosine, data init")],
        (LAST, AVERAGE, PD),
        is_no_better,
    )


def pseudo_incremental(evidence: Evidence) -> list[Part]:
    return ablated(
        evidence,
        [("CEC", "adapter by meta-learning"), ("CEC", "cosine, data init")],
        (LAST, AVERAGE, PD),
    )


def query_node(evidence: Evidence) -> list[Part]:
    return ablated(evidence, [("CEC", NO_QUERY)], (LAST, AVERAGE, PD))


# ---- rotation, ways and shots

LARGE, SMALL, MIX = ("180°", "±90°"), ("±20°", "±10°", "±5°"), "90°, 180°, 270°"


def rotation(evidence: Evidence) -> list[Part]:
    """The large angles against the small ones, and the mix of large ones against the best of the single sets."""
    rows, parts = evidence.rows("rotation", MAIN), []
    for measure in (AVERAGE, PD):
        sides = {
            label: side(
                label, rows, measure, "cec", {"pseudo.angles": angles} if angles else {}, None
            )
            for label, angles in ANGLES.items()
        }
        large, small = (
            mean_of(f"mean of {', '.join(own)}", [sides[label] for label in own])
            for own in (LARGE, SMALL)
        )
        theirs = published.published("cub200")["CEC"]
        mix = Side(f"the mix of {MIX}", sides[MIX].runs, measure.published(theirs))
        others = [one for label, one in sides.items() if label != MIX]
        parts += [
            evidence.compared(MAIN, large, small, measure),
            evidence.compared(MAIN, mix, best_of(others, measure), measure),
        ]
    return parts


def _cell(way: int, shot: int) -> str:
    return f"{way} way{'s' if way > 1 else ''}, {shot} shot{'s' if shot > 1 else ''}"


def ways_shots(evidence: Evidence) -> list[Part]:
    """Halves of the grid against each other, the middle left out, and the paper's best cell against the best of all others."""
    rows = evidence.rows("ways-shots", MAIN)
    cells = {}
    for way in GRID:
        for shot in GRID:
            sized = {"way": str(way), "shot": str(shot), "query": str(QUERIES)}
            changed = {
                f"pseudo.{group}_{name}": number
                for name, number in sized.items()
                for group in ("base", "new")
            }
            cells[way, shot] = side(_cell(way, shot), rows, LAST, "cec", changed, None)
    few, many = GRID[:2], GRID[-2:]

    def half(axis: int, sizes: tuple[int, ...], what: str) -> Side:
        return mean_of(
            f"{sizes[0]} and {sizes[1]} {what}",
            [one for cell, one in cells.items() if cell[axis] in sizes],
        )

    best = best_of([one for cell, one in cells.items() if cell != (15, 1)], LAST)
    return [
        evidence.compared(MAIN, half(0, many, "ways"), half(0, few, "ways"), LAST),
        evidence.compared(MAIN, half(1, few, "shots"), half(1, many, "shots"), LAST),
        evidence.compared(MAIN, cells[15, 1], best, LAST, is_best),
    ]


# ---- confusion


def confusion(evidence: Evidence) -> list[Part]:
    """From the study's table, which has the differences seed by seed; one seed alone has nothing to be held against."""
    path = evidence.folder("confusion", MAIN) / "table.csv"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    table = {row["classifier"]: row for row in csv.DictReader(lines)}
    seeds = max((r.runs for r in evidence.rows("confusion", MAIN)), default=0)

    def figure(classifier: str, column: str, sign: int = 1) -> Figure:
        row = table[classifier]
        return Figure(
            sign * float(row[column]),
            float(row[f"{column}_std"]) if row.get(f"{column}_std") else None,
            seeds,
        )

    parts = []
    for without in ("CEC without its adapter", "Decoupled-Cosine"):
        for column, sign in (("entropy of new", -1), ("new right", 1), ("new taken for base", -1)):
            names = (MAIN, "CEC", without, column)
            if not table:
                parts.append(Part(*names))
                continue
            gain = figure(f"CEC minus {without}", column, sign)
            limit = needed(gain, math.nan)
            both = figure("CEC", column), figure(without, column)
            parts.append(Part(*names, (None, None), both, gain, limit, is_better(gain.mean, limit)))
    return parts


# ---- the comparison's claims


def compared_sides(evidence: Evidence, benchmark: str, measure: Measure) -> dict[str, Side]:
    """The comparison's rows by the paper's names."""
    rows, theirs = evidence.rows("comparison", benchmark), published.published(benchmark)
    return {
        name: side(name, rows, measure, method, {}, theirs[name])
        for method, name in ROW_OF_METHOD.items()
    }


def drop_of_topic(evidence: Evidence) -> list[Part]:
    found = {name: compared_sides(evidence, name, PD) for name in COMPARED}
    return [
        evidence.compared(name, sides["CEC"], sides["TOPIC"], PD) for name, sides in found.items()
    ]


def above_all(evidence: Evidence) -> list[Part]:
    """CEC against the best of all others: of the comparison on each benchmark, then of the ablation."""
    measures = (AVERAGE, PD, LAST)
    groups = [
        (name, name, measure, compared_sides(evidence, name, measure))
        for name in COMPARED
        for measure in measures
    ]
    groups += [
        (f"{MAIN}, ablation", MAIN, measure, ablation_sides(evidence, measure))
        for measure in measures
    ]
    parts = []
    for where, benchmark, measure, sides in groups:
        others = [one for name, one in sides.items() if name not in ("CEC", NO_QUERY)]
        part = evidence.compared(benchmark, sides["CEC"], best_of(others, measure), measure)
        parts.append(replace(part, where=where))
    return parts


STEPS = (
    ("Ft-CNN",),
    ("iCaRL", "EEIL", "NCM"),
    ("TOPIC",),
    ("Decoupled-Cosine", "Decoupled-DeepEMD"),
    ("CEC",),
)


def order(evidence: Evidence) -> list[Part]:
    """Each row of a step against each of the step below."""
    parts = []
    for name in COMPARED:
        sides = compared_sides(evidence, name, LAST)
        for below, above in pairwise(STEPS):
            parts += [
                evidence.compared(name, sides[better], sides[worse], LAST)
                for better in above
                for worse in below
            ]
    return parts


# ---- all of them


@dataclass(frozen=True)
class Claim:
    """A claim: what the paper says, how it is judged here, and the study that it is judged by."""

    title: str
    said: str
    judged: str
    study: str
    parts: Callable[[Evidence], list[Part]]
    benchmarks: tuple[str, ...] = (MAIN,)


CLAIMS = (
    Claim(
        "Decoupling helps the linear and the cosine classifier",
        "On CUB200, features that stand still after the base session lower the performance drop (PD): by 3.39 points with a linear "
        "classifier, by 28.81 with a cosine one.",
        "The decoupled row against the one whose whole network is trained on, by PD and at the last session.",
        "ablation",
        decoupling,
    ),
    Claim(
        "Data initialisation helps all classifiers",
        "On CUB200, new rows that start as the mean of their images' features are better than rows from random values, "
        "whichever the classifier. Its table shows that for the linear and the cosine one; L2 and DeepEMD stand there with means only.",
        "The decoupled row with data initialisation against the one without, by PD and at the last session.",
        "ablation",
        data_init,
    ),
    Claim(
        "The cosine classifier is the best of the four with data initialisation",
        "On CUB200, with frozen features and data initialisation, all four classifiers are good, and the cosine one is the best.",
        "The cosine row against each of the three others, at the last session and on average. "
        "Not by PD, where the paper's own L2 row is lower.",
        "ablation",
        cosine_best,
    ),
    Claim(
        "An adapter learnt by plain meta-learning does not help",
        "On CUB200, the adapter brings nothing when it is learnt on episodes of base classes as they are.",
        "The adapter by meta-learning against no adapter, turned round: does not hold where the gain is beyond what is needed, "
        "and holds in part where it is above 0.",
        "ablation",
        meta_learning,
    ),
    Claim(
        "Pseudo-incremental learning of the adapter helps",
        "On CUB200, the adapter learnt with turned classes is better than the one learnt without in every session, by up to 3.13 points, "
        "and its PD is 2.87 points lower.",
        "CEC against the adapter by meta-learning, and against no adapter, at the last session, on average and by PD.",
        "ablation",
        pseudo_incremental,
    ),
    Claim(
        "The query node helps (our own row)",
        "The image that is asked about joins the graph, to help the learning of context; how much it brings is not measured there.",
        "CEC against CEC without the query node, at the last session, on average and by PD.",
        "ablation",
        query_node,
    ),
    Claim(
        "Large rotation angles beat small ones, and the mix of the large ones is best",
        "On CUB200, 180° and ±90° make better pseudo-incremental classes than small angles do: higher average accuracy and lower PD. "
        "A mix of 90°, 180° and 270° is best.",
        "The mean of the two large sets against the mean of ±20°, ±10° and ±5°, and the mix against the best single set, "
        "on average and by PD. ±45° counts as neither.",
        "rotation",
        rotation,
    ),
    Claim(
        "Many ways and few shots are best",
        "On CUB200, episodes with more ways and fewer shots give a better last session; the best of 25 cells is 15 ways with 1 shot.",
        "The mean of all cells with 15 and 20 ways against those with 1 and 5, and the mean of those with 1 and 5 shots against those "
        "with 15 and 20. 15 ways with 1 shot holds if it is the best cell, and in part within what is needed of the best.",
        "ways-shots",
        ways_shots,
    ),
    Claim(
        "The adapter makes the confusion matrix less scattered",
        "On CIFAR100, answers without the adapter are scattered, above all those to new classes; with it, more lie on the diagonal.",
        "New classes at the last session: entropy of the answers to a class (in bits), share that is right, share taken for base classes. "
        "CEC against its own features without the adapter, and against Decoupled-Cosine.",
        "confusion",
        confusion,
    ),
    Claim(
        "CEC drops less than TOPIC",
        "CEC's PD is lower than that of the best method before it, TOPIC, by 10.80 points on CIFAR100 and 12.52 on miniImageNet.",
        "CEC against TOPIC by PD.",
        "comparison",
        drop_of_topic,
        COMPARED,
    ),
    Claim(
        "CEC is above all others",
        "CEC has the highest average accuracy and the lowest PD of all, in the comparison and in the ablation.",
        "CEC against the best of the other rows, of the comparison and then of the ablation (published there: CUB200), "
        "on average, by PD and at the last session.",
        "comparison",
        above_all,
        COMPARED,
    ),
    Claim(
        "The order of the methods",
        "At the last session: Ft-CNN, then iCaRL, EEIL and NCM, then TOPIC, then the decoupled methods, then CEC.",
        "Each row of a step against each row of the step below, at the last session.",
        "comparison",
        order,
        COMPARED,
    ),
)  # fmt: skip


def command(study: str, benchmark: str) -> str:
    """What measures a study and puts it where the page looks for it."""
    seeds = SEEDS.get(study, 3)
    asked = f"--benchmark {benchmark}" + (f" --seeds {seeds}" if seeds > 1 else "")
    return f"fewmore reproduce {study} {asked} --out results/studies/{study}-{benchmark}"
