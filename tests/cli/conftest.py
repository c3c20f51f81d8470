"""Call the program as a shell does."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest


@pytest.fixture
def fewmore(
    shell: Callable[[Sequence[object]], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Callable[..., tuple[int, str, str]]:
    """Return a function: fewmore("learn", …) gives the exit code, stdout and stderr.

    It runs in a folder of its own.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)

    def fewmore(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        return shell(["fewmore", *words]), *capsys.readouterr()

    return fewmore


@pytest.fixture
def model(
    small_model: Path,
    photos: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Put a trained model into the current folder, beside its images."""
    monkeypatch.chdir(tmp_path)
    photos("photos", {"robin": 5, "wren": 5, "jay": 4})
    shutil.copy(small_model, "birds.fewmore")
    return Path("birds.fewmore")
