"""Test that the command line starts quickly and imports nothing heavy before it is needed."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "matplotlib", "sklearn", "PIL", "safetensors")

INVOKE = "from typer.testing import CliRunner; from fewmore.cli import app; "


def heavy_after(code: str) -> str:
    """Return the heavy packages that a fresh interpreter has imported after some code."""
    report = f"import sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "code",
    [
        "import fewmore.cli",
        f"{INVOKE}assert CliRunner().invoke(app, ['--help']).exit_code == 0",
        f"{INVOKE}assert CliRunner().invoke(app, ['run', '--help']).exit_code == 0",
        f"{INVOKE}assert CliRunner().invoke(app, ['reproduce', '--help']).exit_code == 0",
    ],
    ids=["import", "--help", "run --help", "reproduce --help"],
)
def test_nothing_heavy_is_imported_for_help(code):
    assert heavy_after(code) == "[]"


def test_importing_the_package_imports_nothing_heavy():
    assert heavy_after("import fewmore, fewmore.errors, fewmore.methods") == "[]"


def test_this_test_would_notice():
    assert heavy_after("import numpy") == "['numpy']"


def test_the_package_is_a_command_too():
    done = subprocess.run(
        [sys.executable, "-m", "fewmore", "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "run" in done.stdout
    wrong = subprocess.run(
        [sys.executable, "-m", "fewmore", "run", "cifar10", "-m", "cosine"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("fewmore: ")
    assert "did you mean cifar100?" in wrong.stderr
    assert wrong.stderr.count("\n") == 1
