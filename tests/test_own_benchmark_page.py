"""Run what docs/own-benchmark.md shows: its benchmark file, and its benchmark in Python."""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fewmore.data import benchmark_files, loading
from fewmore.errors import BenchmarkError
from fewmore.research import results

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "own-benchmark.md").read_text()


def snippet(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return str(found[0])


def test_the_benchmark_file_runs(
    shell: Callable[[Sequence[str]], int],
    photos: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run the page's command, with a small network and two draws."""
    sessions = json.loads(snippet("json"))["sessions"]
    classes = [name for session in sessions for name in session.get("classes", ["stork"])]
    photos("photos", dict.fromkeys([*classes, "unused"], 8), size=12)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path / "cache"))
    Path("birds.json").write_text(snippet("json"))
    command = next(line for line in PAGE.splitlines() if line.startswith("    fewmore run birds"))
    command = command.replace("--method cec ", "").replace("--seeds 5", "--draws 2")
    small = "--device cpu --set backbone=resnet8 --set transform.size=8 --set transform.resize=9"
    words = [
        *shlex.split(command),
        *small.split(),
        "--set",
        "pretrain.epochs=1",
        "--recipe",
        "quick",
    ]
    code = shell(words)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "4 base classes, then 3 sessions of up to 2 classes" in " ".join(out.split())
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("birds.json-decoupled-cosine-")
    result = results.read(folder)
    assert [size.classes for size in result.sessions] == [4, 6, 8, 9]
    assert re.fullmatch(r"2 draws: 4 base, then 2, 2, 1, sessions [0-9a-f]{8}", result.split)
    assert result.draws == (0, 1)
    source = result.machine["benchmark_source"]
    assert isinstance(source, dict)
    assert source["file"] == "birds.json"


def test_the_benchmark_in_python_is_that_of_the_package(tmp_path: Path) -> None:
    text = snippet("python")
    assert text == (ROOT / "tests/plugin_package/garden/benchmarks.py").read_text()
    (tmp_path / "stripes.py").write_text(text)
    task = loading.load_task(f"{tmp_path / 'stripes.py'}:STRIPES")
    assert [len(session.classes) for session in task.split.sessions] == [4, 3, 1]
    with pytest.raises(
        BenchmarkError, match=r"is a file: name the benchmark, .*stripes\.py:STRIPES"
    ):
        loading.load_task(str(tmp_path / "stripes.py"))


def test_all_keys_are_described() -> None:
    for key in (*benchmark_files.KEYS, *benchmark_files.SESSION_KEYS):
        assert re.search(rf"^\| `{key}` \|", PAGE, re.MULTILINE), key
