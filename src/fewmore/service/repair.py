"""Save what can be read of damaged changes, and make a store whole again.

Each stored change has a checksum of its own. So the write-ahead log is given checksums that fit it,
see `wal`, and every change is read that is as it was written. Those that the model file does not
have are applied to it. The new database gets the responses and the images' features, without which
no image could be removed alone. The files of before are kept in a folder beside it.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.model_file import check_exists, locked
from fewmore.service import operations, wal
from fewmore.service.database import (
    Database,
    Rows,
    damaged_files,
    database_path,
    log_of,
    read_changes,
    read_images,
    read_responses,
)
from fewmore.service.idempotency import IdempotencyKey
from fewmore.service.operations import Operation
from fewmore.service.store import Store, state_digest, stored_hashes


@dataclass
class Report:
    """Say what was found."""

    saved: list[str] = field(default_factory=list)  # changes that the model file has now
    lost: int = 0  # changes that could not be read
    kept: Path | None = None  # the folder with the files of before


def repair(path: Path) -> Report:
    """Apply all changes that can be read to the model file, and start a new database."""
    check_exists(path)
    path = path.expanduser().resolve()
    report = Report()
    with locked(path):
        classifier = IncrementalClassifier.load(path)
        before = classifier.version
        responses: list[tuple[IdempotencyKey, str]] = []
        images: dict[int, bytes] = {}
        state = state_digest(classifier.model.class_set)
        for found in _sources(path, state):
            report.saved += [str(change) for change in found.changes if change is not None]
            report.lost += found.changes.count(None)
            classifier = operations.rebase(found.changes, classifier)
            responses += found.responses
            images |= found.images
        stored = stored_hashes(classifier.model.class_set)
        files = _files(path)
        if not files:
            return report
        report.kept = _new_folder(path)
        shutil.copy2(path, report.kept)
        if classifier.version != before:
            classifier.save(path)
        for file in files:
            shutil.move(file, report.kept / file.name)
        database = Database(database_path(path), path.stat().st_mode)
        try:
            for key, response in responses:
                database.append(None, 0, "", (key, response))
            database.add_images({image: images[image] for image in stored & images.keys()})
        finally:
            database.close()
    Store(path).close()  # it must open
    return report


def stored_changes(path: Path, classifier: IncrementalClassifier) -> list[str]:
    """Name the changes that are stored beside a model file, and that it does not have yet."""
    database = database_path(path.expanduser().resolve())
    if not database.exists():
        return []
    state = state_digest(classifier.model.class_set)
    with suppress(OSError), _readable(database, wal.rechain) as connection:
        changes = _in_order(_changes(connection), _after(connection, state))
        return [str(change) for change in changes if change is not None]
    return []


@dataclass(frozen=True)
class Found:
    """Hold what can be read of one file."""

    changes: list[Operation | None]  # that the model file does not have; None: damaged
    responses: list[tuple[IdempotencyKey, str]]
    images: dict[int, bytes]  # features by content hash


def _sources(path: Path, state: str) -> Iterator[Found]:
    """Yield what each file has."""
    database = database_path(path)
    if database.exists():
        with _readable(database, wal.rechain) as connection:
            rows = _changes(connection)
            after = _after(connection, state)
            yield Found(_in_order(rows, after), _responses(connection), _images(connection))
    for copy in damaged_files(path):
        # The service went on with what SQLite reads of it.
        with _readable(copy, lambda log: log[: wal.committed(log)]) as connection:
            used = _changes(connection)
        with _readable(copy, wal.rechain) as connection:
            rows = _changes(connection)
            changes = _in_order(rows, max(used, default=0))
            yield Found(changes, _responses(connection), _images(connection))


def _in_order(rows: Rows, after: int) -> list[Operation | None]:
    first = max(after + 1, min(rows, default=0))
    return [rows.get(number) for number in range(first, max(rows, default=-1) + 1)]


def _after(connection: sqlite3.Connection, state: str) -> int:
    """Return the last change that the model file has, 0 if that is not known."""
    with suppress(sqlite3.DatabaseError):
        for (after,) in connection.execute("SELECT after FROM states WHERE digest = ?", (state,)):
            return int(after)
    return 0


def _changes(connection: sqlite3.Connection) -> Rows:
    with suppress(sqlite3.DatabaseError):  # there is not even a table
        return read_changes(connection)
    return {}


def _responses(connection: sqlite3.Connection) -> list[tuple[IdempotencyKey, str]]:
    with suppress(sqlite3.DatabaseError):
        return read_responses(connection)
    return []


def _images(connection: sqlite3.Connection) -> dict[int, bytes]:
    with suppress(sqlite3.DatabaseError):
        return read_images(connection)
    return {}


@contextmanager
def _readable(path: Path, mend: Callable[[bytes], bytes]) -> Iterator[sqlite3.Connection]:
    """Open a copy of a database, with a log that is mended."""
    with tempfile.TemporaryDirectory(prefix="fewmore-") as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        if log_of(path).exists():
            log_of(copy).write_bytes(mend(log_of(path).read_bytes()))
        connection = sqlite3.connect(copy)
        try:
            yield connection
        finally:
            connection.close()


def _files(path: Path) -> list[Path]:
    """List the files that changes were stored in."""
    databases = [database_path(path), *damaged_files(path)]
    return [file for file in (*databases, *map(log_of, databases)) if file.exists()]


def _new_folder(path: Path) -> Path:
    for number in range(1, 10**6):
        folder = path.with_name(f"{path.name}.before-repair-{number}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise FileExistsError(path)
