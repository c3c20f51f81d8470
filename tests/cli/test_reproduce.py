"""`cecil reproduce`, as a person calls it: it runs what is missing, skips what is done and goes on after a stop."""

import re
from pathlib import Path

import pytest

from cecil import recipes
from cecil.cli.live import StudyWatcher
from cecil.evaluation import results, runner
from cecil.studies import STUDIES

SMALL = ("backbone=resnet8", "transform.size=8", "transform.resize=9")
ROWS = 2  # experiments of the study `confusion`


@pytest.fixture
def cecil(cecil, monkeypatch):
    """With room for the longest title."""
    monkeypatch.setenv("COLUMNS", "150")
    return cecil


@pytest.fixture
def reproduce(cecil, tiny_folder, tiny_settings, monkeypatch):
    """`cecil reproduce` on a folder of pictures, every stage over at once."""
    monkeypatch.setitem(recipes.RECIPES, "quick", lambda b, method: recipes.recipe("official", b, method, (*SMALL, *tiny_settings)))
    return lambda study, *words: cecil("reproduce", study, "--benchmark", f"folder:{tiny_folder}", "--quick", "--device", "cpu", *words)


def measured() -> dict[str, results.RunResult]:
    return {path.parent.name: results.read(path) for path in sorted(Path("runs").glob("*/result.json"))}


def test_the_studies_are_listed(cecil):
    code, out, _ = cecil("reproduce", "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(STUDIES)


def test_what_is_done_is_not_done_again(reproduce):
    code, out, err = reproduce("confusion")
    assert (code, err) == (0, "")
    assert f"0 of {ROWS} experiments are done" in out
    assert re.search(r"^cec, seed0: \d+\.\d\d \d+\.\d\d$", out, re.MULTILINE)
    assert "how scattered the answers are" in out
    (drawn,) = Path("runs/reproduce").iterdir()
    assert drawn.name.startswith("confusion-folder-")
    assert {"confusion.png", "confusion.svg", "confusion.pdf", "table.md", "table.csv", "table.tex"} < {p.name for p in drawn.iterdir()}
    found = measured()
    assert {result.method for result in found.values()} == {"cec", "decoupled-cosine"}
    assert all(result.command.startswith("cecil reproduce confusion") for result in found.values())
    assert len(list(Path("runs/stage1").iterdir())) == 1, "both stand on one stage 1"
    for folder in found:
        assert "<h1>" in (Path("runs") / folder / "report.html").read_text()
    before = (drawn / "table.md").read_text()
    code, out, err = reproduce("confusion", "--out", "elsewhere")
    assert (code, err) == (0, "")
    assert f"{ROWS} of {ROWS} experiments are done" in out
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
    skipped = ("finetune", "icarl", "eeil", "lucir", "topic", "decoupled-deepemd")
    code, out, _ = reproduce("comparison", *(word for name in skipped for word in ("--skip", name)))
    assert code == 0
    assert {result.method for result in measured().values()} == {"decoupled-cosine", "cec"}
    assert "relative improvement" in out


def test_a_failure_leaves_no_empty_folders(reproduce, monkeypatch):
    monkeypatch.setattr(runner, "run_together", failing)
    code, _, err = reproduce("confusion")
    assert (code, err) == (2, "cecil: it cannot be\n")
    assert list(Path("runs").iterdir()) == []


def failing(*_: object, **__: object) -> None:
    from cecil.errors import ConfigError

    raise ConfigError("it cannot be")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("comparisons",), "did you mean comparison"),
        (("tsne", "--skip", "cec"), "--skip leaves methods out of a comparison or an ablation"),
        (("comparison", "--skip", "ceci"), "no method of comparison is named 'ceci'"),
        (("tsne", "--recipe", "paper"), "--quick is a recipe of its own"),
    ],
)
def test_what_cannot_be_is_said(reproduce, words, said):
    code, _, err = reproduce(*words)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert not Path("runs").exists()
