"""Test that the command line starts quickly and imports nothing heavy before it is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fewmore import __version__

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


def invoke(*words: str, code: int) -> str:
    return f"{INVOKE}assert CliRunner().invoke(app, {list(words)!r}).exit_code == {code}"


@pytest.mark.parametrize(
    "code",
    [
        invoke("--version", code=0),
        invoke("methods", code=0),
        invoke("benchmarks", code=0),
        invoke("run", "glyphs", "-m", "nonsense", code=1),
        invoke("run", "nonsense", "-m", "cec", code=1),
    ],
    ids=["--version", "methods", "benchmarks", "no such method", "no such benchmark"],
)
def test_nothing_heavy_is_imported_for_lists_and_mistyped_names(code):
    assert heavy_after(code) == "[]"


def test_the_version_is_that_of_the_package(fewmore):
    assert fewmore("--version") == (0, f"fewmore {__version__}\n", "")


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--version"], ["methods"], ["--help"]])
def test_an_output_that_cannot_be_written_is_a_sentence(words: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fewmore", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 1
    assert done.stderr == (
        "fewmore: the output cannot be written (No space left on device): "
        "send it to another place\n"
    )


def test_a_file_that_cannot_be_used_is_a_sentence(fewmore):
    name = "a" * 300
    code, out, err = fewmore("info", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"fewmore: {name} cannot be used (File name too long): check its name")
    assert err.count("\n") == 1


def test_help_joins_the_lines_of_a_paragraph(fewmore, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    for command in ("predict", "export"):
        lines = [line.strip() for line in fewmore(command, "--help")[1].splitlines()]
        (paragraph,) = [
            line for line in lines if line.startswith(("If some", "A file, birds.onnx"))
        ]
        assert paragraph.endswith(("goes on.", "with onnxruntime."))
    lines = fewmore("data", "get", "--help")[1].splitlines()
    assert any("fetched by hand." in line and "Download a benchmark" in line for line in lines)
