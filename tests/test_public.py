"""The public names, pinned: a change of them is a change that users see."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fewmore

NAMES = {"IncrementalClassifier", "__version__"}


def test_the_public_names():
    assert set(fewmore.__all__) == NAMES
    for name in NAMES:
        assert getattr(fewmore, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Classifier'"):
        fewmore.Classifier  # noqa: B018


def test_importing_it_brings_no_torch():
    code = "import sys, fewmore; assert 'torch' not in sys.modules; fewmore.IncrementalClassifier(); assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_version_is_the_one_that_is_packed():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^version = "(.+)"$', text, re.MULTILINE).group(1) == fewmore.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+([ab]|rc)?\d*", fewmore.__version__)
