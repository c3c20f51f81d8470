"""The paper's claims are judged by their rules, and the page says what was found; all results here are made up."""

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
from fewmore.data.splits import draw
from fewmore.research import published, results
from fewmore.research.published import PROTOCOL, ROW_OF_METHOD
from fewmore.research.results import RunResult, SessionSize
from fewmore.research.studies import ANGLES, GRID, STUDIES, Setting

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def docs() -> tuple[ModuleType, ModuleType]:
    """docs/claims.py and docs/make.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module("claims"), importlib.import_module("make")


@pytest.fixture(scope="module")
def claims(docs: tuple[ModuleType, ModuleType]) -> ModuleType:
    return docs[0]


@pytest.fixture
def make(
    docs: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    """docs/make.py with an empty folder of results."""
    monkeypatch.setattr(docs[1], "ROOT", tmp_path)
    monkeypatch.setattr(docs[1], "RESULTS", tmp_path / "results")
    return docs[1]


def result(
    method: str,
    last: Sequence[float],
    *,
    base: float = 70.0,
    benchmark: str = "cifar100",
    **changed: Any,
) -> RunResult:
    """A result whose accuracy falls evenly, one run a number."""
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
    """record("rotation-cifar100", result(…), …) writes a study, record("", …) the main results, record("explain", …) experiments."""

    def record(name: str, *made: RunResult) -> None:
        folder = tmp_path / "results" / (f"studies/{name}/results" if "-" in name else name)
        for one in made:
            results.write(folder / f"{results.file_name(one)}.json", one)
        if "-" in name:
            (folder.parent / "table.md").write_text(f"**table of {name}**\n")

    return record


@pytest.fixture
def evidence(claims: ModuleType, tmp_path: Path) -> Any:
    return claims.Evidence(tmp_path / "results")


def verdicts(parts: Sequence[Any]) -> list[str]:
    return [part.verdict for part in parts]


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
def test_rules_at_what_is_needed(
    claims: ModuleType, gain: float, better: str, no_better: str, best: str
) -> None:
    assert (
        claims.is_better(gain, 0.5),
        claims.is_no_better(gain, 0.5),
        claims.is_best(gain, 0.5),
    ) == (better, no_better, best)


def test_what_is_needed_is_students_bound_or_two_deviations(claims: ModuleType) -> None:
    assert claims.needed(claims.Figure.of([1.0, 2.0, 3.0]), 9.0) == pytest.approx(
        2.91999 / math.sqrt(3), abs=1e-4
    )
    assert claims.needed(claims.Figure.of([1.0]), 0.25) == 0.5
    assert (
        claims.is_better(5.0, claims.needed(claims.Figure.of([5.0]), math.nan)) == "holds in part"
    ), "nothing to hold it against"


@pytest.mark.parametrize(
    ("found", "whole"),
    [
        (["holds", "holds"], "holds"),
        (["holds", "not measured yet"], "holds"),
        (["holds", "does not hold"], "holds in part"),
        (["holds in part", "does not hold"], "holds in part"),
        (["does not hold", "does not hold"], "does not hold"),
        (["not measured yet"], "not measured yet"),
    ],
)
def test_a_claim_is_as_its_parts(claims: ModuleType, found: list[str], whole: str) -> None:
    assert (
        claims.overall([claims.Part("", "", "", "", verdict=verdict) for verdict in found]) == whole
    )


def test_seeds_are_compared_with_themselves(claims: ModuleType, evidence: Any) -> None:
    """Seeds differ by ten points and the rows by a half: only pairs show it."""
    better, worse = (
        claims.Side("a", {(0, None): 40.5, (1, None): 50.6, (2, None): 60.4}),
        claims.Side("b", {(2, None): 60, (1, None): 50, (0, None): 40}),
    )
    part = evidence.compared("cifar100", better, worse, claims.LAST)
    assert (part.verdict, part.gain.seeds) == ("holds", 3)
    assert part.gain.mean == pytest.approx(0.5)
    assert evidence.compared("cifar100", better, worse, claims.PD).verdict == "does not hold", (
        "less is better"
    )
    assert (
        evidence.compared(
            "cifar100", better, claims.Side("c", {(3, None): 1.0}), claims.LAST
        ).verdict
        == "not measured yet"
    )


def test_one_seed_is_held_against_the_deviation_of_cec(
    claims: ModuleType, evidence: Any, record: Record
) -> None:
    sides = claims.Side("a", {(0, None): 48.0}), claims.Side("b", {(0, None): 46.5})
    assert evidence.compared("cifar100", *sides, claims.LAST).verdict == "holds in part"
    record("", result("cec", [47.0, 48.0, 49.0]))
    assert evidence.compared("cifar100", *sides, claims.LAST).needed == pytest.approx(2.0)
    assert evidence.compared("cifar100", *sides, claims.LAST).verdict == "holds in part"
    record("", result("cec", [47.5, 48.0, 48.5]))
    assert evidence.compared("cifar100", *sides, claims.LAST).verdict == "holds"


# ---- the claims


def ablation(**last: float) -> list[RunResult]:
    """The ablation's rows with three seeds, as the paper has them where nothing else is said."""
    said = [row.sessions[-1] or 0.0 for row in published.ablation()]
    rows = []
    for (method, data_init), end in zip(published.METHOD_OF_ABLATION, said, strict=True):
        untrained = method.startswith("decoupled-") and not data_init
        end = last.get(method.replace("-", "_"), end) if not untrained else end
        rows.append(
            result(
                method,
                [end, end + 0.1, end - 0.1],
                settings={"session.data_init": "false"} if untrained else {},
            )
        )
    return [*rows, result("cec", [51.0, 51.2, 51.1], settings={"adapter.query_node": "false"})]


def test_the_papers_own_ablation_proves_its_claims(
    claims: ModuleType, evidence: Any, record: Record
) -> None:
    record("ablation-cifar100", *ablation())
    for judged in (
        claims.decoupling,
        claims.data_init,
        claims.cosine_best,
        claims.meta_learning,
        claims.pseudo_incremental,
        claims.query_node,
    ):
        assert set(verdicts(judged(evidence))) == {"holds"}, judged.__name__
    part = claims.decoupling(evidence)[0]
    assert (part.better, part.worse, part.measure, part.published) == (
        "decoupled linear",
        "linear",
        "PD",
        (67.10, 70.49),
    )


def test_claims_of_the_ablation_can_fail(claims: ModuleType, evidence: Any, record: Record) -> None:
    record("ablation-cifar100", *ablation(decoupled_l2=49.5, cec_meta=53.0))
    assert claims.overall(claims.cosine_best(evidence)) == "holds in part"
    assert set(verdicts(claims.meta_learning(evidence))) == {"does not hold"}
    assert verdicts(claims.pseudo_incremental(evidence)) == ["does not hold"] * 3 + ["holds"] * 3


def test_rotation(claims: ModuleType, evidence: Any, record: Record) -> None:
    def recorded(**last: float) -> list[str]:
        ends = dict(zip(ANGLES, (48.0, 48.2, 47.0, 46.0, 45.5, 45.0, 49.0), strict=True)) | last
        settings = {
            label: {"pseudo.angles": angles} if angles else {} for label, angles in ANGLES.items()
        }
        record(
            "rotation-cifar100",
            *(
                result("cec", [end, end + 0.1], settings=settings[label])
                for label, end in ends.items()
            ),
        )
        return verdicts(claims.rotation(evidence))

    assert recorded() == ["holds"] * 4
    assert recorded(**{"±45°": 49.5}) == ["holds", "does not hold", "holds", "does not hold"]
    assert recorded(**{"180°": 40.0, "±90°": 41.0}) == [
        "does not hold",
        "holds",
        "does not hold",
        "holds",
    ]
    mix = claims.rotation(evidence)[1]
    assert (mix.worse, mix.published[0]) == ("±45°", 61.33), (
        "the best single set, and the paper's average of the mix"
    )


def test_ways_and_shots_with_one_seed(claims: ModuleType, evidence: Any, record: Record) -> None:
    def recorded(last: Callable[[int, int], float]) -> list[str]:
        for way in GRID:
            for shot in GRID:
                sized = {"way": way, "shot": shot, "query": 10}
                changed = {
                    f"pseudo.{group}_{name}": str(n)
                    for name, n in sized.items()
                    for group in ("base", "new")
                }
                record("ways-shots-cifar100", result("cec", [last(way, shot)], settings=changed))
        return verdicts(claims.ways_shots(evidence))

    record("", result("cec", [48.0, 48.2, 48.4]))
    assert recorded(lambda way, shot: 48 + 0.1 * way - 0.1 * shot - (way == 20)) == [
        "holds",
        "holds",
        "holds",
    ]
    assert recorded(lambda way, shot: 48 + 0.01 * way - 0.1 * shot) == [
        "holds in part",
        "holds",
        "holds in part",
    ]
    assert recorded(lambda way, shot: 48 - 0.1 * way + 0.1 * shot) == ["does not hold"] * 3


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
    assert verdicts(claims.confusion(evidence)) == [
        "does not hold",
        "holds",
        "holds in part",
        "holds",
        "holds",
        "holds",
    ]
    assert claims.confusion(evidence)[2].gain == claims.Figure(2.0, 2.0, 3), (
        "fewer taken for base is better"
    )


def comparison(benchmark: str, **last: float) -> list[RunResult]:
    said = published.published(benchmark)
    ends = {
        method: last.get(method, said[name].sessions[-1] or 0.0)
        for method, name in ROW_OF_METHOD.items()
    }
    return [result(method, [end, end + 0.1], benchmark=benchmark) for method, end in ends.items()]


def test_the_comparison(claims: ModuleType, evidence: Any, record: Record) -> None:
    assert set(verdicts(claims.order(evidence))) == {"not measured yet"}
    for benchmark in claims.COMPARED:
        record(f"comparison-{benchmark}", *comparison(benchmark))
    record("ablation-cifar100", *ablation())
    for judged in (claims.drop_of_topic, claims.above_all, claims.order):
        assert set(verdicts(judged(evidence))) == {"holds"}, judged.__name__
    assert len(claims.order(evidence)) == 2 * sum(
        len(a) * len(b) for a, b in pairwise(claims.STEPS)
    )
    record("comparison-cifar100", *comparison("cifar100", icarl=60.0))
    wrong = [
        (part.where, part.better, part.worse)
        for part in claims.order(evidence)
        if part.verdict != "holds"
    ]
    assert wrong == [("cifar100", "TOPIC", "iCaRL")]
    assert {
        part.worse for part in claims.above_all(evidence) if part.verdict == "does not hold"
    } == {"iCaRL"}


def test_rows_left_out_of_a_study_leave_the_rest(
    claims: ModuleType, evidence: Any, record: Record
) -> None:
    record(
        "comparison-cifar100",
        *(one for one in comparison("cifar100") if one.method != "decoupled-deepemd"),
    )
    found = verdicts(claims.order(evidence))
    assert (found.count("holds"), found.count("not measured yet")) == (8, 12)
    assert claims.above_all(evidence)[0].verdict == "not measured yet", (
        "the best of the others is not known"
    )


def test_old_rows_in_a_studys_folder_are_not_mixed_with_new_ones(
    claims: ModuleType, evidence: Any, record: Record
) -> None:
    record("ablation-cifar100", *ablation(), result("linear", [9.0], recipe="mild"))
    with pytest.raises(ValueError, match="cifar100-linear-mild, cifar100-linear are the same row"):
        claims.decoupling(evidence)


def test_claims_look_for_what_the_studies_run(
    claims: ModuleType, evidence: Any, record: Record, tiny_images: Callable[..., ImageSet]
) -> None:
    train = tiny_images(45, 31)
    task = Task(
        dataclasses.replace(BENCHMARKS["cifar100"], classes=45, base=40),
        train,
        train,
        draw(train, 40, 5, 5),
    )
    for name, study in STUDIES.items():
        experiments = study.experiments(Setting("cifar100", task)).values()
        record(
            f"{name}-cifar100",
            *(result(one.method, [48.0], settings=one.settings) for one in experiments),
        )
    for claim in claims.CLAIMS:
        if claim.study != "confusion":  # is judged by its table
            assert {
                part.where for part in claim.parts(evidence) if part.verdict == "not measured yet"
            } <= {"miniimagenet"}, claim.title


# ---- the page


def test_what_is_not_measured_is_said_with_the_command(
    make: ModuleType, claims: ModuleType
) -> None:
    assert make.verdicts().count("**not measured yet**") == len(claims.CLAIMS)
    for study in make.ALT:
        assert f"`fewmore reproduce {study} --benchmark cifar100" in make.study(study)
        assert "![" not in make.study(study)
    assert (
        make.gaps("cifar100")
        == "No row of cifar100 ends more than 5 points from the published one.\n"
    )


def test_a_measured_study_is_shown(make: ModuleType, record: Record, tmp_path: Path) -> None:
    record("comparison-cifar100", *comparison("cifar100"))
    text = make.study("comparison")
    assert (
        "![cifar100: accuracy by session of all methods; published rows dashed](../results/studies/comparison-cifar100/sessions.png)"
        in text
    )
    assert "**table of comparison-cifar100**" in text
    assert "16 runs, 8.0 minutes in all, on a machine, 2026-01-02" in text
    assert "On miniimagenet not measured yet" in text
    assert "Verdict: **holds**, as far as measured: rows are missing on miniimagenet." in text
    assert (
        "| cifar100 | CEC | TOPIC | PD | 23.93 / 34.73 | 20.81 ± 0.07 / 40.58 ± 0.07 | +19.77 ± 0.00 | 0.00 | 2 | holds |"
        in text
    )


def test_the_overview_leads_to_the_claims(make: ModuleType, record: Record) -> None:
    record("ablation-cifar100", *ablation())
    page = "\n".join(map(make.study, make.ALT))
    headings = [
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^### (.*)$", page, re.MULTILINE)
    ]
    assert sorted(re.findall(r"\(#(.*?)\)", make.verdicts())) == sorted(headings)
    assert "| **holds** | 4 | 0 | 0 |" in make.verdicts()


def test_gaps_come_with_the_experiments_that_explain_them(make: ModuleType, record: Record) -> None:
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
    assert make.gaps("cifar100").splitlines()[2:] == [
        "| **icarl** | 70.00 ± 0.00 | *64.10* | +5.90 | 46.50 ± 0.71 | *13.73* | +32.77 |",
        "| ↳ session.lr=0.1 | 64.00 | *64.10* | -0.10 | 14.00 | *13.73* | +0.27 |",
        "| **topic** | 70.00 | *64.10* | +5.90 | 40.00 | *29.37* | +10.63 |",
        "| ↳ no experiment yet | | | | | | |",
        "",
        "Within 5 points: cec.",
    ]


def test_the_readmes_table_is_the_papers_comparison(make: ModuleType, record: Record) -> None:
    record("", *comparison("cifar100"), *ablation()[:4], result("joint", [70.0]))
    lines = make.summary("cifar100").splitlines()
    assert [line.split(" | ")[0][2:].partition(" ")[0] for line in lines[2:10]] == list(
        ROW_OF_METHOD
    )
    assert lines[9].startswith(
        "| cec (2 seeds) | 70.00 ± 0.00 | 49.19 ± 0.07 | *49.14* | 20.81 ± 0.07 | *23.93* |"
    )
    assert lines[10] == ""
