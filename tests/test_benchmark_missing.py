"""Test benchmarks/missing.py: which rows it lists, and how it measures them."""

import argparse
import importlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.errors import DataError
from fewmore.methods import FEATURES, METHODS
from fewmore.research import results
from fewmore.research.recipes import recipe
from fewmore.research.results import RunResult
from fewmore.research.setting_list import setting_values

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """Return benchmarks/missing.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("missing")


@pytest.fixture(scope="module")
def recorded(script: ModuleType) -> dict[str, RunResult]:
    """Return the rows of results/, by the names of their files."""
    return script.recorded(ROOT / "results")  # type: ignore[no-any-return]


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_method_is_wanted_once_and_the_main_rows_first(
    script: ModuleType, benchmark: str
) -> None:
    rows = list(script.wanted(benchmark))
    assert [row.method for row in rows[:3]] == [*script.MAIN, script.OWN]
    assert len({row.name for row in rows}) == len(rows)
    of_own = {row.method for row in rows if row.features == METHODS[row.method].features}
    assert of_own == set(METHODS) - ({"joint"} if benchmark == "glyphs" else set())
    # ImageNet's weights are where a benchmark starts from them.
    assert {row.features for row in rows} == set(FEATURES) - (
        set() if BENCHMARKS[benchmark].pretrained else {"pretrained"}
    )
    assert not any(row.method == "decoupled-cosine" and row.features == "closer" for row in rows)


def test_recorded_rows_bear_the_names_of_wanted_ones(
    script: ModuleType, recorded: dict[str, RunResult]
) -> None:
    wanted = {row.name: row for name in BENCHMARKS for row in script.wanted(name)}
    known = set(wanted) & set(recorded)
    assert {"cifar100-cec", "cub200-lda-evolve", "glyphs-cec-quick"} <= known
    for name in known:
        result = recorded[name]
        settings = set(result.settings) - {"features"}
        assert (result.benchmark, result.method) == (wanted[name].benchmark, wanted[name].method)
        assert not settings, name


def test_a_row_is_missing_without_its_seeds_or_layers_or_of_another_recipe_or_code(
    script: ModuleType, recorded: dict[str, RunResult]
) -> None:
    [row] = [row for row in script.wanted("cifar100") if row.name == "cifar100-cec"]
    today = setting_values(recipe("official", BENCHMARKS["cifar100"], "cec"))
    found = replace(
        recorded[row.name], all_settings=today, machine={"source": "that of an older commit"}
    )
    assert len(set(found.seeds)) == row.seeds == 5
    assert script.missing([row], {}, stale=False) == [row]
    assert script.missing([row], {row.name: found}, stale=False) == []
    assert script.missing([row], {row.name: found}, stale=True) == [row]
    fewer = replace(found, seeds=(0, 0, 0, 0, 0))
    assert script.missing([row], {row.name: fewer}, stale=False) == [row]
    earlier = replace(found, all_settings={**found.all_settings, "pretrain.epochs": "90"})
    assert script.missing([row], {row.name: earlier}, stale=False) == [row]
    plain = replace(found, machine={**found.machine, "accel": "graphs alone: TypeError: no such"})
    assert script.missing([row], {row.name: plain}, stale=False) == [row]
    now = replace(found, machine={**found.machine, "source": script.source_digest()})
    assert script.missing([row], {row.name: now}, stale=True) == []


def test_rows_that_share_a_stage_1_are_one_job_a_seed(script: ModuleType) -> None:
    rows = [row for row in script.wanted("cifar100") if row.purpose in ("later", "features")]
    jobs = script.jobs(rows)
    done = [(row.name, job.seed) for job in jobs for row in job.rows]
    assert sorted(done) == sorted((row.name, seed) for row in rows for seed in range(row.seeds))
    on_teen = next(job for job in jobs if job.name == "cifar100-teen-features-seed0")
    assert on_teen.arguments() == [
        *("run", "cifar100", "--features", "teen"),
        *("-m", "decoupled-cosine", "-m", "lda", "-m", "cec", "-m", "evolve", "--seed", "0"),
    ]


def test_finished_seeds_are_gathered_into_a_result(
    script: ModuleType,
    recorded: dict[str, RunResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Stand in for `fewmore run`: the second seed fails, and a third one has no time left."""
    made = replace(recorded["glyphs-cec-quick"], method="lda")
    by_seed = {
        name: tuple(value[:1])
        for name, value in vars(made).items()
        if name in ("accuracy", "base", "novel", "harmonic", "forgetting", "gacc", "seconds")
    }
    calls = []

    def run(words: list[str], **_: object) -> argparse.Namespace:
        seed = int(words[words.index("--seed") + 1])
        calls.append(seed)
        if seed == 1:
            return argparse.Namespace(returncode=1)
        one = replace(
            made, **by_seed, seeds=(seed,), draws=(None,), peak_memory_mb=(1.0,), extra={}
        )
        results.write(Path(words[words.index("--record") + 1]) / "glyphs-lda-quick.json", one)
        return argparse.Namespace(returncode=0)

    monkeypatch.setattr(script.subprocess, "run", run)
    [row] = [row for row in script.wanted("glyphs") if row.name == "glyphs-lda-quick"]
    jobs = script.jobs([row])
    args = argparse.Namespace(measure=tmp_path, minutes=1.0, device="cpu", data_root=None)
    measurement = script.Measurement(args)
    measurement.run(jobs[:2], {}, 1)
    measurement.run(
        jobs[2:],
        {"glyphs-lda-quick": replace(made, seconds=({"share of the wall clock": 90.0},) * 3)},
        1,
    )
    assert calls == [0, 1]
    assert json.loads((tmp_path / "glyphs-lda-quick.json").read_text())["seeds"] == [0]
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("glyphs-cec-features-seed0: finished after")
    assert out[1].startswith(f"glyphs-cec-features-seed1: failed, see {tmp_path}")
    assert out[2].startswith("glyphs-cec-features-seed2: not started,")
    measurement.run(jobs[:1], {}, 1)
    assert calls == [0, 1], "what is finished is not measured again"


def test_other_rows_of_a_measured_job_are_measured(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measure one row alone, then another one on the same features, as --only does."""
    calls = []

    def run(words: list[str], **_: object) -> argparse.Namespace:
        calls.append(words[words.index("-m", 3) + 1])
        return argparse.Namespace(returncode=1)

    monkeypatch.setattr(script.subprocess, "run", run)
    rows = [row for row in script.wanted("glyphs") if row.purpose == "paper"][:2]
    args = argparse.Namespace(measure=tmp_path, minutes=1.0, device="cpu", data_root=None)
    measurement = script.Measurement(args)
    [first], [second] = ([script.Job((row,), 0)] for row in rows)
    assert first.name == second.name
    (tmp_path / "jobs" / first.name).mkdir(parents=True)
    (tmp_path / "jobs" / first.name / f"{rows[0].name}.json").write_text("no result")
    measurement.run([second], {}, 1)
    assert calls == [rows[1].method]
    with pytest.raises(DataError):
        measurement.gather(rows[:1])
    (tmp_path / "jobs" / first.name / f"{rows[1].name}.json").write_text("no result")
    monkeypatch.setattr(script.Measurement, "measure", lambda self, *_: self.gather(rows))
    with pytest.raises(DataError):
        measurement.run([second], {}, 1)


def test_what_a_stopped_job_has_finished_is_gathered_and_rows_of_an_earlier_recipe_are_not(
    script: ModuleType,
    recorded: dict[str, RunResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def run(words: list[str], **_: object) -> argparse.Namespace:
        calls.append(words)
        raise script.subprocess.TimeoutExpired(words, 1.0)

    monkeypatch.setattr(script.subprocess, "run", run)
    rows = {row.name: row for row in script.wanted("glyphs")}
    done, earlier = rows["glyphs-cec-quick"], rows["glyphs-decoupled-cosine-quick"]
    job = script.Job((done, earlier), 0)
    folder = tmp_path / "jobs" / job.name
    results.write(folder / f"{done.name}.json", recorded[done.name])
    old = recorded[earlier.name]
    then = {**old.all_settings, "pretrain.epochs": "90"}
    results.write(folder / f"{earlier.name}.json", replace(old, all_settings=then))
    args = argparse.Namespace(measure=tmp_path, minutes=10.0, device="cpu", data_root=None)
    script.Measurement(args).run([job], {}, 1)
    assert len(calls) == 1, "it is measured again"
    assert [path.stem for path in tmp_path.glob("*.json")] == [done.name]
