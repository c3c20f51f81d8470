"""Test that a change is there once after a crash at any moment."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fewmore import IncrementalClassifier
from fewmore.errors import ModelFileError, StateError, UnknownName
from fewmore.service import idempotency
from fewmore.service import store as stores
from fewmore.service.idempotency import JSON, IdempotencyKey, KeyReused
from fewmore.service.journal import Journal, Record
from fewmore.service.operations import Operation
from fewmore.service.store import Store, state_digest


def respond(changed: IncrementalClassifier, result: Any) -> JSON:
    return {"version": changed.version}


def learn(name: str, first: int = 1, count: int = 3) -> Operation:
    rows = torch.rand(count, 64, generator=torch.Generator().manual_seed(first))
    return Operation("learn", (name,), tuple(range(first, first + count)), rows)


CHANGES = [
    learn("okapi", 1),
    learn("zebra", 10),
    learn("okapi", 3),  # one of its three images is there already
    Operation("rename", ("okapi", "forest giraffe")),
    Operation("forget", ("robin",)),
    Operation("undo"),
    Operation("undo"),
]


def crash(store: Store) -> None:
    """Release the file without merging, as a kill does."""
    store._resources.close()


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
        store.change(change, respond)
    expected = state_digest(store.current.model.class_set)
    crash(store)
    assert state(model) == expected  # replayed, and merged
    assert state_digest(IncrementalClassifier.load(model).model.class_set) == expected
    assert state(model) == expected


@pytest.mark.parametrize("step", ["append", "save", "create"])
def test_a_crash_while_merging_neither_loses_nor_doubles(
    model: Path, step: str, monkeypatch: pytest.MonkeyPatch
):
    store = Store(model)
    for change in CHANGES:
        store.change(change, respond, IdempotencyKey(f"key {id(change)}", "digest"))
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


def test_a_change_after_a_failed_merge_is_kept(model: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(model)
    store.change(learn("okapi"), respond)
    with monkeypatch.context() as patch:
        patch.setattr(
            IncrementalClassifier,
            "save",
            lambda *_: (_ for _ in ()).throw(ModelFileError("no room")),
        )
        store._try_to_merge()
    store.change(learn("zebra", 10), respond)
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
    store.change(learn("okapi"), respond)
    assert seen == [False, False]
    assert "okapi" in store.current.classes_


def test_a_change_that_cannot_be_written_is_not_made(store: Store, monkeypatch: pytest.MonkeyPatch):
    before = store.current
    monkeypatch.setattr(
        Journal, "append", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        store.change(learn("okapi"), respond)
    assert store.current is before
    monkeypatch.undo()
    store.change(learn("okapi"), respond)
    assert store.current.info()["classes"]["okapi"] == 3
    assert before.classes_ == ["jay", "robin", "wren"]  # those who hold the old one keep it


def test_a_change_that_is_refused_leaves_no_trace(store: Store):
    size = store.journal_bytes
    with pytest.raises(UnknownName):
        store.change(Operation("forget", ("nobody",)), respond)
    with pytest.raises(StateError, match="nothing to undo"):
        store.change(Operation("undo"), respond)
    store.change(learn("okapi"), respond)
    grown = store.journal_bytes
    assert grown > size
    store.change(learn("okapi"), respond)  # all of it is there already
    assert store.journal_bytes == grown


def test_a_key_makes_a_change_once(model: Path):
    store = Store(model)
    key = IdempotencyKey("k", "this")
    first = store.change(learn("okapi"), respond, key)
    assert store.change(learn("okapi"), respond, key) == first
    store.change(Operation("undo"), respond)
    with pytest.raises(KeyReused, match="another request"):
        store.change(learn("zebra"), respond, IdempotencyKey("k", "that"))
    for _ in range(3):  # after a crash, after a merge, and after another one
        crash(store)
        store = Store(model)
        assert store.change(learn("okapi"), respond, key) == first
        assert "okapi" not in store.current.classes_
    store.close()


def test_old_keys_are_forgotten(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idempotency, "MOST_KEYS", 2)
    store = Store(model)
    for number in range(4):
        store.change(learn("okapi", 10 * number + 1), respond, IdempotencyKey(str(number), "d"))
    store.close()
    store = Store(model)
    responses = [store.response_to(IdempotencyKey(str(number), "d")) for number in range(4)]
    assert [response is not None for response in responses] == [False, False, True, True]
    crash(store)


def test_what_another_program_changed_after_a_crash_is_kept_too(model: Path):
    store = Store(model)
    for change in (
        learn("okapi"),
        Operation("forget", ("robin",)),
        learn("zebra", 10),
        Operation("undo"),
        Operation("rename", ("wren", "bird")),
    ):
        store.change(change, respond)
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
    store.change(Operation("undo"), respond)
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
    for change in (learn("okapi"), Operation("undo"), Operation("undo")):
        store.change(change, respond)
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
    for change in (Operation("rename", ("wren", "bird")), Operation("undo")):
        store.change(change, respond)
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


def test_a_journal_of_another_backbone_is_refused(model: Path, small_weights: Path):
    store = Store(model)
    store.change(learn("okapi"), respond)
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


def test_a_long_journal_is_merged(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stores, "MERGE_BYTES", 5000)
    store = Store(model)
    for number in range(20):
        store.change(learn(f"class {number}", 10 * number + 1), respond)
        assert store.journal_bytes < 7000
    assert len(IncrementalClassifier.load(model).classes_) > 15
    expected = state_digest(store.current.model.class_set)
    copy = shutil.copytree(model.parent, model.parent.parent / "copy")  # as after a kill now
    assert state(copy / model.name) == expected
    crash(store)


def test_an_idle_store_is_merged(model: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(model)
    store.change(learn("okapi"), respond)
    store.merge_when_idle()
    assert "okapi" not in IncrementalClassifier.load(model).classes_
    monkeypatch.setattr(stores, "MERGE_SECONDS", -1.0)
    store.merge_when_idle()
    assert "okapi" in IncrementalClassifier.load(model).classes_
    crash(store)


def before_release(record: Record) -> Record:
    """Give a record the names that its keys had before the first release."""
    head = dict(record.head)
    if "hashes" in head:
        head["prints"] = head.pop("hashes")
    if "response" in head:
        head["answer"] = response_before_release(head.pop("response"))
    if "remembered" in head:
        head["remembered"] = [
            [key, digest, response_before_release(response)]
            for key, digest, response in head["remembered"]
        ]
    return Record(head, record.body)


def response_before_release(response: JSON) -> JSON:
    return {"pictures" if name == "images" else name: value for name, value in response.items()}


def test_files_from_before_the_first_release_load(model: Path):
    model = model.rename(model.with_suffix(".cecil"))
    expected = []
    keys = [IdempotencyKey(f"key {number}", "digest") for number in range(len(CHANGES))]
    store = Store(model)
    for number, (change, key) in enumerate(zip(CHANGES, keys, strict=True)):
        expected.append(store.change(change, lambda *_, n=number: {"images": n}, key))
        if number == 2:
            store.merge()  # the first responses go into the new journal's first record
    state_before = state_digest(store.current.model.class_set)
    crash(store)
    path = model.with_name("birds.cecil.journal")
    journal = Journal.open(path)
    journal.close()
    first, *others = map(before_release, journal.records)
    journal = Journal.create(path, first)
    for record in others:
        journal.append(record)
    journal.close()
    assert b"prints" in path.read_bytes()
    assert b"pictures" in path.read_bytes()
    store = Store(model)
    assert state_digest(store.current.model.class_set) == state_before
    assert [store.response_to(key) for key in keys] == expected
    assert b"pictures" not in path.read_bytes()
    assert model.with_name("birds.cecil.thumbnails").is_dir()
    crash(store)
