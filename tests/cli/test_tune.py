"""Test `fewmore tune`, and `fewmore run --log`."""

import json
import re
from pathlib import Path

import pytest

from fewmore.research import results, tuning
from fewmore.research.tuning import Search

SMALL = (
    "backbone=resnet8",
    "transform.size=8",
    "transform.resize=9",
    "pretrain.epochs=2",
    "pretrain.batch=10",
)


@pytest.fixture
def tune(fewmore, tiny_folder):
    """Return `fewmore tune` on a folder of small images."""

    def tune(*words: object) -> tuple[int, str, str]:
        settings = [word for name in SMALL for word in ("--set", name)]
        common = ("-m", "decoupled-cosine", "--shot", "2", "--device", "cpu")
        return fewmore("tune", f"folder:{tiny_folder}", *common, *settings, *words)

    return tune


def test_a_search_prints_its_table_and_the_command_of_the_best(tune, fewmore, tiny_folder):
    code, out, err = tune("--grid", "pretrain.lr=0.0001,0.05", "--seeds", "2")
    assert (code, err) == (0, "")
    [folder] = Path("tune").iterdir()
    record = tuning.read(folder)
    assert f"record: {folder}/search.json" in out
    assert "split: validation, draw 0: 3 base, 1-way 2-shot; by last" in " ".join(out.split())
    places = [
        out.index(f"\npretrain.lr={trial.settings['pretrain.lr']} ") for trial in record.ranked
    ]
    assert places == sorted(places), "best first"
    command = out.rstrip().splitlines()[-1].strip()
    assert command == (
        f"fewmore run folder:{tiny_folder} -m decoupled-cosine --shot 2 "
        + " ".join(f"--set {name}" for name in SMALL)
        + f" --set pretrain.lr={record.best.settings['pretrain.lr']}"
    )
    assert record.command.startswith("fewmore tune folder:")
    assert {path.name for path in (folder / "figures").iterdir()} == {"trials.png", "trials.svg"}
    assert not Path("runs").exists()
    code, _, err = fewmore(*command.split()[1:], "--device", "cpu", "--quiet")
    assert (code, err) == (0, "")
    [run] = Path("runs").iterdir()
    assert "validation" not in results.read(run).split


def test_compare_names_the_validation_split(tune, fewmore):
    tune("--grid", "pretrain.lr=0.01,0.05")
    trials = sorted(Path("tune").glob("*/trial*"))
    assert len(trials) == 2
    code, out, err = fewmore("compare", *trials)
    assert (code, err) == (0, "")
    assert "split: validation, draw 0" in out


def test_a_trial_can_be_repeated_and_reported(tune, fewmore):
    tune("--grid", "pretrain.lr=0.05")
    [trial] = Path("tune").glob("*/trial1")
    code, _, err = fewmore("run", "--config", trial / "config.json", "--device", "cpu")
    assert (code, err) == (0, "")
    [run] = Path("runs").iterdir()
    first, again = results.read(trial), results.read(run)
    assert again.split == first.split
    assert again.accuracy == first.accuracy
    assert fewmore("report", trial)[0] == 0
    assert "validation, draw 0" in (trial / "report.html").read_text()
    _, out, _ = fewmore("run", "--config", trial / "config.json", "--dry-run")
    assert "the validation split of" in out


def test_a_random_search_resumes_as_finished(tune):
    words = ("--range", "pretrain.lr=log:0.001..0.1", "--random", "2", "--json")
    code, out, err = tune(*words)
    assert (code, err) == (0, "")
    first = json.loads(out)
    assert len(first["trials"]) == 2
    assert first["search"]["space"] == {"pretrain.lr": "log:0.001..0.1"}
    code, out, _ = tune(*words, "--resume", "--by", "average")
    again = json.loads(out)
    assert code == 0
    assert again["trials"] == first["trials"]
    assert again["by"] == "average"
    assert len(list(Path("tune").iterdir())) == 1


def test_all_trials_failed(tune, monkeypatch):
    def fail(self, session):
        raise ValueError("no")

    monkeypatch.setattr("fewmore.methods.decoupled.Decoupled.learn", fail)
    code, _, err = tune("--grid", "pretrain.lr=0.01,0.05")
    assert code == 2
    assert re.match(
        r"fewmore: all 2 trials failed; the first: decoupled-cosine fails in session 1 "
        r"of seed0-draw0: ValueError: no \(.*\.py:\d+\); traceback: .*\n",
        err,
    )


def test_ctrl_c_says_how_to_go_on(tune, monkeypatch):
    def stop(self, session):
        raise KeyboardInterrupt

    monkeypatch.setattr("fewmore.methods.decoupled.Decoupled.learn", stop)
    code, _, err = tune("--grid", "pretrain.lr=0.01,0.05")
    assert code == 130
    assert "go on with the same command and --resume" in err
    [folder] = Path("tune").iterdir()
    assert len(tuning.read(folder).trials) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there is nothing to try"),
        (("-m", "cec"), "--method decoupled-cosine, cec: a search is of one method"),
        (("--grid", "pretrain.lr"), "--grid pretrain.lr: write it as name=value,value"),
        (("--grid", "pretrain.lr=0.1", "--grid", "pretrain.lr=0.2"), "given twice"),
        (("--grid", "pretrain.lrr=0.1"), "did you mean lr"),
        (("--grid", "pretrain.lr=0.1,fast"), "'fast' is not a number"),
        (("--range", "pretrain.lr=0.1..0.2"), "say how many trials with --random 20"),
        (("--range", "pretrain.lr=0.1", "--random", "3"), "write it as name=low..high"),
        (("--grid", "pretrain.lr=0.1", "--by", "lasst"), "did you mean last"),
        (("--grid", "pretrain.lr=0.1", "--seeds", "2", "--seed", "1"), "keep one of them"),
        (("--grid", "pretrain.lr=0.1", "--base", "2"), "too few for a validation split"),
        (("--grid", "pretrain.lr=0.1", "--log", "cvs"), "did you mean csv"),
    ],
)
def test_wrong_commands_are_refused_in_a_sentence(tune, words, message):
    code, _, err = tune(*words)
    assert code == 2
    assert err.startswith("fewmore: ")
    assert message in err
    assert err.count("\n") == 1
    assert not Path("tune").exists()


def test_a_mistyped_benchmark_or_method(fewmore):
    for words in (("glyph", "-m", "cec"), ("glyphs", "-m", "cecc")):
        code, _, err = fewmore("tune", *words, "--grid", "pretrain.lr=0.1")
        assert code == 2
        assert "did you mean" in err


def test_run_logs_by_option(fewmore, tiny_folder):
    settings = [word for name in SMALL for word in ("--set", name)]
    words = ("-m", "decoupled-cosine", "--device", "cpu", *settings)
    code, _, err = fewmore("run", f"folder:{tiny_folder}", *words, "--log", "csv")
    assert (code, err) == (0, "")
    [file] = Path("runs").glob("*/seed0/metrics.csv")
    assert len(file.read_text().splitlines()) == 1 + 2 + 2
    code, _, err = fewmore("run", f"folder:{tiny_folder}", *words, "--log", "wandbs")
    assert code == 2
    assert err == "fewmore: no logger is named 'wandbs': did you mean wandb?\n"


def test_a_search_is_told_from_python(tiny_folder, tmp_path):
    search = Search(
        f"folder:{tiny_folder}",
        "decoupled-cosine",
        {"pretrain.lr": [0.05]},
        settings=SMALL,
        split={"shot": 2},
    )
    assert tuning.tune(search, tmp_path).best.settings == {"pretrain.lr": "0.05"}
