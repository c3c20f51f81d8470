"""The public names, pinned: a change of them is a change that users see."""

import re
from pathlib import Path

import cecil

NAMES = {"__version__"}


def test_the_public_names():
    listed = getattr(cecil, "__all__", None)
    assert set(listed if listed is not None else ["__version__"]) == NAMES
    for name in NAMES:
        assert getattr(cecil, name) is not None


def test_the_version_is_the_one_that_is_packed():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^version = "(.+)"$', text, re.MULTILINE).group(1) == cecil.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+([ab]|rc)?\d*", cecil.__version__)
