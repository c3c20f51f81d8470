"""Write predictions as they come: CSV, JSON, JSONL and Parquet, and copies sorted into folders.

Rows are flat, the same in CSV and Parquet. `name` is "none of these" for an unknown image;
`nearest` is the likeliest class of any image, and `confidence` is that of this class.
"""

import csv
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fewmore.classifier.text import NONE_OF_THESE
from fewmore.cli.output_files import with_end
from fewmore.errors import ConfigError, DataError

if TYPE_CHECKING:  # torch is imported when a command runs
    from fewmore.classifier.results import Prediction

Result = tuple[str, "Prediction | DataError"]  # the image's name, and what it shows
Write = Callable[[Sequence[Result]], None]
FORMATS = ("csv", "json", "jsonl", "parquet")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the system into a sentence that names the file of `-o`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"-o {path} cannot be written ({error.strerror or error}): give another file"
        ) from error


@contextmanager
def open_file(path: Path, top: int) -> Iterator[Write]:
    """Give a function that writes predictions to a new file of text, as its name's end says.

    What was written stays if the command is stopped; a file without predictions does not.
    """
    is_empty = False

    def write(results: Sequence[Result]) -> None:
        nonlocal is_empty
        with writing(path):
            write_rows(results)
        is_empty = False

    def remove_if_empty() -> None:
        if is_empty:
            path.unlink(missing_ok=True)

    with ExitStack() as stack:
        stack.callback(remove_if_empty)
        with writing(path):
            file = stack.enter_context(path.open("x", encoding="utf-8"))
            write_rows = stack.enter_context(open_rows(check_end(path), file, top))
            is_empty = True
        try:
            yield write
        finally:  # an error of what was written, and not of what was read meanwhile
            with writing(path):
                stack.close()


def check_output(path: Path) -> str:
    """Return the format that a file's name ends in; refuse another one, and a file that exists."""
    form = check_end(path)
    if path.exists():
        raise ConfigError(f"-o {path} is there already: give another name, or remove it")
    if form == "parquet":
        import_pyarrow()
    return form


def check_end(path: Path) -> str:
    """Return the format that a file's name ends in."""
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise ConfigError(
            f"-o {path} does not end in .csv, .json, .jsonl or .parquet: "
            f"use -o {with_end(path, '.csv')}"
        )
    return form


def open_rows(form: str, file: IO[Any], top: int) -> AbstractContextManager[Write]:
    """Give a function that writes predictions in a format, complete after each call."""
    writers: dict[str, Callable[[IO[Any], int], AbstractContextManager[Write]]] = {
        "csv": _csv_rows,
        "json": _json_rows,
        "jsonl": _jsonl_rows,
    }
    return writers[form](file, top)


@contextmanager
def _csv_rows(file: IO[str], top: int) -> Iterator[Write]:
    writer = csv.DictWriter(file, columns(top), lineterminator="\n")
    writer.writeheader()

    def write(results: Sequence[Result]) -> None:
        for result in results:
            row = {name: _text(value) for name, value in _flat(*result).items()}
            writer.writerow(row)
        file.flush()

    yield write


@contextmanager
def _json_rows(file: IO[str], top: int) -> Iterator[Write]:
    before = "[\n"

    def write(results: Sequence[Result]) -> None:
        nonlocal before
        for result in results:
            file.write(before + json.dumps(_nested(*result), indent=1, ensure_ascii=False))
            before = ",\n"
        file.flush()

    try:
        yield write
    finally:
        file.write("[]\n" if before == "[\n" else "\n]\n")


@contextmanager
def _jsonl_rows(file: IO[str], top: int) -> Iterator[Write]:
    def write(results: Sequence[Result]) -> None:
        for result in results:
            file.write(json.dumps(_nested(*result), ensure_ascii=False) + "\n")
        file.flush()

    yield write


def as_table(results: Sequence[Result], top: int) -> Any:
    """Return predictions as an Arrow table of flat rows."""
    pa = import_pyarrow()
    types = {"known": pa.bool_(), "familiarity": pa.float64()}
    rows = [_flat(*result) for result in results]
    arrays = {}
    for name in columns(top):
        is_number = name.startswith("confidence")
        kind = pa.float64() if is_number else types.get(name, pa.string())
        arrays[name] = pa.array([row.get(name) for row in rows], kind)
    return pa.table(arrays)


def import_pyarrow() -> Any:
    """Return pyarrow, or say how to install it."""
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            "Parquet takes a package that is not installed: pip install 'fewmore[parquet]'"
        ) from error
    return pyarrow


def columns(top: int) -> list[str]:
    """Return the columns of flat rows with so many of the likeliest classes."""
    further = [
        f"{column}_{place}" for place in range(2, top + 1) for column in ("name", "confidence")
    ]
    return ["image", "name", "confidence", *further, "known", "nearest", "familiarity", "error"]


def answer(result: "Prediction") -> str:
    """Return the name of the likeliest class, or "none of these"."""
    return result.names[0] if result.known else NONE_OF_THESE


def _flat(image: str, result: "Prediction | DataError") -> dict[str, Any]:
    if isinstance(result, DataError):
        return {"image": image, "error": str(result)}
    row = {
        "image": image,
        "name": answer(result),
        "known": result.known,
        "nearest": result.names[0],
        "familiarity": round(result.familiarity, 6),
    }
    for place, (name, confidence) in enumerate(
        zip(result.names, result.confidences, strict=True), 1
    ):
        if place > 1:
            row[f"name_{place}"] = name
        row[f"confidence_{place}" if place > 1 else "confidence"] = round(confidence, 6)
    return row


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _nested(image: str, result: "Prediction | DataError") -> dict[str, Any]:
    if isinstance(result, DataError):
        return {"image": image, "error": str(result)}
    classes = [
        {"name": name, "confidence": round(confidence, 6)}
        for name, confidence in zip(result.names, result.confidences, strict=True)
    ]
    return {
        "image": image,
        "name": answer(result),
        "known": result.known,
        "familiarity": round(result.familiarity, 6),
        "classes": classes,
    }


def sort_into(folder: Path, image: str, name: str) -> None:
    """Copy an image into the folder of its class; a copy never replaces another file."""
    from fewmore.data.folders import from_printable

    path = from_printable(image)
    of_class = folder / (name.replace("/", "_").replace("\\", "_").strip(".") or "_")
    try:
        of_class.mkdir(parents=True, exist_ok=True)
        if (target := _free_place(path, of_class)) is not None:
            _copy(path, target)
    except OSError as error:
        raise ConfigError(
            f"--sort-into {folder}: {path} cannot be copied ({error.strerror or error})"
        ) from error


def _copy(path: Path, target: Path) -> None:
    """Copy a file; if that is stopped, or the disk is full, no part of it is left."""
    unfinished = target.with_name(f".unfinished-{os.getpid()}")
    try:
        shutil.copy2(path, unfinished)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def _free_place(path: Path, folder: Path) -> Path | None:
    """Return a name in a folder that no other file has; None if the same image is there."""
    from fewmore.io import file_hash

    target = folder / path.name
    number = 1
    while target.exists():
        if file_hash(target) == file_hash(path):
            return None
        number += 1
        target = folder / f"{path.stem}-{number}{path.suffix}"
    return target
