"""Store changes and responses in SQLite: what was committed survives a kill and a power failure.

`journal_mode=WAL` with `synchronous=FULL` syncs the write-ahead log to the disk at every commit
(https://sqlite.org/pragma.html#pragma_synchronous). One process has the file, so the exclusive
locking mode needs no shared memory. The log is moved into the database and cut to nothing by
`checkpoint` alone, so bytes behind its last commit are a change that a crash cut short, or damage.

    changes     those that the model file may not have
    states      hashes of the states that the model file has or may have, each with the last change
                that it contains
    responses   to requests with a key
    versions    what the latest versions changed
    images      features of the images of changes that are merged: to remove an image, its
                features are subtracted from the sum of its class
"""

import hashlib
import json
import logging
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from fewmore.errors import ModelFileError
from fewmore.io import sync_folder
from fewmore.service import wal
from fewmore.service.idempotency import IdempotencyKey
from fewmore.service.operations import Operation

FORMAT = 2  # of the tables; 1: without images
MOST_COPIES = 20  # of a damaged database
PROBE_BYTES = 256 * 1024  # about 128 images' features
MOST_VERSIONS = 200  # that are described to those who come late
TABLES = """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT);
    CREATE TABLE changes (id INTEGER PRIMARY KEY, kind TEXT, names TEXT, hashes TEXT,
                          features BLOB, at TEXT, digest BLOB);
    CREATE TABLE states (digest TEXT PRIMARY KEY, after INTEGER);
    CREATE TABLE responses (id INTEGER PRIMARY KEY, key TEXT UNIQUE, digest TEXT, response TEXT);
    CREATE TABLE versions (version INTEGER PRIMARY KEY, change TEXT, at TEXT);
"""
IMAGES = "CREATE TABLE images (hash INTEGER PRIMARY KEY, features BLOB, digest BLOB);"

Rows = dict[int, Operation | None]  # by number; None: damaged

log = logging.getLogger("fewmore.service")


class Database:
    """Own the file. Methods that write do it in one transaction, durable when they return.

    They raise OSError if the disk does not take it, and ModelFileError if the file is damaged.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self.path = path
        self.kept: Path | None = None  # a copy of the files from before a part was dropped
        with _disk_errors(path):
            if not path.exists():
                _create(path, mode)
            torn = self._keep_torn_log()
            self._connection = _connect(path)
            try:
                self._set_up()
                if torn:
                    self.checkpoint()  # or the dropped part would be found again
                rows = self._connection.execute(
                    "SELECT max(coalesce(max(id), 0), (SELECT coalesce(max(after), 0) FROM states))"
                    " FROM changes"
                )
                self.last: int = rows.fetchone()[0]  # the number of the last change
            except BaseException:
                self._connection.close()
                raise

    def _set_up(self) -> None:
        found = {
            name: self._connection.execute(f"PRAGMA {pragma}").fetchone()
            for name, pragma in (
                ("mode", "journal_mode=WAL"),
                ("check", "quick_check"),
                ("format", "user_version"),
            )
        }
        if found["mode"] != ("wal",):
            raise OSError(f"SQLite cannot write ahead here ({found['mode'][0]})")
        if found["check"] != ("ok",):
            raise sqlite3.DatabaseError(found["check"][0])
        missing = {(0,): TABLES + IMAGES, (1,): IMAGES, (FORMAT,): ""}.get(found["format"])
        if missing:
            self._connection.executescript(
                f"BEGIN IMMEDIATE; {missing} PRAGMA user_version={FORMAT}; COMMIT"
            )
            sync_folder(self.path.parent)
        elif missing is None:
            raise ModelFileError(
                f"{self.path} was written by a later version of fewmore: update this one"
            )

    def _keep_torn_log(self) -> bool:
        """Copy the files if SQLite would drop the end of the log; return whether it would."""
        file = log_of(self.path)
        data = file.read_bytes() if file.exists() else b""
        end = wal.committed(data)
        if end >= len(data):
            return False
        log.warning(
            "%s ends with %s bytes that are no whole change: a crash cut it short, or it is "
            "damaged; `fewmore repair` looks for changes in the copy that is kept of it",
            file,
            f"{len(data) - end:,}",
        )
        copies = [_damaged(self.path, number) for number in range(1, MOST_COPIES + 1)]
        self.kept = next((copy for copy in copies if not copy.exists()), copies[-1])
        shutil.copy2(file, log_of(self.kept))
        shutil.copy2(self.path, self.kept)
        return True

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit at the end, or roll back after any error."""
        with _disk_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    # What is written

    def begin(self, backbone: str, state: str) -> None:
        """Say which model file the changes belong to, if nothing says so yet."""
        if self.meta("backbone") is None:
            with self._transaction() as connection:
                connection.execute("INSERT INTO meta VALUES ('backbone', ?)", (backbone,))
                connection.execute("INSERT INTO states VALUES (?, ?)", (state, self.last))

    def append(
        self,
        operation: Operation | None,
        version: int,
        description: str,
        response: tuple[IdempotencyKey, str] | None,
    ) -> None:
        """Store a change that leads to this version, and the response to its request."""
        with self._transaction() as connection:
            if operation is not None:
                _insert(connection, self.last + 1, operation)
                connection.execute(
                    "INSERT OR REPLACE INTO versions VALUES (?, ?, ?)",
                    (version, description, operation.when),
                )
                connection.execute(
                    "DELETE FROM versions WHERE version <= ?", (version - MOST_VERSIONS,)
                )
            if response is not None:
                _insert_response(connection, *response)
        self.last += operation is not None

    def expect(self, state: str) -> None:
        """Say that the model file is about to have this state, with all changes so far."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO states VALUES (?, ?)", (state, self.last))

    def merged(self, state: str, responses: int, images: set[int]) -> None:
        """Drop the changes that the model file has, and all but the latest responses.

        The features of these images are kept.
        """
        with self._transaction() as connection:
            _insert_images(connection, _learnt(connection))
            stored = {number for (number,) in connection.execute("SELECT hash FROM images")}
            gone = [(number,) for number in stored - images]
            connection.executemany("DELETE FROM images WHERE hash = ?", gone)
            connection.execute("DELETE FROM changes WHERE id <= ?", (self.last,))
            connection.execute("DELETE FROM states WHERE digest != ?", (state,))
            connection.execute(
                "DELETE FROM responses WHERE id NOT IN"
                " (SELECT id FROM responses ORDER BY id DESC LIMIT ?)",
                (responses,),
            )
        self.checkpoint()

    def add_images(self, features: Mapping[int, bytes]) -> None:
        """Store the features of images of merged changes, by content hash."""
        with self._transaction() as connection:
            _insert_images(connection, features)

    def probe(self) -> None:
        """Write as much as a change has, to see whether the disk takes it again."""
        with self._transaction() as connection:
            insert = "INSERT OR REPLACE INTO meta VALUES ('probe', randomblob(?))"
            connection.execute(insert, (PROBE_BYTES,))
        with self._transaction() as connection:  # another one: what one removes is not written
            connection.execute("DELETE FROM meta WHERE name = 'probe'")

    def checkpoint(self) -> None:
        """Move the log into the database, and cut it to nothing."""
        with _disk_errors(self.path):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # What is read

    def meta(self, name: str) -> str | None:
        """Return a value that was stored under a name."""
        with _disk_errors(self.path):
            row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,))
            return next((value for (value,) in row), None)

    def after(self, state: str) -> int | None:
        """Return the last change that this state of the model file contains, if it is known."""
        with _disk_errors(self.path):
            row = self._connection.execute("SELECT after FROM states WHERE digest = ?", (state,))
            return next((value for (value,) in row), None)

    def changes(self, after: int | None) -> list[Operation]:
        """Return the changes behind this one; None: all."""
        with _disk_errors(self.path):
            rows = read_changes(self._connection)
            first = min(rows, default=self.last + 1) if after is None else after + 1
            operations = []
            for number in range(first, self.last + 1):
                if (operation := rows.get(number)) is None:
                    raise sqlite3.DatabaseError(f"change {number} is not as it was written")
                operations.append(operation)
            return operations

    def has_images(self, hashes: Iterable[int]) -> set[int]:
        """Return which of these images' features are stored."""
        with _disk_errors(self.path):
            merged = self._connection.execute("SELECT hash FROM images")
            stored = {number for (number,) in merged} | _learnt(self._connection).keys()
            return stored.intersection(hashes)

    def features(self, image: int) -> bytes | None:
        """Return the features of an image, float32; None if they are not stored, or damaged."""
        with _disk_errors(self.path):
            query = "SELECT features, digest FROM images WHERE hash = ?"
            for features, digest in self._connection.execute(query, (image,)):
                if _image_digest(image, features) == digest:
                    return bytes(features)
            return _learnt(self._connection).get(image)

    def responses(self) -> list[tuple[IdempotencyKey, str]]:
        """Return all responses, the oldest first."""
        with _disk_errors(self.path):
            return read_responses(self._connection)

    def versions(self) -> list[tuple[int, str, str]]:
        """Return what the latest versions changed: version, change and time."""
        with _disk_errors(self.path):
            return self._connection.execute("SELECT * FROM versions ORDER BY version").fetchall()

    def close(self) -> None:
        """Close the file; what is in the log stays there if it cannot be moved."""
        self._connection.close()


def database_path(model: Path) -> Path:
    """Return the file that belongs to a model file."""
    return model.with_name(model.name + ".changes")


def log_of(path: Path) -> Path:
    """Return the write-ahead log of a database, as SQLite names it."""
    return path.with_name(path.name + "-wal")


def damaged_files(model: Path) -> list[Path]:
    """List the copies that are kept of a damaged database."""
    path = database_path(model)
    found = [_damaged(path, number) for number in range(1, MOST_COPIES + 1)]
    return [copy for copy in found if copy.exists()]


def _damaged(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.damaged-{number}")


@contextmanager
def read_only_copy(path: Path) -> Iterator[Database]:
    """Open a copy in the folder for temporary files: SQLite reads no log on a read-only disk."""
    with tempfile.TemporaryDirectory(prefix="fewmore-") as folder:
        copy = Path(folder) / path.name
        for file, target in ((path, copy), (log_of(path), log_of(copy))):
            if file.exists():
                shutil.copyfile(file, target)
        database = Database(copy)
        try:
            yield database
        finally:
            database.close()


def read_changes(connection: sqlite3.Connection) -> Rows:
    """Read all changes that can be read: from the first on, and from the last back."""
    rows: Rows = {}
    columns = "id, kind, names, hashes, features, at, digest"
    for order in ("ASC", "DESC"):
        try:
            for number, *values in connection.execute(
                f"SELECT {columns} FROM changes ORDER BY id {order}"
            ):
                if number in rows:
                    break
                rows[number] = _operation(*values)
        except sqlite3.OperationalError:  # of the disk
            raise
        except sqlite3.DatabaseError as error:
            log.warning("some changes cannot be read: %s", error)
    return rows


def read_images(connection: sqlite3.Connection) -> dict[int, bytes]:
    """Read the features of all images, by content hash, as far as they are as they were written."""
    images = {}
    with suppress(sqlite3.DatabaseError):  # a part is damaged, or format 1 has no such table
        for image, features, digest in connection.execute("SELECT * FROM images"):
            if isinstance(features, bytes) and _image_digest(image, features) == digest:
                images[image] = features
    return images | _learnt(connection)


def read_responses(connection: sqlite3.Connection) -> list[tuple[IdempotencyKey, str]]:
    """Read all responses, the oldest first."""
    rows = connection.execute("SELECT key, digest, response FROM responses ORDER BY id")
    return [(IdempotencyKey(key, digest), response) for key, digest, response in rows]


def _operation(
    kind: str, names: str, hashes: str, features: bytes, at: str, digest: bytes
) -> Operation | None:
    """Build a change from its row; None if it is not as it was written."""
    try:
        of_names, of_hashes = tuple(json.loads(names)), tuple(json.loads(hashes))
        operation = Operation(kind, of_names, of_hashes, features, at)
        return operation if operation.digest == digest else None
    except (TypeError, ValueError):
        return None


def _insert(connection: sqlite3.Connection, number: int, operation: Operation) -> None:
    names, hashes = json.dumps(operation.names), json.dumps(operation.hashes)
    connection.execute(
        "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            number,
            operation.kind,
            names,
            hashes,
            operation.features,
            operation.when,
            operation.digest,
        ),
    )


def _learnt(connection: sqlite3.Connection) -> dict[int, bytes]:
    """Return the features of the images of all stored changes, by content hash."""
    features = {}
    for operation in read_changes(connection).values():
        if operation is not None and operation.kind == "learn":
            size = len(operation.features) // max(1, len(operation.hashes))
            for number, image in enumerate(operation.hashes):
                features[image] = operation.features[number * size : (number + 1) * size]
    return features


def _insert_images(connection: sqlite3.Connection, features: Mapping[int, bytes]) -> None:
    rows = [(image, row, _image_digest(image, row)) for image, row in features.items()]
    connection.executemany("INSERT OR REPLACE INTO images VALUES (?, ?, ?)", rows)


def _image_digest(image: int, features: bytes) -> bytes:
    return hashlib.blake2b(str(image).encode() + features, digest_size=16).digest()


def _insert_response(connection: sqlite3.Connection, key: IdempotencyKey, response: str) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO responses (key, digest, response) VALUES (?, ?, ?)",
        (key.name, key.digest, response),
    )


def _create(path: Path, mode: int) -> None:
    """Create an empty file with this mode, which SQLite gives to its log, too."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, stat.S_IMODE(mode))
    finally:
        os.close(descriptor)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        for pragma in (
            "locking_mode=EXCLUSIVE",  # before the mode of the journal: no shared memory
            "synchronous=FULL",
            "fullfsync=ON",  # on macOS, where fsync alone does not reach the disk
            "wal_autocheckpoint=0",
            "secure_delete=ON",  # what is forgotten is overwritten
        ):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into OSError, or ModelFileError where the file is damaged."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OSError(str(error)) from error
    except sqlite3.DatabaseError as error:
        raise ModelFileError(
            f"{path} is damaged ({error}): fewmore repair {path.name.removesuffix('.changes')} "
            "saves what can be read"
        ) from error
