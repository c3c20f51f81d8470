"""Test that a change is there once after a crash at any moment."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fewmore import IncrementalClassifier
from fewmore.errors import ModelFileError, StateError, UnknownName
from fewmore.service import idempotency
from fewmore.service import store as stores
from fewmore.service.batching import Embedded
from fewmore.service.database import Database
from fewmore.service.idempotency import IdempotencyKey, KeyReused, Request
from fewmore.service.store import Outcome, Store, state_digest

Change = Callable[..., Outcome]


def images(first: int = 1, count: int = 3) -> Embedded:
    rows = torch.rand(count, 64, generator=torch.Generator().manual_seed(first))
    return Embedded(rows, (), tuple(range(first, first + count)))


def learn(name: str, first: int = 1, count: int = 3) -> Change:
    """Return a change: teach a class, or add images to it if it is known."""

    def change(store: Store, request: Request = stores.ANY) -> Outcome:
        new = name not in store.current.names
        return store.teach(name, images(first, count), new, request)

    return change


def undo(store: Store, request: Request = stores.ANY) -> Outcome:
    return store.undo(request)


def forget(name: str) -> Change:
    return lambda store, request=stores.ANY: store.forget(name, request)


def rename(name: str, new: str) -> Change:
    return lambda store, request=stores.ANY: store.rename(name, new, request)


def keyed(name: str, digest: str = "digest") -> Request:
    return Request(IdempotencyKey(name, digest))


CHANGES = [
    learn("okapi", 1),
    learn("zebra", 10),
    learn("okapi", 3),  # one of its three images is there already
    rename("okapi", "forest giraffe"),
    forget("robin"),
    undo,
    undo,
]


def crash(store: Store) -> None:
    """Release the file without merging, as a kill does."""
    store._release()


def state(model: Path) -> str:
    """Return the state that a new process finds."""
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
        change(store)
    expected = state_digest(store.current.model.class_set)
    crash(store)
    assert state(model) == expected  # replayed, and merged
    assert state_digest(IncrementalClassifier.load(model).model.class_set) == expected
    assert state(model) == expected


@pytest.mark.parametrize("step", ["expect", "save", "merged"])
def test_a_crash_while_merging_neither_loses_nor_doubles(
    model: Path, step: str, monkeypatch: pytest.MonkeyPatch
):
    store = Store(model)
    for change in CHANGES:
        change(store, keyed(f"key {id(change)}"))
    expected = state_digest(store.current.model.class_set)
    place: Any = IncrementalClassifier if step == "save" else Database

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, step, killed)
        with pytest.raises(KeyboardInterrupt):
            store.merge()
    crash(store)
    assert state(model) == expected
    assert state(model) == expected


def test_a_change_after_a_failed_merge_is_kept(model: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(model)
    learn("okapi")(store)
    with monkeypatch.context() as patch:
        patch.setattr(
            IncrementalClassifier,
            "save",
            lambda *_: (_ for _ in ()).throw(ModelFileError("no room")),
        )
        store._try_to_merge()
    learn("zebra", 10)(store)
    expected = state_digest(store.current.model.class_set)
    crash(store)
    assert state(model) == expected


def test_a_change_is_written_before_it_is_seen(store: Store, monkeypatch: pytest.MonkeyPatch):
    seen = []
    real = Database.append

    def append(database: Database, *values: Any) -> None:
        seen.append("okapi" in store.current.classes_)
        real(database, *values)
        seen.append("okapi" in store.current.classes_)

    monkeypatch.setattr(Database, "append", append)
    learn("okapi")(store)
    assert seen == [False, False]
    assert "okapi" in store.current.classes_


def test_a_change_that_cannot_be_written_is_not_made(store: Store, monkeypatch: pytest.MonkeyPatch):
    before = store.current
    monkeypatch.setattr(
        Database, "append", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        learn("okapi")(store)
    assert store.current is before
    monkeypatch.undo()
    learn("okapi")(store)
    assert store.current.info()["classes"]["okapi"] == 3
    assert before.classes_ == ["jay", "robin", "wren"]  # those who hold the old one keep it


def test_a_change_that_is_refused_leaves_no_trace(store: Store):
    assert store._database is not None
    with pytest.raises(UnknownName):
        store.forget("nobody")
    with pytest.raises(StateError, match="nothing to undo"):
        store.undo()
    assert store._database.last == 0
    learn("okapi")(store)
    assert store._database.last == 1
    learn("okapi")(store)  # all of it is there already
    assert store._database.last == 1


def test_a_key_makes_a_change_once(model: Path):
    store = Store(model)
    key = keyed("k", "this")
    first = learn("okapi")(store, key).response
    assert learn("okapi")(store, key) == (first, True)
    store.undo()
    with pytest.raises(KeyReused, match="another request"):
        learn("zebra")(store, keyed("k", "that"))
    for _ in range(3):  # after a crash, after a merge, and after another one
        crash(store)
        store = Store(model)
        assert learn("okapi")(store, key) == (first, True)
        assert "okapi" not in store.current.classes_
    store.close()


def remembered(store: Store, count: int) -> list[bool]:
    return [store._responses.get(keyed(str(number)).key) is not None for number in range(count)]


def test_old_keys_are_forgotten(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idempotency, "MOST_KEYS", 2)
    store = Store(model)
    for number in range(4):
        learn("okapi", 10 * number + 1)(store, keyed(str(number)))
    store.close()
    store = Store(model)
    assert remembered(store, 4) == [False, False, True, True]
    assert store._database is not None
    assert len(store._database.responses()) == 2
    crash(store)


def test_remembered_responses_have_a_limit_in_bytes(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idempotency, "MOST_BYTES", 3000)
    store = Store(model)
    for number in range(40):
        learn("okapi", 10 * number + 1)(store, keyed(str(number)))
    store.merge()
    assert store._database is not None
    stored = sum(len(response) for _, response in store._database.responses())
    assert 0 < stored <= 3000
    assert remembered(store, 40)[-1]
    crash(store)


def test_a_response_names_ten_warnings_at_most(store: Store):
    shown = images(1, 40)
    store.teach("okapi", shown)
    warnings = store.teach("okapi", shown, new=False).response["warnings"]
    assert len(warnings) == 11
    assert warnings[-1] == "and 30 more"


def test_what_another_program_changed_after_a_crash_is_kept_too(model: Path):
    store = Store(model)
    for change in (
        learn("okapi"),
        forget("robin"),
        learn("zebra", 10),
        undo,
        rename("wren", "bird"),
    ):
        change(store)
    crash(store)
    other = IncrementalClassifier.load(model)
    other.learn_features({"yak": torch.rand(2, 64)})
    other.forget("wren")
    other.save(model)
    store = Store(model)
    # A class that is gone cannot be renamed.
    assert store.current.classes_ == ["jay", "yak", "okapi"]
    expected = state_digest(store.current.model.class_set)
    crash(store)
    assert state(model) == expected


def test_an_undo_never_reverts_another_programs_change(model: Path):
    with_history = IncrementalClassifier.load(model)
    with_history.learn_features({"early": torch.rand(2, 64)})
    with_history.save(model)
    store = Store(model)
    store.undo()
    crash(store)
    other = IncrementalClassifier.load(model)
    other.learn_features({"yak": torch.rand(2, 64)})
    other.save(model)
    store = Store(model)
    assert "yak" in store.current.classes_
    crash(store)


def test_a_second_undo_does_not_revert_another_programs_change(model: Path):
    """Undo a change of the journal, and then one that was in the file before the journal."""
    with_history = IncrementalClassifier.load(model)
    with_history.learn_features({"early": torch.rand(2, 64)})
    with_history.save(model)
    store = Store(model)
    for change in (learn("okapi"), undo, undo):
        change(store)
    assert "early" not in store.current.classes_
    crash(store)
    other = IncrementalClassifier.load(model)
    other.learn_features({"yak": torch.rand(2, 64)})
    other.save(model)
    store = Store(model)
    assert store.current.classes_ == ["jay", "robin", "wren", "early", "yak"]
    crash(store)


def test_the_undo_of_a_change_that_was_left_out_reverts_nothing(model: Path):
    store = Store(model)
    for change in (rename("wren", "bird"), undo):
        change(store)
    crash(store)
    other = IncrementalClassifier.load(model)
    other.forget("wren")
    other.save(model)
    store = Store(model)
    assert store.current.classes_ == ["jay", "robin"]
    crash(store)


def test_the_digest_of_a_state_depends_on_all_of_it(model: Path):
    """Change counts, sums, names, times or the version: each alone gives another digest."""
    class_set = IncrementalClassifier.load(model).model.class_set
    first, *others = class_set.classes
    change = class_set.history[0]
    assert first.count > 1
    states = [
        class_set,
        replace(class_set, classes=(replace(first, count=first.count + 1), *others)),
        replace(class_set, classes=(replace(first, feature_sum=first.feature_sum + 1), *others)),
        replace(class_set, classes=(replace(first, name="bird"), *others)),
        replace(class_set, classes=tuple(others)),
        replace(class_set, history=(replace(change, when="2000-01-01T00:00:00Z"),)),
        replace(class_set, version=class_set.version + 1),
    ]
    assert len({state_digest(state) for state in states}) == len(states)
    assert state_digest(class_set) == state_digest(
        IncrementalClassifier.load(model).model.class_set
    )


def test_changes_for_another_backbone_are_refused(model: Path, small_weights: Path):
    store = Store(model)
    learn("okapi")(store)
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
    with pytest.raises(ModelFileError, match="another backbone"):
        Store(model)


def test_two_stores_cannot_open_one_file(
    store: Store, model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stores, "LOCK_TIMEOUT", 0.1)
    with pytest.raises(ModelFileError, match="another process"):
        Store(model)


def test_a_missing_model_file_is_reported(tmp_path: Path):
    with pytest.raises(ModelFileError, match="no model file"):
        Store(tmp_path / "none.fewmore")
    assert not list(tmp_path.iterdir())


def test_many_changes_are_merged(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stores, "MERGE_BYTES", 5000)
    store = Store(model)
    for number in range(20):
        learn(f"class {number}", 10 * number + 1)(store)
        assert store.pending_bytes < 7000
    assert len(IncrementalClassifier.load(model).classes_) > 15
    expected = state_digest(store.current.model.class_set)
    copy = shutil.copytree(model.parent, model.parent.parent / "copy")  # as after a kill now
    assert state(copy / model.name) == expected
    crash(store)


def test_responses_to_requests_that_change_nothing_are_trimmed(
    store: Store, model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(idempotency, "MOST_KEYS", 3)
    learn("okapi")(store)
    store.merge()
    for number in range(6):
        learn("okapi")(store, keyed(f"key {number}"))  # its images are there already
    database = store._database
    assert database is not None
    assert len(database.responses()) == 6
    with monkeypatch.context() as patch:
        patch.setattr(IncrementalClassifier, "save", lambda *_: pytest.fail("nothing to save"))
        store.merge()
    assert [key.name for key, _ in database.responses()] == ["key 3", "key 4", "key 5"]
    assert store.pending_bytes == 0
    expected = state_digest(store.current.model.class_set)
    assert database.after(expected) == database.last
    crash(store)
    assert state(model) == expected


def test_an_idle_store_is_merged(model: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(model)
    learn("okapi")(store)
    store.maintain()
    assert "okapi" not in IncrementalClassifier.load(model).classes_
    monkeypatch.setattr(stores, "MERGE_SECONDS", -1.0)
    store.maintain()
    assert "okapi" in IncrementalClassifier.load(model).classes_
    crash(store)
