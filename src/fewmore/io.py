"""Write files atomically and durably, and hash their content."""

import hashlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

BLOCK = 1 << 18  # bytes read at a time


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably.

    After a kill or a power cut at any moment it is the old file or the new one, never a part.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


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


def _sync_folder(folder: Path) -> None:
    """Flush the rename itself to disk, where the system lets a folder be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
