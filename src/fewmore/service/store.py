"""Keep the classifier durable: a change is on the disk before it is acknowledged.

The model file is large beside what one change adds. So a change is stored in a database beside it,
NAME.fewmore.changes, and synced to the disk before it is acknowledged or visible to any prediction.
When the service is idle, and at the end, the changes are merged into the model file:

    1  the database says which state the model file is about to have
    2  the model file is replaced atomically
    3  the database drops the changes that the model file has

A crash between any two of these leaves a database that says which of its changes the model file
has. An open store holds the model file's lock, so `fewmore learn` waits. If another program changed
the file after a crash, nothing is lost: the changes are applied on top of what is there.

Where nothing can be written, the store has the classifier all the same, and no change is made.
"""

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fewmore.classifier.class_set import ClassSet
from fewmore.classifier.classes import KnownClass, clean_name
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.history import utc_now
from fewmore.classifier.model_file import check_exists, locked
from fewmore.classifier.results import LearnResult
from fewmore.errors import FewmoreError, ModelFileError, StateError, UnknownName
from fewmore.service import operations
from fewmore.service.batching import Embedded
from fewmore.service.database import MOST_VERSIONS, Database, database_path, read_only_copy
from fewmore.service.idempotency import JSON, Request, ResponseCache
from fewmore.service.leftovers import remove_leftovers
from fewmore.service.limits import Limits
from fewmore.service.operations import Operation, Result
from fewmore.service.thumbnails import Thumbnails, thumbnail_folder, thumbnail_name

MERGE_BYTES = 8_000_000  # more changes than this are merged at once
MERGE_SECONDS = 5.0  # after the last change, so that other programs see it in the model file
LONGEST_DELAY = 300.0  # seconds before a merge that failed is tried again
LOCK_TIMEOUT = 2.0  # seconds to wait for another process's lock
MOST_WARNINGS = 10  # in one response

log = logging.getLogger("fewmore.service")

ANY = Request()


class Outcome(NamedTuple):
    """Hold the response to a change, and whether it is that of an earlier request."""

    response: JSON
    replayed: bool = False


@dataclass(frozen=True)
class VersionChange:
    """Say what led to a version."""

    version: int
    change: str
    when: str


class Outdated(FewmoreError):
    """Report that the model is not the one that a change was made for."""

    def __init__(self, expected: int, version: int, between: list[VersionChange]) -> None:
        self.version = version
        self.between = between
        changes = "; ".join(f"{one.change} (version {one.version})" for one in between[-5:])
        came = f"what came between: {changes}" if changes else "another program has changed it"
        super().__init__(
            f"the change was made for version {expected}, and the model has version {version}: "
            f"{came}; look at it, then decide again"
        )


class Store:
    """Own a classifier, its model file and its database.

    Changes take turns. `current` is replaced as a whole, never changed in place.
    """

    def __init__(
        self,
        path: Path,
        thumbnails: bool = True,
        read_only: bool = False,
        device: str = "auto",
        load: Callable[[Path, str], IncrementalClassifier] = IncrementalClassifier.load,
    ) -> None:
        check_exists(path)
        self.name = path.stem  # that of a link, if it is one
        self.path = Path(os.path.realpath(path.expanduser()))
        self.read_only = read_only
        self.device = device
        self._load = load
        self.most_classes = Limits().classes
        self.thumbnails = Thumbnails(None)
        self.merge_failures = 0
        self.failures = 0  # changes that could not be stored
        self.damaged: Path | None = None  # a copy of a database whose end could not be read
        self._keep_thumbnails = thumbnails
        self._changing = threading.RLock()
        self._database: Database | None = None
        self._resources = ExitStack()
        self.trouble: str | None = None  # why no change can be made
        self._retry_at = 0.0
        self._delay = MERGE_SECONDS
        self._responses = ResponseCache()
        self._versions: list[VersionChange] = []
        self._changed_at: float | None = None  # time of the last change that is not in the file
        self._pending = 0  # bytes of such changes
        self._open()

    # Opening

    def _open(self) -> None:
        """Open for changes; where the disk does not allow that, for predictions alone.

        Until one of these has worked, all is as it was before.
        """
        try:
            if self.read_only:
                self._open_for_reading("it was started with --read-only")
            else:
                self._open_for_changes()
        except BaseException:
            self._release()
            raise

    def _open_for_changes(self) -> None:
        try:
            self._lock()
            classifier = self._load(self.path, self.device)
            self._database = Database(database_path(self.path), self.path.stat().st_mode)
            self.damaged = self._database.kept
            self.current = self._replay(self._database, classifier)
        except OSError as error:
            self._release()
            log.warning("no change can be stored beside %s: %s", self.path, error)
            self._open_for_reading(_reason(error))
            return
        remove_leftovers(self.path)
        self.thumbnails = Thumbnails.beside(self.path, self._keep_thumbnails)
        self._sweep_thumbnails()
        self.trouble = None
        self._retry_at = 0.0
        self._delay = MERGE_SECONDS
        if self._changed_at is not None:
            self._try_to_merge()

    def _lock(self) -> None:
        try:
            self._resources.enter_context(locked(self.path, LOCK_TIMEOUT))
        except ModelFileError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from error
            raise ModelFileError(
                f"{self.path} is served or changed by another process: stop that one first"
            ) from error

    def _open_for_reading(self, reason: str) -> None:
        """Load the classifier with all changes, from files that are left as they are."""
        classifier = self._load(self.path, self.device)
        path = database_path(self.path)
        if path.exists():
            with read_only_copy(path) as database:
                classifier = self._replay(database, classifier)
        self.current = classifier
        self.trouble = reason
        self._changed_at = None
        folder = thumbnail_folder(self.path) if self._keep_thumbnails else None
        self.thumbnails = Thumbnails(folder, read_only=True)

    def _replay(
        self, database: Database, classifier: IncrementalClassifier
    ) -> IncrementalClassifier:
        """Apply the changes that the model file does not have."""
        state = state_digest(classifier.model.class_set)
        backbone = backbone_digest(classifier.model.weights)
        database.begin(backbone, state)
        if database.meta("backbone") != backbone:
            raise ModelFileError(
                f"{database_path(self.path)} has changes for another backbone than that of "
                f"{self.path}: put the model file back that it belongs to, or move the changes away"
            )
        responses = ResponseCache()
        responses.load(database.responses())
        versions = [VersionChange(*row) for row in database.versions()]
        after = database.after(state)
        changes = database.changes(after)
        if after is not None:
            classifier = operations.replay(changes, classifier)
        else:
            if changes:
                message = "%s was changed by another program: %s changes are applied on top"
                log.warning(message, self.path, len(changes))
            classifier = operations.rebase(changes, classifier)
        self._responses, self._versions = responses, versions
        self._changed_at = time.monotonic() if changes or after is None else None
        self._pending = 0
        return classifier

    # Changes

    def before_teaching(self, name: str, new: bool, request: Request = ANY) -> Outcome | None:
        """Refuse what `teach` would refuse, before images are embedded; return a known response."""
        if (earlier := self._earlier(request)) is None:
            self._check_name(name, new)
        return earlier

    def teach(
        self, name: str, images: Embedded, new: bool = True, request: Request = ANY
    ) -> Outcome:
        """Learn a new class from images, or add them to a known one."""
        with self._changing:
            if (earlier := self._earlier(request)) is not None:
                return earlier
            self._check_name(name, new)
            before = _image_count(self.current, name)

            def respond(changed: IncrementalClassifier, result: Result) -> JSON:
                count = _image_count(changed, name)
                warnings = result.warnings if isinstance(result, LearnResult) else []
                return {
                    "version": changed.version,
                    "name": name,
                    "images": count,
                    "added": count - before,
                    "warnings": _shorten(warnings),
                    "session": len(changed.history_) - 1,
                }

            operation = Operation.learn(name, images.hashes, images.features)
            outcome = self._change(operation, respond, request)
            self.thumbnails.add(zip(images.hashes, images.squares, strict=False))
            return outcome

    def removable(self, known: KnownClass) -> set[int]:
        """Return the content hashes of the images that can be taken out of a class."""
        with self._changing:
            return set() if self._database is None else self._database.has_images(known.hashes)

    def remove_image(self, name: str, image: int, request: Request = ANY) -> Outcome:
        """Take an image out of a class."""
        with self._changing:
            if (earlier := self._earlier(request)) is not None:
                return earlier
            class_set = self.current.model.class_set
            known = class_set.classes[class_set.index(name)]
            name = known.name
            if image not in known.hashes:
                names = map(thumbnail_name, known.hashes)
                raise UnknownName(f"image of '{name}'", thumbnail_name(image), names)
            features = None if self._database is None else self._database.features(image)
            if features is None and self._database is not None:
                raise StateError(
                    f"this image of '{name}' was not taught through the service, which therefore "
                    "does not have its features: forget the class, and teach it again without it"
                )

            def respond(changed: IncrementalClassifier, _: Result) -> JSON:
                images = _image_count(changed, name)
                return {"version": changed.version, "name": name, "images": images}

            operation = Operation("remove", (name,), (image,), features or b"")
            return self._change(operation, respond, request)

    def forget(self, name: str, request: Request = ANY) -> Outcome:
        """Forget a class."""

        def respond(changed: IncrementalClassifier, _: Result) -> JSON:
            last = changed.history_[-1]
            return {"version": changed.version, "name": last.classes[0], "images": last.images}

        return self._change(Operation("forget", (name,)), respond, request)

    def rename(self, name: str, new: str, request: Request = ANY) -> Outcome:
        """Give a class another name."""
        new = clean_name(new)

        def respond(changed: IncrementalClassifier, _: Result) -> JSON:
            images = _image_count(changed, new)
            return {"version": changed.version, "name": new, "images": images}

        return self._change(Operation("rename", (name, new)), respond, request)

    def undo(self, request: Request = ANY) -> Outcome:
        """Take back the last change."""

        def respond(changed: IncrementalClassifier, result: Result) -> JSON:
            return {"version": changed.version, "undone": str(result)}

        return self._change(Operation("undo"), respond, request)

    def _check_name(self, name: str, new: bool) -> None:
        """Refuse to teach a new class that is known, or to add images to one that is not."""
        known = self.current.names
        if new and name in known:
            raise StateError(
                f"'{name}' is the name of a class already: add images to that one, "
                "or choose another name"
            )
        if new and len(known) >= self.most_classes:
            raise StateError(
                f"{len(known):,} classes are known, and no more can be: forget some first"
            )
        if not new and name not in known:
            raise UnknownName("class", name, known)

    def _earlier(self, request: Request) -> Outcome | None:
        """Return the response to an earlier request with this key; refuse an outdated change."""
        if (earlier := self._responses.get(request.key)) is not None:
            return Outcome(earlier, replayed=True)
        version = self.current.version
        if request.version is not None and request.version != version:
            raise Outdated(request.version, version, self.changes_since(request.version))
        return None

    def changes_since(self, version: int) -> list[VersionChange]:
        """Return the latest changes behind a version."""
        return [change for change in self._versions if change.version > version]

    def _change(
        self,
        operation: Operation,
        respond: Callable[[IncrementalClassifier, Result], JSON],
        request: Request,
    ) -> Outcome:
        """Apply an operation to a copy, write it to the disk, then make it visible."""
        with self._changing:
            if (earlier := self._earlier(request)) is not None:
                return earlier
            if self.read_only:
                raise StateError("this service only reads: start it without --read-only to teach")
            if self._database is None:
                self.failures += 1
                raise OSError(self.trouble)
            before = self.current
            changed, result = operations.apply(operation, before)
            response = respond(changed, result)
            has_changed = changed.version != before.version
            if not has_changed and request.key is None:
                return Outcome(response)  # nothing to write
            text = json.dumps(response, ensure_ascii=False)
            change = _describe(operation, before, changed)
            operation = replace(operation, when=change.when)
            self._write(self._database, operation if has_changed else None, change, request, text)
            if has_changed:
                self._publish(changed, change)
            self._pending += len(operation.features) + len(text)
            if self._pending > MERGE_BYTES and time.monotonic() >= self._retry_at:
                self._try_to_merge()
            return Outcome(response)

    def _write(
        self,
        database: Database,
        operation: Operation | None,
        change: VersionChange,
        request: Request,
        response: str,
    ) -> None:
        """Write an operation, if it changes anything, and the response to a request with a key."""
        keyed = None if request.key is None else (request.key, response)
        try:
            database.append(operation, change.version, change.change, keyed)
        except OSError as error:
            self.failures += 1
            self.trouble = _reason(error)
            raise
        self.trouble = None
        if keyed is not None:
            self._responses.put(*keyed)

    def _publish(self, changed: IncrementalClassifier, change: VersionChange) -> None:
        self._versions.append(change)
        del self._versions[:-MOST_VERSIONS]
        self._changed_at = time.monotonic()
        self.current = changed

    # The database and the model file

    def merge(self) -> None:
        """Write all changes to the model file, and drop them from the database."""
        with self._changing:
            has_changed = self._changed_at is not None
            # Without a change, there may be responses to requests that have changed nothing.
            if self._database is None or not (has_changed or self._pending):
                return
            state = state_digest(self.current.model.class_set)
            if has_changed:
                self._database.expect(state)
                self.current.save(self.path)
            stored = stored_hashes(self.current.model.class_set)
            self._database.merged(state, len(self._responses), stored)
            self._changed_at = None
            self._pending = 0
            self._sweep_thumbnails()

    def maintain(self) -> None:
        """Merge if there was no change for a while; see whether a disk that failed works again."""
        now = time.monotonic()
        if self.read_only or now < self._retry_at:
            return
        if self.trouble is not None:
            self._try_again()
        elif self._changed_at is not None and now - self._changed_at > MERGE_SECONDS:
            self._try_to_merge()

    def _try_to_merge(self) -> None:
        try:
            self.merge()
        except Exception as error:  # the database has everything: it can wait
            self.merge_failures += 1
            self._wait()
            message = "%s could not be brought up to date, and the changes wait in the database: %s"
            log.warning(message, self.path, error, exc_info=_is_unexpected(error))
        else:
            self._delay = MERGE_SECONDS

    def _try_again(self) -> None:
        """Open anew, or write something to the database."""
        with self._changing:
            self._wait()
            try:
                if self._database is None:
                    self._open()
                else:
                    self._database.probe()
                    self.trouble = None
            except Exception as error:
                self.trouble = _reason(error)
                if _is_unexpected(error):
                    log.exception("%s could not be opened again", self.path)

    def _wait(self) -> None:
        """Wait longer before each further try."""
        self._retry_at = time.monotonic() + self._delay
        self._delay = min(2 * self._delay, LONGEST_DELAY)

    def _sweep_thumbnails(self) -> None:
        """Remove the thumbnails of images that no class has, nor an undo can bring back."""
        self.thumbnails.remove_except(stored_hashes(self.current.model.class_set))

    @property
    def pending_bytes(self) -> int:
        """Return the size of the changes that are not in the model file yet."""
        return self._pending

    def close(self) -> None:
        """Merge, and release the model file."""
        with self._changing:
            self._try_to_merge()
            self._release()

    def _release(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        self._resources.close()


def _describe(
    operation: Operation, before: IncrementalClassifier, after: IncrementalClassifier
) -> VersionChange:
    """Say what an operation has changed, and when."""
    if operation.kind == "undo":
        return VersionChange(after.version, f"undo of the {before.history_[-1]}", utc_now())
    last = after.history_[-1]
    return VersionChange(after.version, str(last), last.when)


def _is_unexpected(error: Exception) -> bool:
    return not isinstance(error, (OSError, ModelFileError))


def _reason(error: Exception) -> str:
    """Return what the system says, without paths."""
    if isinstance(error, ModelFileError):
        return "the model file is used by another process, or damaged: see the service's log"
    if _is_unexpected(error):
        return "the service's log says why"
    return getattr(error, "strerror", None) or str(error)


def _shorten(warnings: list[str]) -> list[str]:
    """Keep some warnings, and say how many more there are."""
    more = len(warnings) - MOST_WARNINGS
    return [*warnings[:MOST_WARNINGS], f"and {more} more"] if more > 0 else warnings


def _image_count(classifier: IncrementalClassifier, name: str) -> int:
    classes = classifier.model.class_set.classes
    return next((known.count for known in classes if known.name == name), 0)


def stored_hashes(class_set: ClassSet) -> set[int]:
    """Return the content hashes of all images that a class has, or has after an undo."""
    return {digest for known in class_set.stored_classes for digest in known.hashes}


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
