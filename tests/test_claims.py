"""Test how the paper's claims are judged, and what the pages on results say of made-up results."""

import dataclasses
import importlib
import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fewmore.data.benchmarks import BENCHMARKS, Task
from fewmore.data.images import ImageSet
from fewmore.data.splits import sample_split
from fewmore.research import published, results
from fewmore.research.published import PROTOCOL, ROW_OF_METHOD
from fewmore.research.recipes import recipe
from fewmore.research.results import RunResult, SessionSize
from fewmore.research.setting_list import setting_values
from fewmore.research.studies import STUDIES, Setting
from fewmore.research.studies.rotation import ANGLES
from fewmore.research.studies.ways_shots import GRID

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def docs() -> None:
    """Import docs/make.py, and with it the packages beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        importlib.import_module("make")


@pytest.fixture(scope="module")
def claims(docs: None) -> ModuleType:
    """Return the package docs/claims."""
    return importlib.import_module("claims")


@pytest.fixture(scope="module")
def judge(claims: ModuleType) -> ModuleType:
    """Return the rules."""
    return claims.judge  # type: ignore[no-any-return]


@pytest.fixture
def sections(docs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the package docs/sections with an empty folder of results."""
    package = importlib.import_module("sections")
    monkeypatch.setattr(package.recorded, "ROOT", tmp_path)
    monkeypatch.setattr(package.recorded, "RESULTS", tmp_path / "results")
    return package


def result(
    method: str,
    last: Sequence[float],
    *,
    base: float = 70.0,
    benchmark: str = "cifar100",
    **changed: Any,
) -> RunResult:
    """Make a result whose accuracy falls evenly, with a run for each last accuracy."""
    seen, runs = PROTOCOL[benchmark], len(last)
    accuracy = tuple(
        tuple(base + (end - base) * i / (len(seen) - 1) for i in range(len(seen))) for end in last
    )
    novel = tuple((None, *row[1:]) for row in accuracy)
    about: dict[str, Any] = {
        "benchmark": benchmark,
        "method": method,
        "recipe": "official",
        "split": "official",
        "command": f"fewmore run {benchmark} -m {method}",
        "seeds": tuple(range(runs)),
        "draws": (None,) * runs,
        "commit": "0123456789ab",
        "date": "2026-01-02T03:04:05+00:00",
        "machine": {"device": "a machine", "torch": "2.13"},
        "settings": {},
        "all_settings": {},
        "sessions": tuple(SessionSize(classes, 100 * classes) for classes in seen),
        "accuracy": accuracy,
        "base": accuracy,
        "novel": novel,
        "harmonic": novel,
        "forgetting": tuple(row[1:] for row in accuracy),
        "gacc": last,
        "seconds": ({"share of the wall clock": 30.0},) * runs,
        "peak_memory_mb": (1.0,) * runs,
        "extra": {},
        "keeps": None,
    }
    return RunResult(**{**about, **changed})


Record = Callable[..., None]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Return a function that writes results.

    record("rotation-cifar100", result(…), …) writes a study, record("", …) the main results,
    record("explain", …) experiments, record("re-encoded", …) rows of re-encoded files and
    record("earlier", …) rows that newer ones replaced.
    """

    def record(name: str, *rows: RunResult) -> None:
        study = name not in ("", "explain", "re-encoded", "earlier")
        folder = tmp_path / "results" / (f"studies/{name}/results" if study else name)
        for row in rows:
            results.write(folder / f"{results.file_name(row)}.json", row)
        if study:
            (folder.parent / "table.md").write_text(f"**table of {name}**\n")

    return record


@pytest.fixture
def evidence(claims: ModuleType, tmp_path: Path) -> Any:
    return claims.evidence.Evidence(tmp_path / "results")


def verdicts(comparisons: Sequence[Any]) -> list[str]:
    return [comparison.verdict for comparison in comparisons]


# ---- the rules


@pytest.mark.parametrize(
    ("gain", "better", "no_better", "best"),
    [
        (0.6, "holds", "does not hold", "holds"),
        (0.4, "holds in part", "holds in part", "holds"),
        (-0.4, "does not hold", "holds", "holds in part"),
        (-0.6, "does not hold", "holds", "does not hold"),
    ],
)
def test_rules_around_the_required_gain(
    judge: ModuleType, gain: float, better: str, no_better: str, best: str
) -> None:
    assert judge.is_better(gain, 0.5) == better
    assert judge.is_no_better(gain, 0.5) == no_better
    assert judge.is_best(gain, 0.5) == best


def test_required_gain_is_students_bound_or_two_deviations(judge: ModuleType) -> None:
    three_seeds = judge.Estimate.of([1.0, 2.0, 3.0])
    bound = 2.91999 / math.sqrt(3)
    assert judge.required_gain(three_seeds, 9.0) == pytest.approx(bound, abs=1e-4)
    one_seed = judge.required_gain(judge.Estimate.of([1.0]), 0.25)
    assert one_seed == pytest.approx(0.5 * math.sqrt(2)), "both rows of a difference vary"
    unknown = judge.required_gain(judge.Estimate.of([5.0]), math.nan)
    assert judge.is_better(5.0, unknown) == "holds in part", "no deviation to compare with"


@pytest.mark.parametrize(
    ("gains", "whole"),
    [
        ([0.6, 0.7], "holds"),
        ([0.6, None], "holds"),
        ([0.6, 0.4], "holds in part"),
        ([0.6, -0.6], "holds in part"),
        ([0.4, 0.3], "not shown"),
        ([0.4, -0.4], "not shown"),
        ([-0.4, None], "not shown"),
        ([0.4, -0.6], "does not hold"),
        ([None], "not measured yet"),
    ],
)
def test_a_claim_is_summed_up_by_how_many_comparisons_hold(
    judge: ModuleType, gains: list[float | None], whole: str
) -> None:
    """Each gain has to exceed 0.5; beyond -0.5 it is clearly the other way."""

    def compare(gain: float | None) -> Any:
        if gain is None:
            return judge.Comparison("", "", "", "")
        estimate = judge.Estimate(gain, None, 1)
        verdict = judge.is_better(gain, 0.5)
        return judge.Comparison("", "", "", "", gain=estimate, required=0.5, verdict=verdict)

    assert judge.overall(list(map(compare, gains))) == whole


def test_what_is_clearly_the_other_way_depends_on_the_rule(judge: ModuleType) -> None:
    def opposed(rule: Callable[[float, float], str], gain: float, required: float = 0.5) -> bool:
        estimate = judge.Estimate(gain, None, 1)
        verdict = rule(gain, required)
        row = judge.Comparison("", "", "", "", gain=estimate, required=required, verdict=verdict)
        return bool(row.opposed)

    assert opposed(judge.is_better, -0.6)
    assert not opposed(judge.is_better, -0.4)
    assert not opposed(judge.is_better, 0.6)
    assert not opposed(judge.is_better, -0.6, math.nan), "no deviation to compare with"
    assert opposed(judge.is_no_better, 0.6)
    assert not opposed(judge.is_no_better, -0.6)
    assert opposed(judge.is_best, -0.6)


def test_runs_are_paired_by_seed(judge: ModuleType, evidence: Any) -> None:
    """Seeds differ by ten points and the rows by a half: only pairs show it."""
    better = judge.Side("a", {(0, None): 40.5, (1, None): 50.6, (2, None): 60.4})
    worse = judge.Side("b", {(2, None): 60, (1, None): 50, (0, None): 40})
    other_seed = judge.Side("c", {(3, None): 1.0})
    by_last = evidence.compare("cifar100", better, worse, judge.LAST)
    by_drop = evidence.compare("cifar100", better, worse, judge.PD)
    apart = evidence.compare("cifar100", better, other_seed, judge.LAST)
    assert by_last.verdict == "holds"
    assert by_last.gain.seeds == 3
    assert by_last.gain.mean == pytest.approx(0.5)
    assert by_drop.verdict == "does not hold", "a lower PD is better"
    assert apart.verdict == "not measured yet"


def test_one_seed_is_compared_with_the_deviation_of_cec(
    judge: ModuleType, evidence: Any, record: Record
) -> None:
    sides = judge.Side("a", {(0, None): 48.0}), judge.Side("b", {(0, None): 46.5})

    def compare() -> Any:
        return evidence.compare("cifar100", *sides, judge.LAST)

    assert compare().verdict == "holds in part"
    record("", result("cec", [47.0, 48.0, 49.0]))
    assert compare().required == pytest.approx(2.0 * math.sqrt(2))
    assert compare().verdict == "holds in part"
    record("", result("cec", [47.5, 48.0, 48.5]))
    assert compare().verdict == "holds"


# ---- the claims


def without_graph(*last: float, benchmark: str = "cifar100") -> dict[str, Any]:
    """Make the accuracies of CEC's encoder without its graph, as CEC records them."""
    return {"cosine_after_pil": result("cec", last, benchmark=benchmark).accuracy}


def ablation(benchmark: str = "cifar100", **last: float) -> list[RunResult]:
    """Make the ablation's rows with three seeds: the paper's last accuracies, or those given.

    CEC's own encoder without the graph is 1 below, but for `no_graph`.
    """
    printed = [row.sessions[-1] or 0.0 for row in published.ablation()]
    rows = []
    for (method, data_init), end in zip(published.METHOD_OF_ABLATION, printed, strict=True):
        random_init = method.startswith("decoupled-") and not data_init
        settings = {"session.data_init": "false"} if random_init else {}
        if not random_init:
            end = last.get(method.replace("-", "_"), end)
        extra = {}
        if method == "cec":
            plain = last.get("no_graph", end - 1.0)
            extra = without_graph(plain, plain, plain, benchmark=benchmark)
        about: dict[str, Any] = {"benchmark": benchmark, "settings": settings, "extra": extra}
        rows.append(result(method, [end, end + 0.1, end - 0.1], **about))
    no_query = {"adapter.query_node": "false"}
    return [*rows, result("cec", [51.0, 51.2, 51.1], benchmark=benchmark, settings=no_query)]


def test_the_papers_own_ablation_proves_its_claims(
    claims: ModuleType, evidence: Any, record: Record
) -> None:
    record("ablation-cifar100", *ablation())
    for compare in (
        claims.ablation.decoupling,
        claims.ablation.data_init,
        claims.ablation.cosine_best,
        claims.ablation.meta_learning,
        claims.ablation.pseudo_incremental,
        claims.ablation.query_node,
    ):
        assert set(verdicts(compare(evidence))) == {"holds"}, compare.__name__
    first = claims.ablation.decoupling(evidence)[0]
    assert (first.better, first.worse, first.measure) == ("decoupled linear", "linear", "PD")
    assert first.published == (67.10, 70.49)


def test_claims_of_the_ablation_can_fail(claims: ModuleType, evidence: Any, record: Record) -> None:
    record("ablation-cifar100", *ablation(decoupled_l2=49.5, cec_meta=53.0))
    assert claims.judge.overall(claims.ablation.cosine_best(evidence)) == "holds in part"
    assert set(verdicts(claims.ablation.meta_learning(evidence))) == {"does not hold"}
    pseudo_incremental = verdicts(claims.ablation.pseudo_incremental(evidence))
    assert pseudo_incremental == ["does not hold"] * 3 + ["holds"] * 6


def test_the_graph_is_compared_with_its_own_encoder_without_it(
    claims: ModuleType, evidence: Any, record: Record
) -> None:
    record("ablation-cifar100", *ablation(no_graph=53.0))
    *others, last, average, drop = claims.ablation.pseudo_incremental(evidence)
    assert set(verdicts(others)) == {"holds"}
    assert verdicts([last, average, drop]) == ["does not hold"] * 3
    assert (last.better, last.worse) == ("CEC", "plain cosine after stage 2")
    assert last.measured[1].mean == pytest.approx(53.0)
    assert last.gain.mean == pytest.approx(52.28 - 53.0)
    assert last.published == (52.28, None), "the paper does not print it"


def test_rotation(claims: ModuleType, evidence: Any, record: Record) -> None:
    def judge_with(**last: float) -> list[str]:
        ends = dict(zip(ANGLES, (48.0, 48.2, 47.0, 46.0, 45.5, 45.0, 49.0), strict=True)) | last
        for label, angles in ANGLES.items():
            settings = {"pseudo.angles": angles} if angles else {}
            row = result("cec", [ends[label], ends[label] + 0.1], settings=settings)
            record("rotation-cifar100", row)
        return verdicts(claims.episodes.rotation(evidence))

    assert judge_with() == ["holds"] * 4
    assert judge_with(**{"±45°": 49.5}) == ["holds", "does not hold", "holds", "does not hold"]
    assert judge_with(**{"180°": 40.0, "±90°": 41.0}) == [
        "does not hold",
        "holds",
        "does not hold",
        "holds",
    ]
    mix = claims.episodes.rotation(evidence)[1]
    assert mix.worse == "±45°", "the best single set"
    assert mix.published[0] == 61.33, "the paper's average of the mix"


def test_ways_and_shots_with_one_seed(claims: ModuleType, evidence: Any, record: Record) -> None:
    def judge_with(last: Callable[[int, int], float]) -> list[str]:
        for way in GRID:
            for shot in GRID:
                sizes = {"way": way, "shot": shot, "query": 10}
                settings = {
                    f"pseudo.{group}_{name}": str(size)
                    for name, size in sizes.items()
                    for group in ("base", "new")
                }
                record("ways-shots-cifar100", result("cec", [last(way, shot)], settings=settings))
        return verdicts(claims.episodes.ways_shots(evidence))

    record("", result("cec", [48.0, 48.2, 48.4]))
    as_in_the_paper = judge_with(lambda way, shot: 48 + 0.1 * way - 0.1 * shot - (way == 20))
    little_by_ways = judge_with(lambda way, shot: 48 + 0.01 * way - 0.1 * shot)
    reversed_order = judge_with(lambda way, shot: 48 - 0.1 * way + 0.1 * shot)
    assert as_in_the_paper == ["holds"] * 3
    assert little_by_ways == ["holds in part", "holds", "holds in part"]
    assert reversed_order == ["does not hold"] * 3


def test_confusion_is_judged_by_the_studys_table(
    claims: ModuleType, evidence: Any, record: Record, tmp_path: Path
) -> None:
    columns = ("new right", "new taken for base", "entropy of new")
    rows = {
        "Decoupled-Cosine": (16, 70, 3.5, 1, 1, 0.1),
        "CEC without its adapter": (19, 66, 3.3, 1, 1, 0.1),
        "CEC": (20, 64, 3.4, 1, 1, 0.1),
        "CEC minus CEC without its adapter": (1, -2, 0.1, 0.1, 2.0, 0.01),
        "CEC minus Decoupled-Cosine": (4, -6, -0.1, 0.3, 0.3, 0.01),
    }
    record("confusion-cifar100", result("cec", [48.0, 48.1, 48.2]))
    lines = [",".join(["classifier", *columns, *(f"{name}_std" for name in columns)])]
    lines += [",".join([name, *map(str, numbers)]) for name, numbers in rows.items()]
    (evidence.folder("confusion", "cifar100") / "table.csv").write_text("\n".join(lines) + "\n")
    assert verdicts(claims.confusion.confusion(evidence)) == [
        "does not hold",
        "holds",
        "holds in part",
        "holds",
        "holds",
        "holds",
    ]
    fewer_taken_for_base = claims.confusion.confusion(evidence)[2]
    assert fewer_taken_for_base.gain == claims.judge.Estimate(2.0, 2.0, 3)


def comparison(benchmark: str, **last: float) -> list[RunResult]:
    """Make the comparison's rows: the paper's last accuracies, or those given."""
    printed = published.published(benchmark)
    ends = {
        method: last.get(method, printed[name].sessions[-1] or 0.0)
        for method, name in ROW_OF_METHOD.items()
    }
    return [result(method, [end, end + 0.1], benchmark=benchmark) for method, end in ends.items()]


def test_the_comparison(claims: ModuleType, evidence: Any, record: Record) -> None:
    assert set(verdicts(claims.comparison.order(evidence))) == {"not measured yet"}
    for benchmark in claims.evidence.COMPARED:
        record(f"comparison-{benchmark}", *comparison(benchmark))
    record("ablation-cifar100", *ablation())
    for compare in (
        claims.comparison.drop_of_topic,
        claims.comparison.above_all,
        claims.comparison.order,
        claims.comparison.class_means,
    ):
        assert set(verdicts(compare(evidence))) == {"holds"}, compare.__name__
    assert len(claims.comparison.order(evidence)) == 2 * sum(
        len(a) * len(b) for a, b in pairwise(claims.comparison.STEPS)
    )
    record("comparison-cifar100", *comparison("cifar100", icarl=60.0))
    wrong = [
        (each.where, each.better, each.worse)
        for each in claims.comparison.order(evidence)
        if each.verdict != "holds"
    ]
    assert wrong == [("cifar100", "TOPIC", "iCaRL")]
    better_than_cec = {
        each.worse
        for each in claims.comparison.above_all(evidence)
        if each.verdict == "does not hold"
    }
    assert better_than_cec == {"iCaRL"}
    class_means = claims.comparison.class_means(evidence)
    assert [(each.where, each.worse, each.verdict) for each in class_means] == [
        ("cifar100", "iCaRL", "does not hold"),
        ("cifar100", "iCaRL", "does not hold"),
        ("miniimagenet", "TOPIC", "holds"),
        ("miniimagenet", "TOPIC", "holds"),
    ]


def test_claims_are_judged_on_cub200_once_it_was_measured(
    claims: ModuleType, evidence: Any, record: Record, sections: ModuleType
) -> None:
    def judged_on(claim: Any) -> list[str]:
        return list(dict.fromkeys(each.where for each in claim.compare(evidence)))

    before = [judged_on(claim) for claim in claims.paper.CLAIMS]
    assert not any("cub200" in where for places in before for where in places)
    for name in STUDIES:
        rows = [result("cec", [52.0], benchmark="cub200")]
        rows = {"ablation": ablation("cub200"), "comparison": comparison("cub200")}.get(name, rows)
        record(f"{name}-cub200", *rows)
    for claim, places in zip(claims.paper.CLAIMS, before, strict=True):
        assert set(places) < set(judged_on(claim)), claim.title
    [last] = [
        each
        for each in claims.ablation.query_node(evidence)
        if (each.where, each.measure) == ("cub200", "last session")
    ]
    assert last.verdict == "holds"
    judged = sections.verdicts.claims()
    assert re.search(
        r"^\| cub200 \| CEC \| TOPIC \| PD \| holds .*\| 23.57 / 42.40 \|$", judged, re.M
    )
    assert "![cub200: bars" in sections.studies.study("ablation")


def test_rows_left_out_of_a_study_leave_the_rest(
    claims: ModuleType, evidence: Any, record: Record
) -> None:
    rows = [row for row in comparison("cifar100") if row.method != "decoupled-deepemd"]
    record("comparison-cifar100", *rows)
    order = verdicts(claims.comparison.order(evidence))
    assert (order.count("holds"), order.count("not measured yet")) == (8, 12)
    first = claims.comparison.above_all(evidence)[0]
    assert first.verdict == "not measured yet", "the best of the others is not known"


def test_a_study_that_was_run_with_settings_of_its_own(
    claims: ModuleType, evidence: Any, record: Record, sections: ModuleType
) -> None:
    command = "fewmore reproduce ablation --set pseudo.encoder=last"
    rows = [dataclasses.replace(row, command=command) for row in ablation()]
    record(
        "ablation-cifar100",
        *(
            dataclasses.replace(row, settings={**row.settings, "pseudo.encoder": "last"})
            if row.method.startswith("cec")
            else row
            for row in rows
        ),
    )
    assert set(verdicts(claims.ablation.query_node(evidence))) == {"holds"}
    assert evidence.settings("ablation", "cifar100") == ["pseudo.encoder=last"]
    said = "On CIFAR100: the study was run with `pseudo.encoder=last`."
    assert sections.verdicts.claims().count(said) == 6, "the claims that the ablation decides"
    record("comparison-cifar100", *(dataclasses.replace(r, command=command) for r in rows[:1]))
    assert sections.recorded.read_results("cifar100") == [], "these are no rows of the recipe"


def test_old_rows_in_a_studys_folder_are_not_mixed_with_new_ones(
    claims: ModuleType, evidence: Any, record: Record
) -> None:
    record("ablation-cifar100", *ablation(), result("linear", [9.0], recipe="mild"))
    with pytest.raises(ValueError, match="cifar100-linear-mild, cifar100-linear are the same row"):
        claims.ablation.decoupling(evidence)


def test_claims_look_for_what_the_studies_run(
    claims: ModuleType, evidence: Any, record: Record, tiny_images: Callable[..., ImageSet]
) -> None:
    train = tiny_images(45, 31)
    task = Task(
        dataclasses.replace(BENCHMARKS["cifar100"], classes=45, base=40),
        train,
        train,
        sample_split(train, 40, 5, 5),
    )
    for name, study in STUDIES.items():
        experiments = study.experiments(Setting("cifar100", task)).values()
        rows = [
            result(each.method, [48.0], settings=each.settings, extra=without_graph(48.0))
            for each in experiments
        ]
        record(f"{name}-cifar100", *rows)
    for claim in claims.paper.CLAIMS:
        if claim.study == "confusion":  # is judged by its table
            continue
        comparisons = claim.compare(evidence)
        missing = {each.where for each in comparisons if each.verdict == "not measured yet"}
        assert missing <= {"miniimagenet"}, claim.title


# ---- the page


def test_what_is_not_measured_is_said_with_the_command(
    sections: ModuleType, claims: ModuleType
) -> None:
    assert sections.verdicts.verdicts().count("**not measured yet**") == len(claims.paper.CLAIMS)
    for study in sections.studies.ALT:
        assert f"`fewmore reproduce {study} --benchmark cifar100" in sections.studies.study(study)
        assert "![" not in sections.studies.study(study)
        assert f"`fewmore reproduce {study} --benchmark cub200" in sections.studies.study(study)
        assert f"`fewmore reproduce {study} --benchmark cifar100" in sections.verdicts.claims() or (
            study == "tsne"
        )
    assert sections.gaps.gaps("cifar100") == "Not measured yet.\n"


def test_a_measured_study_is_shown(sections: ModuleType, record: Record, tmp_path: Path) -> None:
    record("comparison-cifar100", *comparison("cifar100"))
    text = sections.studies.study("comparison")
    assert "![cifar100: accuracy by session of all methods; published rows dashed]" in text
    assert "](../../results/studies/comparison-cifar100/sessions.png)" in text
    assert "**table of comparison-cifar100**" in text
    assert "16 runs, 8.0 minutes in all, on a machine, 2026-01-02" in text
    assert "On miniimagenet not measured yet" in text
    assert "On cub200 not measured yet" in text
    judged = sections.verdicts.claims()
    assert "Verdict: **holds**; not measured on miniImageNet and CUB200. Study" in judged
    assert (
        "| cifar100 | CEC | TOPIC | PD | holds | +19.77 ± 0.00 | 0.00 | 2 "
        "| 20.81 ± 0.07 / 40.58 ± 0.07 | 23.93 / 34.73 |" in judged
    )


def test_the_overview_leads_to_the_claims(sections: ModuleType, record: Record) -> None:
    record("ablation-cifar100", *ablation())
    headings = [
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.*)$", sections.verdicts.claims(), re.MULTILINE)
    ]
    table = sections.verdicts.verdicts()
    studies = "\n".join(map(sections.studies.study, sections.studies.ALT))
    assert re.findall(r"\(results/claims\.md#(.*?)\)", table) == headings
    assert sorted(re.findall(r"\(claims\.md#(.*?)\)", studies)) == sorted(headings)
    assert "| **holds** | 4 of 4 | not measured | not measured |" in table


def test_gaps_come_with_the_experiments_that_explain_them(
    sections: ModuleType, record: Record
) -> None:
    record(
        "",
        result("icarl", [46.0, 47.0]),
        result("cec", [49.0, 49.2]),
        result("cec", [48.0], recipe="mild"),
    )
    record(
        "explain",
        result("icarl", [14.0], base=64.0, settings={"session.lr": "0.1"}),
        result("icarl", [20.0], benchmark="miniimagenet"),
    )
    record("comparison-cifar100", result("topic", [40.0]), result("icarl", [30.0]))
    assert sections.gaps.gaps("cifar100").splitlines()[2:] == [
        "| **icarl** | 70.00 ± 0.00 | *64.10* | +5.90 | 46.50 ± 0.71 | *13.73* | +32.77 |",
        "| ↳ session.lr=0.1 | 64.00 | *64.10* | -0.10 | 14.00 | *13.73* | +0.27 |",
        "| **topic** | 70.00 | *64.10* | +5.90 | 40.00 | *29.37* | +10.63 |",
        "| ↳ no experiment yet | | | | | | |",
        "",
        "Within 5 points: cec.",
    ]


def test_graph_and_encoder_are_told_apart(sections: ModuleType, record: Record) -> None:
    record(
        "",
        result("cec", [48.0, 49.0], extra=without_graph(48.5, 48.5)),
        result("decoupled-cosine", [47.0]),
    )
    lines = sections.accuracy.graph_or_encoder().splitlines()[2:]
    assert lines == [
        "| cifar100 | 0 | 47.00 | 48.50 | 48.00 | -0.50 |",
        "| cifar100 | 1 | – | 48.50 | 49.00 | +0.50 |",
        "",
        "- cifar100: in the mean the graph adds 0.00 points, the encoder +1.50.",
    ]
    assert (
        "**Does CEC's graph help? Not by the last accuracy.** On the same fine-tuned encoder it "
        "adds +0.00 on CIFAR100; fine-tuning the encoder, through the graph, adds +1.50 on "
        "CIFAR100 ("
    ) in flat(sections.answer.answers())
    record("", result("cec", [49.0], extra=without_graph(48.5)))
    assert "graph help? In part.** On the same" in flat(sections.answer.answers())


def test_rows_below_a_network_that_learns_nothing_are_named(
    sections: ModuleType, record: Record
) -> None:
    rows = [
        result("cec", [48.0], base=72.0),
        result("topic", [41.0, 42.0], base=74.0),
        result("eeil", [44.5], base=73.0),
    ]
    record("", *rows)
    text = " ".join(sections.accuracy.below_nothing_learnt(rows).split())
    assert text == (
        "A network that learns nothing after stage 1 ends at 44.40: the base session of topic "
        "times the share of base images among all test images. Rows below it: topic (41.50)."
    )
    lines = sections.accuracy.table("cifar100").splitlines()
    computed = (
        "| stage 1, nothing learnt (computed from the base session of topic) | 74.00 ± 0.00 |"
    )
    assert lines[4].startswith(computed)
    assert " ends at 44.40" in sections.accuracy.table("cifar100")
    assert sections.accuracy.below_nothing_learnt(rows[:1]) == "", "CEC has a stage 2"
    assert "No row ends below it." in sections.accuracy.below_nothing_learnt(rows[2:])


def test_the_page_on_published_numbers_names_what_can_be_compared(
    sections: ModuleType, record: Record
) -> None:
    record("")
    lines = sections.contents.accuracies("cifar100").splitlines()
    last = [line.split(" | ")[-2] for line in lines[2:]]
    printed = [float(cell.strip("*")) for cell in last if cell != "–"]
    assert len(printed) > 20
    assert printed == sorted(printed, reverse=True)
    assert any(line.startswith("| CEC | 2021 | ResNet20, 3×3 | 0.27 M | best on") for line in lines)
    first = " ".join(sections.contents.comparable().split()).partition(" - miniImageNet")[0]
    assert first.startswith("- CIFAR100: CLOSER (its average alone). With an epoch chosen on test")
    assert "CEC" in first
    assert "FACL" not in first
    assert "](https://github.com/icoz69/CEC-CVPR2021) | 3a5d335 |" in sections.contents.programs()


def test_the_readmes_table_ranks_the_papers_methods(sections: ModuleType, record: Record) -> None:
    record("", *comparison("cifar100"), *ablation()[:4], result("joint", [70.0]))
    record("", result("cec", [52.0], benchmark="cub200"))
    lines = sections.leaderboard.overview().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| **")]
    assert sorted(row[0].strip("*") for row in rows) == sorted(ROW_OF_METHOD)
    last = [float(row[1].split(" ")[0]) for row in rows]
    assert last == sorted(last, reverse=True)
    cec = next(row for row in rows if row[0] == "**cec**")
    assert cec[1:] == ["49.19 ± 0.07", "*49.14*", "–", "*47.63*", "52.00", "*52.28*"]
    lucir = next(row for row in rows if row[0].startswith("**lucir**"))
    assert lucir[-2:] == ["–", "*19.87*"], "published where nothing is measured"
    [best] = [line for line in lines if line.startswith("| *best published")]
    assert "54.55 (MoTiC, 2 test views)" in best, "no row that leaks or has another network"


def test_the_readmes_table_says_what_makes_rows_easier(
    sections: ModuleType, record: Record
) -> None:
    several = {"test_views": ((4.0,) * 9,), "one_view": ((40.0,) * 9,)}
    record("", result("evolve", [55.0], extra=several), result("icarl", [47.0], keeps="a few"))
    lines = sections.leaderboard.overview().splitlines()
    rows = dict(line.strip("| ").split(" | ")[:2] for line in lines if line.startswith("| **"))
    assert rows == {
        "**evolve**, 4 test views": "55.00",
        "**evolve**, one test view": "40.00",
        "**icarl**, keeps images": "47.00",
    }


def test_rows_of_an_earlier_recipe_are_marked(sections: ModuleType, record: Record) -> None:
    def of(method: str, last: float, **then: str) -> RunResult:
        today = setting_values(recipe("official", BENCHMARKS["cifar100"], method))
        return result(method, [last], all_settings={**today, **then})

    epochs = {"pretrain.epochs": "90"}
    record("", of("teen", 51.0, alpha="0.9"), of("cec", 49.0, **epochs), of("topic", 48.0))
    readme = sections.leaderboard.overview()
    rows = [line.strip("| ").split(" | ") for line in readme.splitlines() if "| **" in line]
    assert [row[1] for row in rows] == ["51.00†", "49.00†", "48.00"]
    assert "† Measured with an earlier recipe" in flat(readme)
    page = "results/cifar100.md#session-by-session"
    named = f"earlier recipe, to be measured again: {{}} ([what changed]({page}))."
    assert named.format("teen; cec") in flat(sections.leaderboard.ranking("cifar100"))
    assert named.format("cec") in flat(sections.answer.against_published("cifar100"))
    assert "pretrain.epochs was 90, is 100" in sections.accuracy.table("cifar100").replace("\\", "")


# ---- the first page


def flat(text: str) -> str:
    """Undo the wrapping of lines."""
    return " ".join(text.split())


def test_without_results_the_first_page_says_what_is_missing(sections: ModuleType) -> None:
    answers = sections.answer.answers()
    assert answers.count(": not measured yet.**") == 3
    assert "`fewmore run cub200 -m decoupled-cosine -m cec --seeds 5`" in flat(answers)
    assert "earlier methods" not in answers
    assert sections.answer.against_published("cub200") == "Not measured yet.\n"
    assert sections.answer.figure("cub200") == "CUB200 is not measured yet.\n"


def test_the_first_page_answers_whether_the_paper_is_reproduced(
    sections: ModuleType, record: Record
) -> None:
    together: dict[str, Any] = {"command": "fewmore run cifar100 -m decoupled-cosine -m cec"}
    record(
        "",
        result("cec", [48.0, 49.0, 48.5], **together),
        result("decoupled-cosine", [46.5, 47.0, 46.8], **together),
        result("icarl", [40.0]),
        result("finetune", [3.0]),
        result("cec", [42.0, 42.2], benchmark="miniimagenet"),
        result("decoupled-cosine", [41.0, 41.1], benchmark="miniimagenet"),
    )
    record(
        "comparison-cub200",
        result("cec", [40.0], benchmark="cub200"),
        result("decoupled-cosine", [41.0], benchmark="cub200"),
    )
    answers = flat(sections.answer.answers())
    assert (
        "**[CIFAR100](results/cifar100.md): yes.** CEC ends at 48.50 ± 0.50, 0.64 below the "
        "published 49.14, and Decoupled-Cosine ends at 46.77 ± 0.25, 0.91 below the published "
        "47.68. On the same stage 1 CEC is 1.73 ± 0.25 above Decoupled-Cosine (3 seeds; "
        "published: 1.46 above)." in answers
    )
    assert "miniImageNet](results/miniimagenet.md): in part.** CEC ends at 42.10" in answers
    assert "On the same seeds CEC is 1.05 ± 0.07 above Decoupled-Cosine (2 seeds;" in answers
    assert "CUB200](results/cub200.md): no.** CEC ends at 40.00, 12.28 below" in answers
    assert "CEC is 1.00 below Decoupled-Cosine (1 seed; published: 2.97 above)" in answers
    assert "from the published ones for 1 of 2 on CIFAR100 (+26.27). What was tried" in answers
    assert "at the bound" not in answers
    assert flat(sections.answer.short()).endswith(
        "(docs/results.md) CEC and Decoupled-Cosine: on CIFAR100 yes; on miniImageNet in part; "
        "on CUB200 no; the earlier methods: no."
    )


def test_an_answer_that_a_further_seed_could_change_says_so(
    sections: ModuleType, record: Record
) -> None:
    rows = [result("cec", [49.8, 51.8], benchmark="cub200")]  # 1.48 ± 1.00 below the published one
    record("", *rows, result("decoupled-cosine", [48.7, 48.9], benchmark="cub200"))
    answers = flat(sections.answer.answers())
    assert "CUB200](results/cub200.md): in part, narrowly.** CEC ends at" in answers
    assert "CEC lies at the bound of 1.5 points within its standard error" in answers
    assert "Decoupled-Cosine lies at" not in answers


def test_the_comparison_is_of_the_main_rows_where_no_study_of_it_was_run(
    sections: ModuleType, record: Record
) -> None:
    evidence = importlib.import_module("claims.evidence").Evidence(sections.recorded.RESULTS)
    record("", result("cec", [50.0], benchmark="cub200"), result("lda", [49.0], benchmark="cub200"))
    assert [row.method for row in evidence.rows("comparison", "cub200")] == ["cec"]
    assert not evidence.rows("ablation", "cub200")
    text = flat(sections.studies.study("comparison"))
    assert "judged by the rows of [its page](cub200.md)" in text
    record("comparison-cub200", result("topic", [30.0], benchmark="cub200"))
    assert [row.method for row in evidence.rows("comparison", "cub200")] == ["topic"]


def test_the_first_pages_table_has_ours_the_published_row_and_the_difference(
    sections: ModuleType, record: Record
) -> None:
    rows = [row for row in comparison("cifar100") if row.method not in ("cec", "eeil")]
    record("comparison-cifar100", *rows, result("cec", [1.0]))
    record(
        "",
        result("cec", [49.0, 49.2], commit="ba9876543210"),
        result("cec", [30.0], recipe="mild"),
        result("decoupled-l2", [48.0]),
        result("topic", [29.0], extra={"images_kept": [[60.0] * 8 + [440.0]]}),
    )
    lines = sections.answer.against_published("cifar100").splitlines()
    methods = [line.removeprefix("| ").partition(" |")[0] for line in lines[2:10]]
    assert methods == [
        "CEC",
        "Decoupled-Cosine",
        "Decoupled-DeepEMD",
        "TOPIC",
        "NCM (`lucir`)",
        "iCaRL",
        "Ft-CNN (`finetune`)",
        "stage 1, nothing learnt",
    ]
    assert lines[2] == (
        "| CEC | 2 | 49.10 ± 0.14 | *49.14* | -0.04 | 59.55, *59.53* | 20.90, *23.93* |"
    )
    notes = flat(" ".join(lines[10:]))
    assert "Not measured: EEIL, joint. Images of old classes that are kept: TOPIC 440." in notes
    assert "More than 5 points" not in notes
    assert "The rows come from 2 commits: ba9876543210 (cec), 0123456789ab (" in notes
    many = [result("cec", [49.0], commit=commit) for commit in "a" * 20 + "b" * 5 + "c"]
    text = sections.accuracy.several_commits(many)
    assert text == "The rows come from 3 commits: a (20 rows), b (5 rows), c (1 row)."
    record("", result("cec", [60.0, 60.2]))
    notes = flat(sections.answer.against_published("cifar100"))
    assert "More than 5 points from the published row: CEC ([why](results/cifar100.md#" in notes
    assert "commits" not in notes


def test_rows_without_fused_layers_are_named(sections: ModuleType, record: Record) -> None:
    failed = {"device": "a GPU", "torch": "2.13", "accel": "graphs alone: TypeError: no such"}
    rows = [result("cec", [49.0], machine=failed), result("lda", [48.0], machine=failed)]
    record("", *rows, result("decoupled-cosine", [47.0]))
    said = "as the fused ones failed to load (`TypeError: no such`): {}."
    assert said.format("cec; lda") in flat(sections.accuracy.provenance("cifar100"))
    assert said.format("cec") in flat(sections.answer.against_published("cifar100"))
    assert said.format("cec; lda") in flat(sections.leaderboard.ranking("cifar100"))
    assert sections.accuracy.unfused([result("cec", [49.0])]) == ""


def test_base_and_last_sessions_are_set_beside_published_ones(
    sections: ModuleType, record: Record
) -> None:
    assert sections.main_rows.gap("cifar100") == "Not measured yet.\n"
    record(
        "",
        result("cec", [48.0, 48.2], base=72.0),
        result("decoupled-cosine", [46.0, 46.4], base=72.55),
        result("decoupled-deepemd", [44.0], base=69.0),
    )
    text = flat(sections.main_rows.gap("cifar100"))
    assert text == (
        "The base session beside the published one, in points: CEC -1.07, Decoupled-Cosine -2.00, "
        "Decoupled-DeepEMD -0.75; the last session: CEC -1.04, Decoupled-Cosine -1.48, "
        "Decoupled-DeepEMD -0.41. After the last session CEC is 1.90 ± 0.14 above "
        "Decoupled-Cosine (2 seeds), and 1.46 in the paper: stage 2 gains 0.44 points more here."
    )
    record("", result("cosine", [3.0], base=74.0))
    text = flat(sections.main_rows.gap("cifar100"))
    assert text.endswith("head has 74.00 here (1 seed), and class means have 72.55 ± 0.00.")


def test_published_rows_are_set_beside_one_more_seed(sections: ModuleType, record: Record) -> None:
    separation = sections.differences.separation
    on: dict[str, Any] = {"benchmark": "cub200"}
    record("", result("cec", [50.0], **on), result("decoupled-cosine", [49.0], **on))
    assert separation() == "Not measured yet.\n", "one seed has no deviation"
    cosine = result("decoupled-cosine", [48.0, 49.0, 50.0], **on)
    record("", result("cec", [50.0, 51.1, 51.9], **on), cosine)
    text = flat(separation())
    assert text.startswith("Both published rows lie within what one further seed of ours would")
    # The mean ± 4.303 (Student's t, two degrees of freedom) · 1.00 · √(1 + 1/3).
    assert "ends at 49.00 ± 1.00 over 3 seeds (44.0 to 54.0), 0.31 below the published" in text
    assert "Stage 2 gains 2.00 ± 0.10 points (1.50 to 2.50) here, and 2.97 in the paper" in text
    assert "| of it in stage 2: a smaller gain | 0.97 |" in text
    record("", result("cec", [50.0, 50.1, 50.2], **on))
    assert flat(separation()).startswith("Not both published rows lie within")


def test_rows_are_compared_by_their_kernels(sections: ModuleType, record: Record) -> None:
    def of(base: float, date: str, **about: Any) -> RunResult:
        machine = {"device": "a GPU", "torch": "2.13", **about}
        return result("cec", [50.0], base=base, date=f"{date}T03:04:05", machine=machine)

    compare = sections.differences._with_large_kernels
    before = [of(base, "2026-11-17") for base in (74.9, 75.1)]
    rows = [*before, *(of(base, "2026-11-18", accel="on") for base in (73.9, 74.1))]
    assert compare(rows).startswith("-1.00 points (p = ")
    failed = "graphs alone: TypeError: no such"
    rows += [of(base, "2026-11-19", accel=failed) for base in (76.9, 77.1)]
    assert compare(rows).startswith("-2.00 points (p = ")


def test_settings_that_changed_since_a_study_are_named(sections: ModuleType) -> None:
    today = setting_values(recipe("official", BENCHMARKS["cifar100"], "cec"))
    rows = [
        result("cec", [49.0], all_settings={**today, "pretrain.epochs": "90"}),
        result("cec", [49.0], all_settings={**today, "pseudo.encoder": "last"}),
    ]
    changed_since = sections.accuracy.changed_since
    assert changed_since(rows) == (
        "All rows are of an earlier recipe (`pretrain.epochs`, `pseudo.encoder`)."
    )
    assert changed_since(rows, ["pseudo.encoder=last"]) == (
        "1 of 2 rows are of an earlier recipe (`pretrain.epochs`)."
    )
    assert changed_since(rows[1:], ["pseudo.encoder=last"]) == ""


def test_commands_that_differ_by_the_seed_are_one(sections: ModuleType, record: Record) -> None:
    commands = sections.commands
    several = "fewmore run a -m b --seed 0 --x; fewmore run a --seed 1; fewmore run a --seed 2"
    once = ["`fewmore run a -m b --seed 0 --x`", "`fewmore run a --seed N`, N = 1, 2"]
    assert commands.folded(several) == once
    assert commands.folded("fewmore run a --seeds 3") == ["`fewmore run a --seeds 3`"]
    cells, listed = commands.numbered([several, "fewmore run b", "fewmore run a -m b --seed 0 --x"])
    assert cells == ["1, 2", "3", "1"]
    assert listed.splitlines() == [f"1. {once[0]}", f"2. {once[1]}", "3. `fewmore run b`"]
    three = "fewmore run cifar100 -m cec --seeds 3"
    record("", result("cec", [49.0] * 5, command=three), result("lda", [48.0]))
    text = flat(sections.accuracy.provenance("cifar100"))
    assert "Seeds 3 and 4 of cec were added by another command than the one below" in text
    assert f"1. `{three}` 2. `fewmore run cifar100 -m lda`" in text
    assert commands.unnamed_seeds(result("cec", [49.0, 48.0], command=f"{three}; x --seed 7")) == []


def test_re_encoded_files_are_compared_with_the_original_ones(
    sections: ModuleType, record: Record
) -> None:
    on: dict[str, Any] = {"benchmark": "miniimagenet"}
    old = [result("cec", [42.0], **on), result("decoupled-cosine", [41.0], **on)]
    record("", *old, result("topic", [36.0], **on))

    def files() -> str:
        rows = sections.recorded.read_results("miniimagenet")
        return str(sections.encoding.files(rows))

    assert files() == ""
    record("re-encoded", *old)
    assert files() == "All rows are of re-encoded files."
    assert sections.encoding.files([result("cec", [48.0])]) == "", "another benchmark"
    assert flat(sections.encoding.cost()) == (
        "From re-encoded files end CEC at 42.00 and Decoupled-Cosine at 41.00; rows of the "
        "original files are not recorded yet."
    )
    on |= {"date": "2026-02-03T04:05:06+00:00", "commit": "ba9876543210", "base": 71.0}
    record("", result("cec", [43.0, 43.2], **on), result("decoupled-cosine", [42.5], **on))
    assert files() == "Of re-encoded files still: topic."
    assert "Of re-encoded files still: topic. The" in sections.accuracy.provenance("miniimagenet")
    cost = sections.encoding.cost()
    assert "| CEC | base session | 70.00 | 71.00 ± 0.00 | +1.00 | *72.00* |" in cost
    assert "| Decoupled-Cosine | last session | 41.00 | 42.50 | +1.50 | *45.63* |" in cost
    assert flat(cost).endswith(
        "Rows of re-encoded files end 1.10 (CEC) and 1.50 (Decoupled-Cosine) points lower. The "
        "code differs too: commit 0123456789ab for re-encoded, ba9876543210 for original files."
    )
    record("earlier", result("cec", [44.0, 45.0], benchmark="miniimagenet"))
    assert flat(sections.encoding.cost()).endswith(
        "With the first rows of original files (commit 0123456789ab, 2 seeds) it is 2.50."
    )
