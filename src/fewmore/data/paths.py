"""Locate the data root and the cache folder."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of files that can be made again: $FEWMORE_CACHE, or ~/.cache/fewmore."""
    return Path(os.environ.get("FEWMORE_CACHE") or "~/.cache/fewmore").expanduser()


def data_root(folder: Path | None = None) -> Path:
    """Return the folder of benchmarks: `folder`, $FEWMORE_DATA, or `data` in the cache folder."""
    chosen = folder or os.environ.get("FEWMORE_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder() / "data"
