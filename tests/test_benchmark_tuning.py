"""Test benchmarks/tuning.py: how its search grows, what it records, and what the page shows."""

import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.research import results
from fewmore.research.recipes import recipe
from fewmore.research.tuning import MEASURES, Trial

ROOT = Path(__file__).resolve().parent.parent
NUMBERS = [str(number) for number in range(20)]
LADDERS = {"rate": NUMBERS, "weight": NUMBERS, "frozen": ["false", "true"]}
CENTRE = {"rate": "9", "weight": "9", "frozen": "false"}

Score = Callable[[Mapping[str, str]], tuple[float, float] | None]


@pytest.fixture(scope="module")
def tuning() -> ModuleType:
    """Return benchmarks/tuning.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("tuning")


@pytest.fixture(scope="module")
def growing(tuning: ModuleType) -> ModuleType:
    """Return benchmarks/growing.py."""
    return sys.modules["growing"]


def tried(number: int, settings: Mapping[str, str], score: tuple[float, float] | None) -> Trial:
    """Make a trial from its last accuracy and harmonic mean; None for one that diverged."""
    if score is None:
        return Trial(number, settings, {}, error="the loss became nan")
    measures = dict.fromkeys(MEASURES, (score[0],)) | {"harmonic": (score[1],)}
    return Trial(number, settings, measures)


def search(
    growth: Any, score: Score, start: Sequence[Mapping[str, str]] = (CENTRE,)
) -> list[Trial]:
    """Run a search to its end."""
    trials: list[Trial] = []
    proposed = list(start)
    while proposed:
        trials += [tried(len(trials) + i, s, score(s)) for i, s in enumerate(proposed, 1)]
        proposed = growth.propose(trials)
    return trials


def peak(rate: int, weight: int) -> Callable[[Mapping[str, str]], float]:
    """Return a score with one highest place, where the flag does not count."""
    return lambda s: 50.0 - abs(int(s["rate"]) - rate) - abs(int(s["weight"]) - weight)


def both(by_last: Callable[..., float], by_harmonic: Callable[..., float]) -> Score:
    return lambda settings: (by_last(settings), by_harmonic(settings))


def test_a_search_goes_beyond_its_edges_and_stops_inside(growing: ModuleType) -> None:
    growth = growing.Growth(LADDERS, usual=24, most=24)
    trials = search(growth, both(peak(8, 9), peak(11, 10)))
    for measure, rate, weight in (("last", "8", "9"), ("harmonic", "11", "10")):
        choice = growing.best(trials, measure)
        assert (choice.settings["rate"], choice.settings["weight"]) == (rate, weight)
        assert growing.edges(choice, trials, LADDERS) == []
    assert len(trials) <= growth.most
    texts = [trial.settings for trial in trials]
    assert all(text not in texts[:i] for i, text in enumerate(texts)), "each is tried once"


def test_the_best_with_all_beside_it_tried_ends_a_search(growing: ModuleType) -> None:
    trials = search(growing.Growth(LADDERS), both(peak(9, 9), peak(9, 9)))
    assert len(trials) == 6, "the centre, four steps and the flag"


def test_a_search_that_always_goes_further_ends_at_its_bound(growing: ModuleType) -> None:
    growth = growing.Growth(LADDERS, usual=7, most=10)
    trials = search(growth, both(peak(19, 9), peak(19, 9)))
    assert len(trials) == 10
    choice = growing.best(trials, "last")
    assert growing.edges(choice, trials, LADDERS) == ["rate"], "the record says so"


def test_after_the_usual_number_only_edges_are_tried(growing: ModuleType) -> None:
    growth = growing.Growth(LADDERS, usual=3, batch=1)
    trials = search(growth, both(peak(12, 9), peak(12, 9)))
    assert any(trial.settings["rate"] == "13" for trial in trials)
    for number, trial in enumerate(trials[3:], 3):
        before = [set(earlier.settings.items()) for earlier in trials[:number]]
        assert set(trial.settings.items()) - set().union(*before), "a value no trial has had"


def test_the_ends_of_a_ladder_are_no_edges(growing: ModuleType) -> None:
    ladders = {"weight": ["0", "1"], "frozen": ["false", "true"]}
    start = {"weight": "1", "frozen": "false"}
    trials = search(growing.Growth(ladders), lambda s: (-float(s["weight"]),) * 2, [start])
    choice = growing.best(trials, "last")
    assert choice.settings["weight"] == "0"
    assert growing.edges(choice, trials, ladders) == []


def test_a_diverged_trial_is_the_worst_but_counts_as_tried(growing: ModuleType) -> None:
    def score(settings: Mapping[str, str]) -> tuple[float, float] | None:
        rate = int(settings["rate"])
        return None if rate > 9 else (rate - 50.0, rate - 50.0)

    trials = search(growing.Growth(LADDERS), score, [{**CENTRE, "rate": "15"}, CENTRE])
    choice = growing.best(trials, "harmonic")
    assert choice.settings["rate"] == "9", "though its mean is below 0"
    assert any(trial.error and trial.settings["rate"] == "10" for trial in trials)
    assert "rate" not in growing.edges(choice, trials, LADDERS)


def test_of_equals_the_first_is_the_best(growing: ModuleType) -> None:
    trials = search(growing.Growth(LADDERS), lambda settings: (0.0, 0.0))
    assert growing.best(trials, "harmonic").number == 1


def test_every_search_starts_on_its_ladders_and_tries_the_papers_rate(tuning: ModuleType) -> None:
    from fewmore.research.tuning import Search

    for method, ladders in tuning.LADDERS.items():
        starts = [dict(zip(ladders, s.split(), strict=True)) for s in tuning.STARTS[method]]
        assert all(text in ladders[name] for each in starts for name, text in each.items())
        assert any(each["session.lr"] == "0.1" for each in starts)
        made = Search("cifar100", method, ladders)
        recipes = [made.experiment(tuning.complete(method, each)).recipe for each in starts]
        assert len(set(recipes)) == len(starts)


@pytest.fixture
def recorded(tuning: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the record of a search of EEIL, one trial of which diverged."""
    monkeypatch.setattr(sys, "argv", ["tuning.py"])
    ladders = tuning.LADDERS["eeil"]
    each = tuning.MethodSearch(tuning.Search("cifar100", "eeil", ladders), tuning.Growth(ladders))
    starts = [dict(zip(ladders, s.split(), strict=True)) for s in tuning.STARTS["eeil"]]
    scores = [(50.0, 0.0), (49.0, 3.0), None]
    each.trials = [tried(i + 1, s, scores[i]) for i, s in enumerate(starts)]
    about = {"benchmark": "cifar100", "split": "validation, draw 0", "method": "eeil", "seeds": 2}
    about |= {"trials": 3, **each.choices()}
    rows = [each.row(trial) for trial in each.trials]
    tuning.record("tuning", torch.device("cpu"), rows, about, tmp_path / "results", part="eeil")
    file = tmp_path / "results" / "bench-tuning-eeil-cpu.json"
    return file.rename(file.with_name("bench-tuning-eeil-gpu.json")).parent


def test_the_record_holds_all_trials_and_both_choices(
    tuning: ModuleType, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((recorded / "bench-tuning-eeil-gpu.json").read_text())
    assert [row.get("harmonic") for row in record["rows"]] == [0.0, 3.0, None]
    assert record["rows"][2]["error"] == "the loss became nan"
    by_last, by_harmonic = (record["about"][f"by {name}"] for name in ("last", "harmonic"))
    assert by_last["settings"]["session.lr"] == "0.001"
    assert by_harmonic["settings"]["balanced.lr"] == "0.001", "a tenth of the session's"
    assert by_last["at an edge"] == ["session.lr", "distillation.weight"]
    capsys.readouterr()
    tuning.print_commands(recorded)
    assert capsys.readouterr().out.splitlines() == [by_last["command"], by_harmonic["command"]]


def test_the_page_shows_both_choices_and_their_rows_once_recorded(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    choices = importlib.import_module("sections.choices")
    monkeypatch.setattr(choices.recorded, "RESULTS", recorded)
    text = choices.choices()
    assert text.count("| `eeil` | last |") == text.count("| `eeil` | harmonic |") == 2
    assert text.count("    fewmore run cifar100 -m eeil") == 2
    command = next(line for line in text.splitlines() if line.startswith("    fewmore"))
    settings = dict(word.split("=") for word in command.split() if "=" in word)
    row = results.read(ROOT / "results" / "cifar100-eeil.json")
    results.write(recorded / "choices" / "a.json", replace(row, settings=settings))
    shown = choices.choices()
    assert shown.count("    fewmore run cifar100 -m eeil") == 1
    assert f"{sum(row.last) / row.runs:.2f}" in shown


def test_a_page_without_a_record_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    choices = importlib.import_module("sections.choices")
    monkeypatch.setattr(choices.recorded, "RESULTS", tmp_path)
    assert choices.choices() == "Not measured yet.\n"


@pytest.mark.parametrize("method", ["icarl", "eeil", "lucir", "topic"])
def test_the_recipes_have_the_settings_that_are_best_by_accuracy(method: str) -> None:
    record = json.loads((ROOT / f"results/bench-tuning-{method}-gpu.json").read_text())
    chosen = record["about"]["by last"]["settings"]
    settings = [f"{name}={value}" for name, value in chosen.items()]
    cifar100 = BENCHMARKS["cifar100"]
    assert recipe("official", cifar100, method, settings) == recipe("official", cifar100, method)
