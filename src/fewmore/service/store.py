"""Keep the classifier durable: a change is on the disk before it is acknowledged.

The model file is large beside what one change adds. So a change is appended to a write-ahead
journal, NAME.fewmore.journal, and synced to the disk before it is acknowledged or visible to any
prediction. When the service is idle, and at the end, the journal is merged into the model file:

    1  a record in the journal says which state the model file is about to have
    2  the model file is replaced atomically
    3  the journal is replaced atomically by a new one

A crash between any two of these leaves a journal that says which of its records the model file
has. An open store holds the model file's lock, so `fewmore learn` waits. If another program changed
the file after a crash, nothing is lost: the journal's changes are applied on top of what is there.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from torch import Tensor

from fewmore.classifier.class_set import ClassSet
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.model_file import check_exists, locked
from fewmore.errors import ModelFileError
from fewmore.service import operations
from fewmore.service.idempotency import JSON, IdempotencyKey, ResponseCache
from fewmore.service.journal import Journal, Record
from fewmore.service.operations import Operation, Result
from fewmore.service.thumbnails import Thumbnails, thumbnail_folder

MERGE_BYTES = 8_000_000  # a longer journal is merged at once
MERGE_SECONDS = 5.0  # after the last change, so that other programs see it in the model file
LOCK_TIMEOUT = 2.0  # seconds to wait for another process's lock

log = logging.getLogger("fewmore.service")


class Store:
    """Own a classifier, its model file and its journal.

    Changes take turns. `current` is replaced as a whole, never changed in place.
    """

    def __init__(self, path: Path, thumbnails: bool = True) -> None:
        self.path = path.expanduser()
        check_exists(path)
        self._changing = threading.RLock()
        self._resources = ExitStack()
        try:
            self._resources.enter_context(locked(self.path, LOCK_TIMEOUT))
        except ModelFileError as error:
            raise ModelFileError(
                f"{path} is served or changed by another process: stop that one first ({error})"
            ) from error
        try:
            self._open(thumbnails)
        except BaseException:
            self._resources.close()
            raise

    def _open(self, thumbnails: bool) -> None:
        self.current = IncrementalClassifier.load(self.path)
        self._responses = ResponseCache()
        self._changed_at: float | None = None  # time of the last change that is not in the file
        self._backbone = backbone_digest(self.current.model.weights)
        state = state_digest(self.current.model.class_set)
        journal = self.path.with_name(self.path.name + ".journal")
        if journal.exists():
            self._journal = Journal.open(journal)
            self._replay(state)
        else:
            self._journal = Journal.create(journal, self._first_record(state))
        self._resources.callback(lambda: self._journal.close())
        self.thumbnails = Thumbnails(thumbnail_folder(self.path) if thumbnails else None)
        self.thumbnails.remove_except(_image_hashes(self.current.model.class_set))
        if self._changed_at is not None:
            self.merge()

    # Changes

    def change(
        self,
        operation: Operation,
        respond: Callable[[IncrementalClassifier, Result], JSON],
        key: IdempotencyKey | None = None,
    ) -> JSON:
        """Apply an operation: write it to the disk, then make it visible.

        `respond` builds the response from the changed classifier, and may refuse by raising.
        """
        with self._changing:
            if (earlier := self.response_to(key)) is not None:
                return earlier
            before = self.current
            changed, result = operations.apply(operation, before)
            response = respond(changed, result)
            if changed.version == before.version and key is None:
                return response  # nothing to write
            when = changed.history_[-1].when
            if key is None:
                self._journal.append(operation.to_record(when))
            else:
                more = {"key": key.name, "digest": key.digest, "response": response}
                self._journal.append(operation.to_record(when, **more))
                self._responses.put(key, response)
            self.current = changed
            self._changed_at = time.monotonic()
            if self._journal.size > MERGE_BYTES:
                self._try_to_merge()
            return response

    def response_to(self, key: IdempotencyKey | None) -> JSON | None:
        """Return the response to an earlier request with this key, if there was one."""
        return self._responses.get(key)

    # The journal and the model file

    def _first_record(self, state: str) -> Record:
        return Record(
            {
                "kind": "begin",
                "state": state,
                "backbone": self._backbone,
                "remembered": self._responses.dump(),
            }
        )

    def _replay(self, state: str) -> None:
        """Apply the journal's changes that the model file does not have."""
        records = self._journal.records
        if records and records[0].head.get("backbone") != self._backbone:
            raise ModelFileError(
                f"{self._journal.path} has changes for another backbone than that of {self.path}: "
                "put the model file back that it belongs to, or move the journal away"
            )
        for record in records:
            self._responses.load_head(record.head)
        merged = [i for i, record in enumerate(records) if record.head.get("state") == state]
        start = merged[-1] if merged else 0
        changes = [record for record in records[start:] if "state" not in record.head]
        if changes or not merged:
            self._changed_at = time.monotonic()
        if merged:
            self.current = operations.replay(changes, self.current)
            return
        if changes:
            message = "%s was changed since %s was written: %s changes are applied on top"
            log.warning(message, self.path, self._journal.path, len(changes))
        self.current = operations.rebase(changes, self.current)

    def merge(self) -> None:
        """Write all changes to the model file, and start a new journal."""
        with self._changing:
            if self._changed_at is None:
                return
            class_set = self.current.model.class_set
            state = state_digest(class_set)
            self._journal.append(Record({"kind": "merge", "state": state}))
            self.current.save(self.path)
            old = self._journal
            self._journal = Journal.create(old.path, self._first_record(state))
            old.close()
            self._changed_at = None
            self.thumbnails.remove_except(_image_hashes(class_set))

    def merge_when_idle(self) -> None:
        """Merge if there was no change for a while."""
        if self._changed_at is not None and time.monotonic() - self._changed_at > MERGE_SECONDS:
            self._try_to_merge()

    def _try_to_merge(self) -> None:
        try:
            self.merge()
        except (OSError, ModelFileError) as error:  # the journal has everything: it can wait
            log.warning(
                "the model file could not be brought up to date, and the journal grows: %s", error
            )

    @property
    def healthy(self) -> bool:
        """Return whether changes can be written."""
        return not self._journal.broken

    @property
    def journal_bytes(self) -> int:
        """Return the length of the journal."""
        return self._journal.size

    def close(self) -> None:
        """Merge, and release the model file."""
        with self._changing:
            self._try_to_merge()
            self._resources.close()


def state_digest(class_set: ClassSet) -> str:
    """Hash a state, so that two states can be compared."""
    history = [
        (change.kind, change.classes, change.images, change.when) for change in class_set.history
    ]
    content = json.dumps([class_set.version, history, class_set.names])
    digest = hashlib.blake2b(content.encode(), digest_size=16)
    for known in class_set.classes:
        digest.update(known.count.to_bytes(8, "little") + known.feature_sum.numpy().tobytes())
    return digest.hexdigest()


def backbone_digest(weights: dict[str, Tensor]) -> str:
    """Hash a backbone's weights: the features of another backbone cannot be used with it."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _image_hashes(class_set: ClassSet) -> Iterable[int]:
    """Yield the content hashes of all classes, also of those that an undo can bring back."""
    return (content_hash for known in class_set.stored_classes for content_hash in known.hashes)
