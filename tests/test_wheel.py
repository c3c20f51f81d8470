"""Check that a wheel, built and installed elsewhere, works without this checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fewmore import __version__

ROOT = Path(__file__).parents[1]
# Without the network.
QUIET = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")


def command(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command("-m", "pip", "wheel", *QUIET, "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    """Return a function that runs the installed wheel, away from the checkout."""
    target = tmp_path_factory.mktemp("installed")
    place = tmp_path_factory.mktemp("place")
    command("-m", "pip", "install", *QUIET, "--target", target, wheel)
    environment = {
        **os.environ,
        "PYTHONPATH": str(target),
        "FEWMORE_CACHE": str(place / "cache"),
        "COLUMNS": "120",
    }

    def elsewhere(*words: object) -> str:
        return command(*words, cwd=place, env=environment).stdout

    # The checkout may be installed too. Its path comes after PYTHONPATH, so the wheel is imported.
    imported = Path(elsewhere("-c", "import fewmore; print(fewmore.__file__)").strip())
    assert imported == target / "fewmore" / "__init__.py"
    return elsewhere


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    assert wheel.name == f"fewmore-{__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 2_000_000
    packed = set(zipfile.ZipFile(wheel).namelist())
    inside = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file()
    }
    inside = {name for name in inside if "__pycache__" not in name}
    about = {name for name in packed if name.startswith(f"fewmore-{__version__}.dist-info/")}
    assert packed - about == inside
    assert "fewmore/research/published.json" in packed
    (entry_points,) = (name for name in about if name.endswith("entry_points.txt"))
    assert "fewmore = fewmore.cli:main" in zipfile.ZipFile(wheel).read(entry_points).decode()


def test_check_wheel_contents_finds_nothing_wrong(wheel):
    pytest.importorskip("check_wheel_contents")
    out = command("-m", "check_wheel_contents", wheel).stdout
    assert out.rstrip().endswith("OK")


def test_the_published_numbers_are_read(elsewhere):
    out = elsewhere(
        "-c",
        "from fewmore.research.published import published; "
        "print(published('cifar100')['CEC'].sessions)",
    )
    assert out.startswith("(73.07, ")


def test_help(elsewhere):
    assert elsewhere("-c", "import fewmore; print(fewmore.__version__)").strip() == __version__
    out = elsewhere("-m", "fewmore", "--help")
    assert all(name in out for name in ("run", "compare", "benchmarks", "methods"))


def test_an_exam(elsewhere, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text((ROOT / "docs" / "examples" / "power_means.py").read_text())
    out = elsewhere("-m", "fewmore", "exam", f"{mine}:PowerMeans")
    assert "powermeans: 21 checks passed, 0 failed" in out


def test_a_run(elsewhere, tiny_folder):
    small = ("backbone=resnet8", "transform.size=8", "transform.resize=9", "pretrain.epochs=1")
    settings = [word for setting in small for word in ("--set", setting)]
    out = elsewhere(
        "-m",
        "fewmore",
        "run",
        f"folder:{tiny_folder}",
        "-m",
        "decoupled-cosine",
        "--device",
        "cpu",
        *settings,
    )
    assert "session 1:" in out
    folder = out.partition("run folder: ")[2].splitlines()[0]
    assert "decoupled-cosine" in elsewhere("-m", "fewmore", "compare", folder)
