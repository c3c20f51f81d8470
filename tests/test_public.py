"""The public names, pinned: a change of them is a change that users see."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fewmore

NAMES = {
    "BenchmarkError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DownloadError",
    "ExportError",
    "FewmoreError",
    "ImageError",
    "IncrementalClassifier",
    "MethodError",
    "MissingData",
    "ModelFileError",
    "NotFittedError",
    "Prediction",
    "PrototypeClassifier",
    "SplitError",
    "StateError",
    "UnknownName",
    "__version__",
    "load",
}


def test_the_public_names():
    assert set(fewmore.__all__) == NAMES
    for name in NAMES:
        assert getattr(fewmore, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Classifier'"):
        fewmore.Classifier  # noqa: B018


def test_all_errors_are_public():
    classes = [value for value in vars(fewmore.errors).values() if isinstance(value, type)]
    errors = {value.__name__ for value in classes if issubclass(value, Exception)}
    assert "StateError" in errors
    assert errors <= NAMES


def test_load_reads_a_model_file(small_model: Path):
    loaded = fewmore.load(small_model, device="cpu")
    assert isinstance(loaded, fewmore.IncrementalClassifier)
    assert loaded.classes_ == ["jay", "robin", "wren"]


def test_importing_it_brings_no_torch():
    code = (
        "import sys, fewmore\n"
        "assert 'torch' not in sys.modules\n"
        "fewmore.IncrementalClassifier()\n"
        "assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_version_is_the_one_that_is_packed():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^version = "(.+)"$', text, re.MULTILINE).group(1) == fewmore.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+([ab]|rc)?\d*", fewmore.__version__)
