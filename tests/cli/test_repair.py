"""Test what `fewmore repair` says; tests/service/test_damage.py tests what it does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fewmore import IncrementalClassifier
from fewmore.service.store import Store

pytest.importorskip("fastapi")

Fewmore = Callable[..., tuple[int, str, str]]


def test_changes_that_a_killed_service_left_are_named_until_they_are_merged(
    fewmore: Fewmore, model: Path
) -> None:
    store = Store(model)
    store.rename("wren", "great wren")
    store.forget("jay")
    store._release()  # as a kill: nothing is merged
    note = (
        "note: birds.fewmore lacks 2 changes that `fewmore serve` has stored beside it "
        "(rename wren to great wren, forget jay): a start of the service adds them, and so does "
        "fewmore repair birds.fewmore\n"
    )
    assert fewmore("info", model)[1].endswith(note)
    code, _, err = fewmore("rename", model, "robin", "small robin")
    assert (code, err) == (0, note)
    assert fewmore("repair", model)[0] == 0
    assert "note: birds.fewmore lacks" not in fewmore("info", model)[1]
    assert IncrementalClassifier.load(model).names == ["small robin", "great wren"]
    assert fewmore("undo", model)[2] == ""


def test_nothing_is_done_where_nothing_is_stored(fewmore: Fewmore, model: Path) -> None:
    before = model.read_bytes()
    code, out, err = fewmore("repair", model)
    assert (code, err) == (0, "")
    assert "nothing was done" in out
    assert model.read_bytes() == before
