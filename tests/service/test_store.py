"""The store: what was changed is there after a crash, once, whatever the moment of the crash."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fewmore import IncrementalClassifier
from fewmore.errors import ConfigError, ModelFileError, UnknownName
from fewmore.service import idempotency
from fewmore.service import store as stores
from fewmore.service.idempotency import JSON, IdempotencyKey, KeyReused
from fewmore.service.journal import Journal
from fewmore.service.operations import Operation
from fewmore.service.store import Store, state_digest


def told(made: IncrementalClassifier, result: Any) -> JSON:
    return {"version": made.version}


def lesson(name: str, first: int = 1, count: int = 3) -> Operation:
    rows = torch.rand(count, 64, generator=torch.Generator().manual_seed(first))
    return Operation("learn", (name,), tuple(range(first, first + count)), rows)


CHANGES = [
    lesson("okapi", 1),
    lesson("zebra", 10),
    lesson("okapi", 3),  # one of its three images is there already
    Operation("rename", ("okapi", "forest giraffe")),
    Operation("forget", ("robin",)),
    Operation("undo"),
    Operation("undo"),
]


def crash(store: Store) -> None:
    """Let go of the file without folding, as a kill does."""
    store._resources.close()


def state(model: Path) -> str:
    """What a new process finds."""
    store = Store(model)
    found = state_digest(store.current.model.class_set)
    crash(store)
    return found


@pytest.fixture
def store(model: Path) -> Iterator[Store]:
    store = Store(model)
    yield store
    crash(store)


@pytest.mark.parametrize("number", range(len(CHANGES) + 1))
def test_a_crash_after_any_change_loses_nothing(model: Path, number: int):
    store = Store(model)
    for change in CHANGES[:number]:
        store.change(change, told)
    expected = state_digest(store.current.model.class_set)
    crash(store)
    assert state(model) == expected  # replayed, and folded
    assert state_digest(IncrementalClassifier.load(model).model.class_set) == expected
    assert state(model) == expected


@pytest.mark.parametrize("step", ["append", "save", "create"])
def test_a_crash_while_folding_neither_loses_nor_doubles(
    model: Path, step: str, monkeypatch: pytest.MonkeyPatch
):
    store = Store(model)
    for change in CHANGES:
        store.change(change, told, IdempotencyKey(f"key {id(change)}", "digest"))
    expected = state_digest(store.current.model.class_set)
    place: Any = IncrementalClassifier if step == "save" else Journal

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, step, killed)
        with pytest.raises(KeyboardInterrupt):
            store.merge()
    crash(store)
    assert state(model) == expected
    assert state(model) == expected


def test_a_change_after_a_fold_that_failed_is_kept(model: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(model)
    store.change(lesson("okapi"), told)
    with monkeypatch.context() as patch:
        patch.setattr(
            IncrementalClassifier,
            "save",
            lambda *_: (_ for _ in ()).throw(ModelFileError("no room")),
        )
        store._try_to_merge()
    store.change(lesson("zebra", 10), told)
    expected = state_digest(store.current.model.class_set)
    crash(store)
    assert state(model) == expected


def test_a_change_is_written_before_it_is_seen(store: Store, monkeypatch: pytest.MonkeyPatch):
    seen = []
    real = Journal.append

    def append(journal: Journal, record: Any) -> None:
        seen.append("okapi" in store.current.classes_)
        real(journal, record)
        seen.append("okapi" in store.current.classes_)

    monkeypatch.setattr(Journal, "append", append)
    store.change(lesson("okapi"), told)
    assert seen == [False, False]
    assert "okapi" in store.current.classes_


def test_a_change_that_cannot_be_written_is_not_made(store: Store, monkeypatch: pytest.MonkeyPatch):
    before = store.current
    monkeypatch.setattr(
        Journal, "append", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        store.change(lesson("okapi"), told)
    assert store.current is before
    monkeypatch.undo()
    store.change(lesson("okapi"), told)
    assert store.current.info()["classes"]["okapi"] == 3
    assert before.classes_ == ["jay", "robin", "wren"]  # who holds the old one goes on with that


def test_a_change_that_is_refused_leaves_no_trace(store: Store):
    size = store.journal_bytes
    with pytest.raises(UnknownName):
        store.change(Operation("forget", ("nobody",)), told)
    with pytest.raises(ConfigError, match="nothing to undo"):
        store.change(Operation("undo"), told)
    store.change(lesson("okapi"), told)
    grown = store.journal_bytes
    assert grown > size
    store.change(lesson("okapi"), told)  # all of it is there already
    assert store.journal_bytes == grown


def test_a_key_makes_a_change_once(model: Path):
    store = Store(model)
    key = IdempotencyKey("k", "this")
    first = store.change(lesson("okapi"), told, key)
    assert store.change(lesson("okapi"), told, key) == first
    store.change(Operation("undo"), told)
    with pytest.raises(KeyReused, match="came with another request before"):
        store.change(lesson("zebra"), told, IdempotencyKey("k", "that"))
    for _ in range(3):  # after a crash, after a fold, and after another one
        crash(store)
        store = Store(model)
        assert store.change(lesson("okapi"), told, key) == first
        assert "okapi" not in store.current.classes_
    store.close()


def test_keys_are_not_kept_for_ever(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idempotency, "MOST_KEYS", 2)
    store = Store(model)
    for number in range(4):
        store.change(lesson("okapi", 10 * number + 1), told, IdempotencyKey(str(number), "d"))
    store.close()
    store = Store(model)
    assert [
        store.response_to(IdempotencyKey(str(number), "d")) is not None for number in range(4)
    ] == [
        False,
        False,
        True,
        True,
    ]
    crash(store)


def test_what_another_program_changed_after_a_crash_is_kept_too(model: Path):
    store = Store(model)
    for change in (
        lesson("okapi"),
        Operation("forget", ("robin",)),
        lesson("zebra", 10),
        Operation("undo"),
        Operation("rename", ("wren", "bird")),
    ):
        store.change(change, told)
    crash(store)
    other = IncrementalClassifier.load(model)
    other.learn_features({"yak": torch.rand(2, 64)})
    other.forget("wren")
    other.save(model)
    store = Store(model)
    assert store.current.classes_ == [
        "jay",
        "yak",
        "okapi",
    ]  # a class that is gone cannot be renamed
    expected = state_digest(store.current.model.class_set)
    crash(store)
    assert state(model) == expected


def test_an_undo_never_takes_back_a_strangers_change(model: Path):
    with_history = IncrementalClassifier.load(model)
    with_history.learn_features({"early": torch.rand(2, 64)})
    with_history.save(model)
    store = Store(model)
    store.change(Operation("undo"), told)
    crash(store)
    other = IncrementalClassifier.load(model)
    other.learn_features({"yak": torch.rand(2, 64)})
    other.save(model)
    store = Store(model)
    assert "yak" in store.current.classes_
    crash(store)


def test_a_journal_of_another_backbone_is_refused(model: Path, small_weights: Path):
    store = Store(model)
    store.change(lesson("okapi"), told)
    crash(store)
    weights = torch.load(small_weights)
    changed = small_weights.parent / "other.pth"
    torch.save(
        {
            name: value + 1 if value.is_floating_point() else value
            for name, value in weights.items()
        },
        changed,
    )
    images = {
        "a": [torch.zeros(3, 8, 8, dtype=torch.uint8)],
        "b": [torch.full((3, 8, 8), 255, dtype=torch.uint8)],
    }
    IncrementalClassifier("resnet8", changed, device="cpu").fit(images).save(model)
    with pytest.raises(ModelFileError, match="lessons for another backbone"):
        Store(model)


def test_two_stores_cannot_have_one_file(
    store: Store, model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stores, "PATIENCE", 0.1)
    with pytest.raises(
        ModelFileError, match="is served or changed by another process: stop that one first"
    ):
        Store(model)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path):
    with pytest.raises(ModelFileError, match=r"there is no model file .*none\.fewmore"):
        Store(tmp_path / "none.fewmore")
    assert not list(tmp_path.iterdir())


def test_a_long_journal_is_folded(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stores, "MERGE_BYTES", 5000)
    store = Store(model)
    for number in range(20):
        store.change(lesson(f"class {number}", 10 * number + 1), told)
        assert store.journal_bytes < 7000
    assert len(IncrementalClassifier.load(model).classes_) > 15
    expected = state_digest(store.current.model.class_set)
    copy = shutil.copytree(
        model.parent, model.parent.parent / "copy"
    )  # as the disk is at this moment
    assert state(copy / model.name) == expected
    crash(store)


def test_a_quiet_store_is_folded(model: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(model)
    store.change(lesson("okapi"), told)
    store.merge_when_idle()
    assert "okapi" not in IncrementalClassifier.load(model).classes_
    monkeypatch.setattr(stores, "MERGE_SECONDS", -1.0)
    store.merge_when_idle()
    assert "okapi" in IncrementalClassifier.load(model).classes_
    crash(store)
