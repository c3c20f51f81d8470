"""Install a package with one method and one benchmark by pip, and use both by their names."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fewmore.data.benchmarks import find
from fewmore.errors import FewmoreError
from fewmore.research import results

PACKAGE = Path(__file__).parent / "plugin_package"
# Without the network.
QUIET = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def fewmore(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Install the package into a folder, and return a function that runs fewmore beside it."""
    source = tmp_path_factory.mktemp("source") / "garden"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__"))
    site = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip", "install", *QUIET)
    words = (*pip, "--no-build-isolation", "--target", str(site), str(source))
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "FEWMORE_CACHE": str(place / "cache"),
        "COLUMNS": "140",
        "NO_COLOR": "1",
    }

    def fewmore(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "fewmore", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=place,
            env=environment,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    fewmore.site = site  # type: ignore[attr-defined]
    return fewmore


def test_they_are_listed(fewmore: Command) -> None:
    assert re.search(
        r"^ drawn-means +garden.methods:DrawnMeans +fewmore-garden 1.2", listed(fewmore, "methods")
    )
    assert re.search(
        r"^ stripes +garden.benchmarks:STRIPES, of fewmore-garden 1.2",
        listed(fewmore, "benchmarks"),
    )


def listed(fewmore: Command, what: str) -> str:
    """Return the lines of a list from that of the package on."""
    lines = fewmore(what).stdout.splitlines()
    return "\n".join(line for line in lines if "garden" in line)


def test_they_are_run_and_compared(fewmore: Command, place: Path) -> None:
    words = ("run", "stripes", "-m", "drawn-means", "-m", "decoupled-cosine", "--device", "cpu")
    small = ("--recipe", "quick", "--set", "pretrain.epochs=3", "--set", "drawn-means.shrink=0.2")
    done = fewmore(*words, *small)
    assert (
        "80 training and 40 test images; 4 base classes, then 2 sessions of up to 3" in done.stdout
    )
    folders = sorted((place / "runs").iterdir())
    assert [re.sub(r"-\d{8}-\d{6}$", "", folder.name) for folder in folders] == [
        *("stripes-decoupled-cosine", "stripes-drawn-means")
    ]
    for folder in folders:
        result = results.read(folder)
        assert result.benchmark == "stripes"
        assert [size.classes for size in result.sessions] == [4, 7, 8]
        assert re.fullmatch(r"draw 0: 4 base, then 3, 1, sessions [0-9a-f]{8}", result.split)
        assert result.settings.get("shrink") == ("0.2" if result.method == "drawn-means" else None)
        source = result.machine["benchmark_source"]
        assert isinstance(source, dict)
        assert source["file"].endswith("garden/benchmarks.py")
    table = fewmore("compare", *folders).stdout
    assert "stripes: 4 classes, then 2 sessions up to 8" in table
    assert "drawn-means" in table
    assert "decoupled-cosine" in table


def test_the_method_passes_the_exam(fewmore: Command) -> None:
    checks = json.loads(fewmore("exam", "drawn-means", "--json").stdout)
    assert checks[0]["method"] == "drawn-means"
    assert {check["result"] for check in checks[0]["checks"]} <= {"passed", "not applicable"}


def test_other_sessions_of_the_benchmark(fewmore: Command, place: Path) -> None:
    names = [f"stripes-{number}" for number in range(8)]
    sessions = [{"classes": names[4:]}, {"classes": names[:2], "shots": 3}]
    (place / "other.json").write_text(json.dumps({"benchmark": "stripes", "sessions": sessions}))
    assert "has sessions of its own" in fewmore("run", "other.json", "-m", "cec", code=2).stderr


def test_a_mistyped_name_is_told(fewmore: Command) -> None:
    done = fewmore("run", "stripe", "-m", "drawn-means", code=2)
    assert done.stderr == ("fewmore: no benchmark is named 'stripe': did you mean stripes?\n")


def test_broken_packages_are_named_and_left_out(
    fewmore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = fewmore.site  # type: ignore[attr-defined]
    about = site / "broken-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text(
        "[fewmore.benchmarks]\ngone = no_such_package:X\nodd = garden\nraises = raising:X\n"
        "text = garden.benchmarks:SIDE\nmissing = garden.benchmarks:STRIPE\n"
        "[fewmore.methods]\ngone = no_such_package:X\n"
    )
    (site / "raising.py").write_text("1 / 0\n")
    done = fewmore("benchmarks")
    assert "left out: gone of broken 0.1: there is no package no_such_package\n" in done.stderr
    assert "left out: odd of broken 0.1: 'garden' is not of the form" in done.stderr
    assert all(name in done.stdout for name in ("cifar100", "stripes", "folder:PATH"))
    assert "no_such_package" not in done.stdout
    done = fewmore("methods")
    assert "left out: gone of broken 0.1" in done.stderr
    assert "drawn-means" in done.stdout
    monkeypatch.syspath_prepend(site)
    for name, sentence in {
        "gone": "'gone' of the package broken 0.1 cannot be loaded (there is no package",
        "odd": "'garden' is not of the form package.module:NAME",
        "raises": "raising fails when it is loaded: ZeroDivisionError: division by zero",
        "text": "SIDE in garden.benchmarks is of type int, not a Benchmark",
        "missing": "no benchmark in garden.benchmarks is named 'STRIPE': did you mean STRIPES?",
    }.items():
        with pytest.raises(FewmoreError) as refused:
            find(name)
        assert sentence in str(refused.value)


def test_lists_do_not_import_pytorch(fewmore: Command) -> None:
    program = (
        "import sys; sys.argv = ['fewmore', 'benchmarks']\n"
        "from fewmore.cli import main\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules and 'garden' not in sys.modules\n"
    )
    site = str(fewmore.site)  # type: ignore[attr-defined]
    environment = {**os.environ, "PYTHONPATH": site}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "stripes" in done.stdout
