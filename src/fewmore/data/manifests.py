"""Read manifests: lists of image files, and of their labels, as CSV, JSONL or plain text."""

import csv
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fewmore.data.folders import Listing
from fewmore.errors import DataError

LABELED = (".csv", ".jsonl")
SUFFIXES = (*LABELED, ".txt")
PATH_COLUMNS = ("path", "image", "file_name")  # the first of them that is there
LABEL_COLUMNS = ("label", "class")


def is_manifest(path: Path, labeled: bool = True) -> bool:
    """Say whether a path is a manifest's, by the end of its name; plain text has no labels."""
    return path.suffix.lower() in (LABELED if labeled else SUFFIXES) and not os.path.isdir(path)


def list_manifest(manifest: Path) -> Listing:
    """List the images of a manifest with labels, whose classes are in alphabetical order."""
    paths: list[Path] = []
    names: list[str] = []
    for place, path, row in _rows(manifest):
        name = (_first(row, LABEL_COLUMNS) or "").strip()
        if not name:
            raise DataError(f"{place} has no label: give each image its class in a column 'label'")
        paths.append(path)
        names.append(name)
    class_names = sorted(set(names))
    label_of = {name: label for label, name in enumerate(class_names)}
    return Listing(tuple(paths), tuple(label_of[name] for name in names), tuple(class_names))


def manifest_paths(manifest: Path) -> list[Path]:
    """Return the images of a manifest, which need no labels."""
    return [path for _, path, _ in _rows(manifest)]


def _rows(manifest: Path) -> Iterator[tuple[str, Path, Mapping[str, Any]]]:
    """Yield the place, the image and the columns of each row; there is at least one.

    A relative path begins at the folder of the manifest.
    """
    manifest = manifest.expanduser()
    try:
        text = manifest.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DataError(
            f"{manifest} cannot be read ({reason}): give a list of images as CSV, JSONL or text"
        ) from error
    count = 0
    for number, row in _parse(manifest, text):
        place = f"line {number} of {manifest}"
        path = _first(row, PATH_COLUMNS)
        if path is None:
            columns = ", ".join(str(name) for name in row) or "no columns"
            raise DataError(
                f"{place} has no image ({columns}): give the images in a column 'path', "
                "and their classes in a column 'label'"
            )
        count += 1
        yield place, manifest.parent / Path(path).expanduser(), row
    if not count:
        raise DataError(f"{manifest} names no images: give one a line")


def _parse(manifest: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the number and the columns of each line that is not empty."""
    lines = text.split("\n")  # not at U+2028 and the like, which names of files may have
    if manifest.suffix.lower() == ".csv":
        # Excel separates columns by semicolons where the comma is the decimal point.
        delimiter = max(",;\t", key=lines[0].count)
        reader = csv.DictReader(lines, delimiter=delimiter)
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        yield from ((reader.line_num, row) for row in reader)
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if manifest.suffix.lower() == ".txt":
            yield number, {"path": line.strip()}
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"line {number} of {manifest} is not JSON ({error}): "
                'write a line an image, such as {"path": "a.jpg", "label": "robin"}'
            ) from error
        yield number, row if isinstance(row, dict) else {}


def _first(row: Mapping[str, Any], columns: tuple[str, ...]) -> str | None:
    """Return the first of these columns that is there and not empty, as text."""
    values = (row.get(column) for column in columns)
    return next((str(value) for value in values if value not in (None, "")), None)
