"""Test `fewmore reproduce`: it runs what is missing, skips what is done and resumes."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from fewmore import methods
from fewmore.cli.live import StudyWatcher
from fewmore.errors import ConfigError
from fewmore.research import recipes, results, studies
from fewmore.research.reporting.figures import files as figure_files
from fewmore.research.studies import STUDIES

SMALL = ("backbone=resnet8", "transform.size=8", "transform.resize=9")
ROWS = 2  # experiments of the study `confusion`
# Methods of the comparison that it does not have.
OTHERS = ("finetune", "icarl", "eeil", "lucir", "topic", "decoupled-deepemd")


@pytest.fixture
def reproduce(fewmore, tiny_folder, small_recipe, monkeypatch):
    """Return `fewmore reproduce` on a folder of images, with stages that take no time."""
    monkeypatch.setitem(
        recipes.RECIPES,
        "quick",
        lambda b, method, features: small_recipe("official", b, method, *SMALL),
    )
    return lambda study, *words: fewmore(
        "reproduce",
        study,
        "--benchmark",
        f"folder:{tiny_folder}",
        "--quick",
        "--device",
        "cpu",
        *words,
    )


def measured() -> dict[str, results.RunResult]:
    return {
        path.parent.name: results.read(path) for path in sorted(Path("runs").glob("*/result.json"))
    }


def run_lines(out: str) -> list[tuple[str, str, str]]:
    """Return the lines about runs: which run, its stage or numbers, and how many are done."""
    pattern = r"^(\S+, seed\d): (.+) \((\d+ of \d+) runs done, \d:\d\d:\d\d\)$"
    return [
        (run, re.sub(r"\d+\.\d\d \d+\.\d\d", "numbers", text), done)
        for run, text, done in re.findall(pattern, out, re.MULTILINE)
    ]


def test_the_studies_are_listed(fewmore):
    code, out, _ = fewmore("reproduce", "list")
    assert code == 0
    lines = out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [*STUDIES, "all"]
    assert max(map(len, lines)) <= 120, "none is folded"
    for line, study in zip(lines, STUDIES.values(), strict=False):
        assert all(part in line for part in (study.paper, f" {study.size} ", study.title))


def test_what_is_done_is_not_done_again(reproduce):
    code, out, err = reproduce("confusion")
    assert (code, err) == (0, "")
    assert f"0 of {ROWS} experiments are done" in out
    assert run_lines(out) == [
        ("decoupled-cosine, seed0", "pretrain", "0 of 2"),
        ("decoupled-cosine, seed0", "numbers", "1 of 2"),
        ("cec, seed0", "pretrain (shared)", "1 of 2"),
        ("cec, seed0", "pseudo-incremental", "1 of 2"),
        ("cec, seed0", "numbers", "2 of 2"),
    ]
    assert "how scattered the predictions are" in out
    (drawn,) = Path("runs/reproduce").iterdir()
    assert drawn.name.startswith("confusion-folder-")
    assert {
        "confusion.png",
        "confusion.svg",
        "confusion.pdf",
        "table.md",
        "table.csv",
        "table.tex",
    } < {p.name for p in drawn.iterdir()}
    found = measured()
    assert {result.method for result in found.values()} == {"cec", "decoupled-cosine"}
    assert all(
        result.command.startswith("fewmore reproduce confusion") for result in found.values()
    )
    assert len(list(Path("cache/stage1").glob("*.safetensors"))) == 1, "both stand on one stage 1"
    for folder in found:
        assert "<h1>" in (Path("runs") / folder / "report.html").read_text()
    before = (drawn / "table.md").read_text()
    code, out, err = reproduce("confusion", "--out", "elsewhere")
    assert (code, err) == (0, "")
    assert f"{ROWS} of {ROWS} experiments are done" in out
    assert run_lines(out) == []
    assert Path("elsewhere/table.md").read_text() == before
    assert measured().keys() == found.keys()


@pytest.mark.parametrize("parallel", [1, 2])
def test_stopped_it_goes_on_with_the_same_command(reproduce, monkeypatch, parallel):
    finish = StudyWatcher.finish

    def interrupt(watcher: StudyWatcher, name: str, accuracy: list[float]) -> None:
        finish(watcher, name, accuracy)
        if name.startswith("cec"):
            raise KeyboardInterrupt

    monkeypatch.setattr(StudyWatcher, "finish", interrupt)
    code, _, err = reproduce("confusion", "--parallel", parallel)
    assert (code, err) == (130, "stopped; go on with the same command\n")
    assert len(measured()) < ROWS
    monkeypatch.setattr(StudyWatcher, "finish", finish)
    begun = set(Path("runs").glob("*/config.json"))
    code, _, err = reproduce("confusion", "--parallel", parallel)
    assert (code, err) == (0, "")
    assert set(Path("runs").glob("*/config.json")) == begun, "in the folders that there were"
    assert len(measured()) == ROWS


def test_a_method_can_be_left_out(reproduce):
    code, out, _ = reproduce("comparison", *(word for name in OTHERS for word in ("--skip", name)))
    assert code == 0
    assert {result.method for result in measured().values()} == {"decoupled-cosine", "cec"}
    assert "relative improvement" in out


def test_stages_of_a_run_are_printed_once_and_only_where_there_are_no_bars():
    for terminal in (False, True):
        screen = Console(file=io.StringIO(), width=100, force_terminal=terminal, highlight=False)
        watcher = StudyWatcher(screen)
        watcher.expect(3)
        for stage in ("pretrain", "pretrain", "session 1", "session 1, all alike", "session 2"):
            watcher.begin("icarl, seed0", stage)
        watcher.finish("icarl, seed0", [70.0, 61.234])
        printed = re.sub(r"\d:\d\d:\d\d", "time", screen.file.getvalue()).splitlines()
        plain = [
            f"icarl, seed0: {what} ({done} of 3 runs done, time)"
            for what, done in (("pretrain", 0), ("sessions", 0), ("70.00 61.23", 1))
        ]
        assert printed == (["icarl, seed0: 70.00 61.23"] if terminal else plain)


def test_all_studies_in_one_command(reproduce, monkeypatch):
    monkeypatch.setattr(
        studies, "STUDIES", {name: STUDIES[name] for name in ("comparison", "confusion")}
    )
    monkeypatch.setattr(figure_files, "FORMATS", (".svg",))
    code, out, err = reproduce(
        "all", "--out", "drawn", *(word for name in OTHERS for word in ("--skip", name))
    )
    assert (code, err) == (0, "")
    done = re.findall(r"^(\w+) on .*: (\d of \d) experiments are done$", out, re.MULTILINE)
    assert done == [("comparison", "0 of 2"), ("confusion", "2 of 2")], "what both need is run once"
    (first, second) = sorted(Path("drawn").iterdir())
    assert first.name == second.name.replace("confusion", "comparison")
    assert (first / "sessions.svg").exists()
    assert (second / "confusion.svg").exists()


def test_a_failure_leaves_no_empty_folders(reproduce, monkeypatch):
    def fail(name: str) -> None:
        raise ConfigError("it cannot be")

    monkeypatch.setattr(methods, "find", fail)
    code, _, err = reproduce("confusion")
    assert (code, err) == (2, "fewmore: it cannot be\n")
    assert list(Path("runs").glob("*")) == []


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("comparisons",), "did you mean comparison"),
        (("tsne", "--skip", "cec"), "--skip leaves methods out of a comparison or an ablation"),
        (("comparison", "--skip", "ceci"), "no method of comparison is named 'ceci'"),
        (("all", "--skip", "ceci"), "no method of comparison or ablation is named 'ceci'"),
        (("tsne", "--recipe", "paper"), "--quick is a recipe of its own"),
    ],
)
def test_wrong_options_are_refused(reproduce, words, key):
    code, _, err = reproduce(*words)
    assert code == 2
    assert key in err
    assert "Traceback" not in err
    assert not Path("runs").exists()
