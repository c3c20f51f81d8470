"""What is known, kept so that no answer promises more than the disk holds.

The model file is large beside what one lesson adds, so a change is appended to a journal, NAME.fewmore.journal, and is on the disk before it
is answered or seen by any prediction. Now and then, and at the end, the journal is folded into the model file:

    1  a record in the journal says which state the model file is about to have
    2  the model file is written, in one move
    3  a new journal takes the old one's place, in one move

A crash between any two of these leaves a journal that says which of its records the model file has. While a store is open it holds the
model file's lock, so `fewmore learn` waits. If some program changed the file after a crash, nothing of it is lost: the journal's changes are
made once more, on top of what is there.

A change that came with a key is remembered with its answer, in the same record, so that it is made once however often it is asked for.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewmore.classifier.classes import Knowledge
from fewmore.classifier.embedding import Shown
from fewmore.classifier.estimator import IncrementalClassifier, Learned
from fewmore.classifier.model_file import check_there, locked
from fewmore.errors import ConfigError, FewmoreError, ModelFileError
from fewmore.service.journal import Journal, Record
from fewmore.service.thumbnails import Thumbnails

FOLD_BYTES = 8_000_000  # a longer journal is folded at once
FOLD_SECONDS = 5.0  # after the last change, so that other programs see it in the model file
REMEMBERED = 1000  # keys
PATIENCE = 2.0  # seconds that another process may hold the lock for

log = logging.getLogger("fewmore.service")

Answer = dict[str, Any]  # JSON


@dataclass(frozen=True, eq=False)
class Entry:
    """A change: learn (features, with fingerprints) or forget one class, rename it from … to, or undo."""

    kind: str
    names: tuple[str, ...] = ()
    prints: tuple[int, ...] = ()
    features: Tensor | None = None  # (k, d) float32


@dataclass(frozen=True)
class Key:
    """What a client calls a request, and a digest of what it asked for."""

    name: str
    digest: str


class KeyReused(FewmoreError):
    """The same key for two different requests."""


class Store:
    """A classifier, its file and its journal. Changes take turns; `current` is swapped, never changed."""

    def __init__(self, path: Path, thumbnails: bool = True) -> None:
        self.path = path.expanduser()
        check_there(path)
        self._changing = threading.RLock()
        self._held = ExitStack()
        try:
            self._held.enter_context(locked(self.path, PATIENCE))
        except ModelFileError as error:
            raise ModelFileError(
                f"{path} is served or changed by another process: stop that one first ({error})"
            ) from error
        try:
            self._open(thumbnails)
        except BaseException:
            self._held.close()
            raise

    def _open(self, thumbnails: bool) -> None:
        self.current = IncrementalClassifier.load(self.path)
        self._remembered: dict[str, tuple[str, Answer]] = {}
        self._changed_at: float | None = (
            None  # when the last change came that the model file does not have
        )
        place = self.path.with_name(self.path.name + ".journal")
        state, self._backbone = (
            identity(self.current.model.knowledge),
            fingerprint(self.current.model.weights),
        )
        if place.exists():
            self._journal = Journal.opened(place)
            self._replay(state)
        else:
            self._journal = Journal.begun(place, Record(self._beginning(state)))
        self._held.callback(lambda: self._journal.close())
        self.thumbnails = Thumbnails(thumbnail_folder(self.path) if thumbnails else None)
        self.thumbnails.sweep(_prints(self.current.model.knowledge))
        if self._changed_at is not None:
            self.fold()

    # Changes

    def change(
        self,
        entry: Entry,
        answer: Callable[[IncrementalClassifier, Learned | str | None], Answer],
        key: Key | None = None,
    ) -> Answer:
        """Make a change: on the disk first, then for all to see. `answer` makes what is told of it, and may refuse it by raising."""
        with self._changing:
            if (known := self.remembered(key)) is not None:
                return known
            before = self.current
            made, result = applied(entry, before)
            told = answer(made, result)
            if made.version == before.version and key is None:
                return told  # nothing to keep
            head: dict[str, Any] = {
                "kind": entry.kind,
                "names": entry.names,
                "prints": entry.prints,
                "when": made.history_[-1].when,
            }
            if key is not None:
                head |= {"key": key.name, "digest": key.digest, "answer": told}
            self._journal.append(Record(head, _packed(entry.features)))
            if key is not None:
                self._remember(key.name, key.digest, told)
            self.current = made
            self._changed_at = time.monotonic()
            if self._journal.size > FOLD_BYTES:
                self._try_to_fold()
            return told

    def remembered(self, key: Key | None) -> Answer | None:
        """The answer that a request with this key had."""
        if key is None or key.name not in self._remembered:
            return None
        digest, answer = self._remembered[key.name]
        if digest != key.digest:
            raise KeyReused(
                f"the Idempotency-Key {key.name} came with another request before: take a new key for a new request"
            )
        return answer

    def _remember(self, key: str, digest: str, answer: Answer) -> None:
        self._remembered[key] = (digest, answer)
        while len(self._remembered) > REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    # The journal and the model file

    def _beginning(self, state: str) -> dict[str, Any]:
        remembered = [[key, *value] for key, value in self._remembered.items()]
        return {
            "kind": "begin",
            "state": state,
            "backbone": self._backbone,
            "remembered": remembered,
        }

    def _replay(self, state: str) -> None:
        """Make the journal's changes that the model file does not have."""
        records = self._journal.records
        if records and records[0].head.get("backbone") != self._backbone:
            raise ModelFileError(
                f"{self._journal.path} has lessons for another backbone than that of {self.path}: "
                f"put the model file back that it belongs to, or move the journal away"
            )
        for record in records:
            head = record.head
            for key, digest, answer in head.get("remembered", ()):
                self._remember(key, digest, answer)
            if "key" in head:
                self._remember(head["key"], head["digest"], head["answer"])
        in_file = [
            place for place, record in enumerate(records) if record.head.get("state") == state
        ]
        changes = [
            one for one in records[in_file[-1] if in_file else 0 :] if "state" not in one.head
        ]
        if changes or not in_file:
            self._changed_at = time.monotonic()
        dim = self.current.embedder.dim
        if in_file:
            for record in changes:
                self.current = dated(applied(_entry(record, dim), self.current)[0], record)
        else:
            if changes:
                log.warning(
                    "%s was changed since %s was written: %s made once more on top",
                    self.path,
                    self._journal.path,
                    len(changes),
                )
            self.current = rebased(
                [(_entry(record, dim), record) for record in changes], self.current
            )

    def fold(self) -> None:
        """Bring the model file up to date, and begin the journal anew."""
        with self._changing:
            if self._changed_at is None:
                return
            knowledge = self.current.model.knowledge
            state = identity(knowledge)
            self._journal.append(Record({"kind": "folded", "state": state}))
            self.current.save(self.path)
            old = self._journal
            self._journal = Journal.begun(old.path, Record(self._beginning(state)))
            old.close()
            self._changed_at = None
            self.thumbnails.sweep(_prints(knowledge))

    def fold_when_quiet(self) -> None:
        """Fold if there was no change for a while."""
        if self._changed_at is not None and time.monotonic() - self._changed_at > FOLD_SECONDS:
            self._try_to_fold()

    def _try_to_fold(self) -> None:
        try:
            self.fold()
        except (OSError, ModelFileError) as error:  # the journal has everything: it can wait
            log.warning(
                "the model file could not be brought up to date, and the journal grows: %s", error
            )

    @property
    def healthy(self) -> bool:
        """Whether changes can be kept."""
        return not self._journal.broken

    @property
    def journal_bytes(self) -> int:
        return self._journal.size

    def close(self) -> None:
        """Fold, and let others have the file."""
        with self._changing:
            self._try_to_fold()
            self._held.close()


def thumbnail_folder(path: Path) -> Path:
    """Beside a model file."""
    return path.with_name(path.name + ".thumbnails")


def applied(
    entry: Entry, classifier: IncrementalClassifier
) -> tuple[IncrementalClassifier, Learned | str | None]:
    """A classifier that has changed, and what the change says; the one given stays as it is."""
    made = classifier.knowing(classifier.model.knowledge)
    if entry.kind == "learn" and entry.features is not None:
        (name,) = entry.names
        titles = tuple(f"image {number} of {name}" for number in range(1, len(entry.prints) + 1))
        given = Shown((name,), (0,) * len(entry.prints), (), titles)
        return made, made.learn_embedded(
            given, entry.features.to(made.embedder.device), entry.prints
        )
    if entry.kind == "forget":
        made.forget(entry.names)
        return made, None
    if entry.kind == "rename":
        made.rename(*entry.names)
        return made, None
    if entry.kind == "undo":
        return made, made.undo()
    raise ModelFileError(
        f"a journal's record is of the kind {entry.kind!r}, which this version of fewmore does not know: update it"
    )


def dated(classifier: IncrementalClassifier, record: Record) -> IncrementalClassifier:
    """The same with its last change at the time it was first made."""
    knowledge = classifier.model.knowledge
    if record.head["kind"] == "undo" or not record.head["when"]:
        return classifier
    last = replace(knowledge.history[-1], when=record.head["when"])
    return classifier.knowing(replace(knowledge, history=(*knowledge.history[:-1], last)))


def rebased(
    changes: Sequence[tuple[Entry, Record]], classifier: IncrementalClassifier
) -> IncrementalClassifier:
    """Changes made on top of another state than the one they were made on: lessons always fit; the rest where it still can be."""
    made: list[
        bool
    ] = []  # of the changes so far, which ones; an undo takes back its own change, never a stranger's
    for entry, record in changes:
        if entry.kind == "undo" and not (made and made.pop()):
            continue
        version = classifier.version
        try:
            classifier = applied(entry, classifier)[0]
        except ConfigError as error:  # a class to be forgotten or renamed is gone
            log.warning("left out: %s", error)
        if entry.kind != "undo":
            made.append(classifier.version != version)
            classifier = dated(classifier, record) if made[-1] else classifier
    return classifier


def identity(knowledge: Knowledge) -> str:
    """A digest that two states share only if they are the same."""
    history = [
        (change.kind, change.classes, change.images, change.when) for change in knowledge.history
    ]
    digest = hashlib.blake2b(
        json.dumps([knowledge.version, history, knowledge.names]).encode(), digest_size=16
    )
    for known in knowledge.classes:
        digest.update(known.count.to_bytes(8, "little") + known.total.numpy().tobytes())
    return digest.hexdigest()


def fingerprint(weights: dict[str, Tensor]) -> str:
    """A digest of a backbone: features of another one mean nothing to it."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _prints(knowledge: Knowledge) -> Iterable[int]:
    """Fingerprints of all classes, also of those that an undo can bring back."""
    return (number for known in knowledge.kept for number in known.prints)


def _packed(features: Tensor | None) -> bytes:
    return (
        b"" if features is None else features.detach().cpu().float().contiguous().numpy().tobytes()
    )


def _entry(record: Record, dim: int) -> Entry:
    head = record.head
    try:
        features = (
            torch.frombuffer(bytearray(record.body), dtype=torch.float32).view(-1, dim)
            if record.body
            else None
        )
        return Entry(head["kind"], tuple(head["names"]), tuple(head["prints"]), features)
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise ModelFileError(
            f"a journal's record does not fit its model file ({error}): was that replaced by another one?"
        ) from error
