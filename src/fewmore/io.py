"""Write files atomically and durably, lock them, and hash their content."""

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

BLOCK = 1 << 18  # bytes read at a time
# What file systems give that cannot flush a folder, or let it be opened: CIFS, FUSE, drvfs.
NO_FOLDER_SYNC = (errno.EACCES, errno.EBADF, errno.EINVAL, errno.EIO, errno.ENOTSUP)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably; a symbolic link stays, and so do mode and owner.

    After a kill or a power cut at any moment it is the old file or the new one, never a part.
    """
    path = Path(os.path.realpath(path))
    old = path.stat() if path.exists() else None
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        # Never readable for more people than the old file, not even while it is written.
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            if old is not None:
                _set_owner_and_mode(file.fileno(), old)
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file; threads and processes that want it too wait.

    They may be of several machines where the file system has locks. One that is killed holds none.
    """
    lock = FileLock(path)
    # Where there are no locks, or the folder may only be read, nobody waits.
    with suppress(OSError, NotImplementedError):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def file_hash(path: Path, algorithm: str = "sha256") -> str:
    """Return the content hash of a file as hexadecimal digits, reading it block by block."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def hash_files(root: Path, files: Iterable[Path]) -> str:
    """Return one hash of files below a folder, of their places in it and of their contents."""
    digest = hashlib.sha256()
    for name, file in sorted((file.relative_to(root).as_posix(), file) for file in files):
        digest.update(name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of files to the disk, where the file system can do that."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:  # the change itself was made: it must not be called failed
        if error.errno not in NO_FOLDER_SYNC:
            raise


def _set_owner_and_mode(descriptor: int, old: os.stat_result) -> None:
    """Give a new file the owner and the mode of the one that it replaces, where that is allowed."""
    if hasattr(os, "fchown"):
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
        with suppress(PermissionError):
            os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
