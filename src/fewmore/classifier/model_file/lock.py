"""Keep processes from changing the same model file at the same time."""

import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fewmore.errors import ModelFileError

TIMEOUT = 10.0  # seconds that a process waits for another one's lock
BUSY = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)  # what a lock of another process gives


@contextmanager
def locked(
    path: str | Path, timeout: float = TIMEOUT, on_wait: Callable[[], None] | None = None
) -> Iterator[None]:
    """Lock a model file while it is loaded, changed and saved.

    The lock is on a file NAME.lock beside the model file, which is removed afterwards. `on_wait` is
    called once if another process holds the lock.
    """
    target = Path(os.path.realpath(Path(path).expanduser()))  # one lock for all links to it
    lock_path = target.with_name(target.name + ".lock")
    deadline = time.monotonic() + timeout
    while (file := _try_lock(lock_path)) is None:
        if on_wait:
            on_wait()
            on_wait = None
        if time.monotonic() >= deadline:
            raise ModelFileError(
                f"another process is writing {path}: try again; where it is `fewmore serve`, teach "
                "there, or end that first"
            )
        time.sleep(0.02)
    with file:
        try:
            yield
        finally:
            # While it is locked, or the file that another process has just made would be removed.
            with suppress(OSError):  # Windows keeps a file that is open
                lock_path.unlink()
            with suppress(OSError):  # where the file system has no locks
                _unlock(file)


def _try_lock(lock_path: Path) -> IO[bytes] | None:
    """Open and lock a file; None if another process has locked it, or has removed it meanwhile.

    Where the file system has no locks, the file is opened alone: a change is better than none.
    """
    try:
        file = lock_path.open("a+b")
    except OSError as error:
        raise ModelFileError(
            f"{lock_path} cannot be opened ({error.strerror or error}): "
            "the folder must be one that you may write to"
        ) from error
    try:
        _lock(file)
    except OSError as error:
        if error.errno not in BUSY:
            logging.getLogger(__name__).warning(
                "%s cannot be locked (%s): let no other process change the model meanwhile",
                lock_path,
                error.strerror or error,
            )
            return file
    else:
        with suppress(OSError):
            if os.path.samestat(os.fstat(file.fileno()), lock_path.stat()):
                return file
    file.close()
    return None


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def _unlock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
