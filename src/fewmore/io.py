"""Write files atomically and durably."""

import os
import threading
from pathlib import Path


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file atomically: after a kill at any moment it is the old one or the new one, never a part."""
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


def _sync_folder(folder: Path) -> None:
    """Flush the rename itself to disk, where the system lets a folder be opened."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
