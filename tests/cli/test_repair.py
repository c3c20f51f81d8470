"""Test what `fewmore repair` says; tests/service/test_damage.py tests what it does."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

Fewmore = Callable[..., tuple[int, str, str]]


def test_nothing_is_done_where_nothing_is_stored(fewmore: Fewmore, model: Path) -> None:
    before = model.read_bytes()
    code, out, err = fewmore("repair", model)
    assert (code, err) == (0, "")
    assert "nothing was done" in out
    assert model.read_bytes() == before
