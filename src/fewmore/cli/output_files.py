"""Refuse files that a command must not write, before it computes anything."""

import logging
from pathlib import Path

from fewmore.errors import ConfigError

PAGES = (".html", ".htm")


def check_page(path: Path) -> None:
    """Refuse a page of `--html` that has another end, no folder, or is a file of the user's."""
    from fewmore.research.reporting.image_page import MARK

    _check("--html", path, PAGES, MARK.encode())


def check_figure(path: Path) -> None:
    """Refuse a figure of `--plot` that has another end, no folder, or is a file of the user's."""
    # Where its folder cannot be written, matplotlib says so in two lines, and works all the same.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # before it is imported
    from fewmore.research.reporting.figures.files import FIGURE_MARK, FORMATS

    _check("--plot", path, FORMATS, FIGURE_MARK.encode())


def check_graph_file(path: Path) -> None:
    """Refuse a file of `--onnx` that has no folder, or is a file of the user's."""
    _check("--onnx", path, (".onnx",), b"fewmore")  # its producer


def with_end(path: Path, suffix: str) -> Path:
    """Return a path with another end to its name; of a folder without a name, a file in it."""
    return path.with_suffix(suffix) if path.name else path / f"new{suffix}"


def _check(option: str, path: Path, suffixes: tuple[str, ...], mark: bytes) -> None:
    if path.suffix.lower() not in suffixes:
        *first, last = suffixes
        raise ConfigError(
            f"{option} {path} does not end in {', '.join(first)} or {last}: "
            f"use {option} {with_end(path, suffixes[0])}"
        )
    place = path.expanduser().resolve()
    if not place.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if place.is_dir():
        raise ConfigError(f"{option} {path} is a folder: give the name of a file")
    try:
        is_own = not place.exists() or not place.is_file() or mark in place.read_bytes()
    except OSError:  # writing it reports what is wrong
        return
    if not is_own:
        raise ConfigError(
            f"{option} {path} is there already, and fewmore did not write it: give another name "
            f"with {option}, or remove it"
        )
