"""Test that README and docs agree with the code and with the recorded results."""

import importlib
import json
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fewmore.data import glyphs
from fewmore.data.benchmarks import BENCHMARKS
from fewmore.io import hash_files
from fewmore.methods import METHODS
from fewmore.research import results
from fewmore.research.machine import source_digest
from fewmore.research.results.migration import migrate
from fewmore.research.studies import STUDIES

ROOT = Path(__file__).resolve().parent.parent


def test_generated_parts_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "make.py"), "--check"]
    check = subprocess.run(command, capture_output=True, text=True)
    assert check.returncode == 0, check.stderr


TRANSLATED = {"command", "settings", "extra", "keeps"}
RECORDED = [
    path
    for pattern in (
        "*.json",
        "re-encoded/*.json",
        "explain/*.json",
        "choices/*.json",
        "studies/*/results/*.json",
    )
    for path in sorted((ROOT / "results").glob(pattern))
]


@pytest.mark.parametrize(
    "path",
    [path for path in RECORDED if not path.name.startswith("bench-")],
    ids=lambda p: str(p.relative_to(ROOT / "results")),
)
def test_recorded_results_follow_the_schema(path: Path) -> None:
    result = results.read(path)
    text = path.read_text()
    raw = json.loads(text)
    assert path.stem == results.file_name(replace(result, settings=raw["settings"]))
    assert result.commit
    assert not result.commit.endswith("-dirty")
    written = results.to_json(result)
    assert json.loads(written) == migrate(raw)
    # Results from before the first release differ only where they are translated.
    lines = zip(written.splitlines(), text.splitlines(), strict=True)
    assert {line.split('"')[1] for line, recorded in lines if line != recorded} <= TRANSLATED


def committed_digest(commit: str, folder: Path) -> str:
    """Hash the source files of a commit, as a result records those that it was measured with."""
    command = ["git", "archive", "--format=tar", f"--output={folder / 'source.tar'}", commit, "src"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(folder / "source.tar") as archive:
        archive.extractall(folder, filter="data")
    package = folder / "src" / "fewmore"
    return hash_files(package, package.rglob("*.py"))


def ask_git(*words: str) -> str | None:
    """Return what git says, or None where it refuses or is not there."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def check_sources(paths: Sequence[Path], folder: Path) -> None:
    """Compare the digests that results carry with those of the commits that they name."""
    named: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        raw = json.loads(path.read_text())
        if isinstance(raw.get("machine"), dict) and "source" in raw["machine"]:
            named.setdefault((raw["commit"], raw["machine"]["source"]), []).append(path.name)
    for number, ((commit, digest), files) in enumerate(named.items()):
        if ask_git("cat-file", "-e", f"{commit}^{{commit}}") is None:
            if ask_git("rev-parse", "--is-shallow-repository") == "true":
                pytest.skip(f"the clone is shallow: {commit}, of {files[0]}, is not in it")
            pytest.fail(f"{files} name the commit {commit}, which there is not")
        (folder / str(number)).mkdir()
        actual = committed_digest(commit, folder / str(number))
        assert actual == digest, f"{files} were not measured with the source of {commit}"


@pytest.fixture
def head() -> str:
    """Return the commit of this checkout."""
    commit = ask_git("rev-parse", "HEAD")
    if commit is None:
        pytest.skip("this is no checkout: there are no commits to compare with")
    return commit


@pytest.mark.usefixtures("head")
def test_recorded_results_were_measured_with_the_commit_that_they_name(tmp_path: Path) -> None:
    """Check the results that carry a digest of their source; older ones carry none."""
    check_sources(RECORDED, tmp_path)


def test_a_result_of_other_source_than_its_commit_is_found(head: str, tmp_path: Path) -> None:
    (tmp_path / "head").mkdir()
    digest = committed_digest(head, tmp_path / "head")
    assert (tmp_path / "head" / "src" / "fewmore" / "research" / "machine.py").exists()
    if ask_git("status", "--porcelain", "--", "src") == "":
        assert digest == source_digest()  # what a run of this checkout records
    paths = [tmp_path / name for name in ("right.json", "old.json", "wrong.json", "unknown.json")]
    machines = ({"source": digest}, {}, {"source": "0" * 64}, {"source": digest})
    commits = (head[:12], head[:12], head[:12], "0" * 12)
    for path, commit, machine in zip(paths, commits, machines, strict=True):
        path.write_text(json.dumps({"commit": commit, "machine": machine}))
    check_sources(paths[:2], tmp_path)
    (tmp_path / "again").mkdir()
    with pytest.raises(AssertionError, match=r"wrong\.json.* not measured with the source of"):
        check_sources(paths[2:3], tmp_path / "again")
    if ask_git("rev-parse", "--is-shallow-repository") == "false":
        with pytest.raises(pytest.fail.Exception, match=r"unknown\.json.*which there is not"):
            check_sources(paths[3:], tmp_path)


def test_studies_are_where_the_page_looks_for_them() -> None:
    """Check names and content: a misnamed folder would silently leave a claim unjudged."""
    known = {f"{study}-{benchmark}" for study in STUDIES for benchmark in BENCHMARKS}
    for folder in (ROOT / "results" / "studies").glob("*"):
        assert folder.name in known
        assert (folder / "table.md").exists()
        assert list(folder.glob("*.png"))
        rows = [results.read(path) for path in (folder / "results").glob("*.json")]
        assert {row.benchmark for row in rows} == {folder.name.rpartition("-")[2]}


PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
]


def anchors(page: Path) -> set[str]:
    """Return the addresses that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_the_first_screen_of_the_results_answers_the_question() -> None:
    """Count lines of the source, where a paragraph is about as long as on a screen."""
    lines = (ROOT / "docs" / "results.md").read_text().splitlines()
    first_screen = "\n".join(lines[:30])
    for name in ("CIFAR100", "miniImageNet", "CUB200"):
        assert re.search(
            rf"^- \*\*\[{name}\]\S+: (yes|in part|no|not measured yet)(, narrowly)?\.",
            first_screen,
            re.M,
        )
    assert len(lines) < 250, "long tables have pages of their own"


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_file_explains_its_idea_in_about_three_sentences(name: str) -> None:
    module = importlib.import_module(METHODS[name].target.partition(":")[0])
    _, *paragraphs = (module.__doc__ or "").split("\n\n")
    idea = next(paragraph for paragraph in paragraphs if "https://" not in paragraph)
    assert 2 <= len(re.findall(r"\.(?=\s|$)", idea)) <= 4, idea
    assert idea.strip() in (ROOT / "docs" / "methods.md").read_text()


def test_the_example_of_a_users_own_method_runs(
    shell: Callable[[Sequence[str]], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Run the command that the page shows, on fewer images."""
    page = (ROOT / "docs" / "own-method.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("    fewmore run glyphs"))
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glyphs, "load", partial(glyphs.load, train_per_class=8, test_per_class=1))
    small = "--base 20 --way 40 --device cpu --set pretrain.epochs=1"
    arguments = [*shlex.split(command), *small.split(), "--runs", str(tmp_path / "runs")]
    code = shell(arguments)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    runs = [results.read(path.parent) for path in sorted(tmp_path.glob("runs/*/result.json"))]
    assert {run.method for run in runs} == {"decoupled-cosine", "powermeans"}
    assert all(len(run.accuracy[0]) == 3 for run in runs)
    table = out.rpartition("run folder")[2]
    assert "powermeans" in table
