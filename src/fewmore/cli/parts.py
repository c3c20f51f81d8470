"""Write a Parquet file in parts, so that a command that was stopped goes on where it was.

Beside NAME.parquet there is a folder NAME.parquet.unfinished: what the command was given, the list
of places that it found, and parts. A part is written as a whole or not at all, and knows the
position after its last image. In the end the parts become one file.
"""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fewmore.classifier.text import count_noun, join_names
from fewmore.cli.prediction_rows import writing
from fewmore.errors import ConfigError
from fewmore.io import write_bytes

if TYPE_CHECKING:  # torch is imported when a command runs
    from fewmore.data.streams import PlaceList, Position

# A part is written once it has so many rows, or after so many seconds: what a kill can cost.
PART_ROWS = 50_000
PART_SECONDS = 20.0
KEY = b"fewmore"  # where a part's metadata say how far the rows go


class Parts:
    """Write rows to parts of a file."""

    def __init__(self, path: Path, folder: Path, places: "PlaceList") -> None:
        self.path = path
        self.folder = folder
        self.places = places
        self.rows = 0  # in all parts
        self.errors = 0  # rows with an error among these
        self.start: Position = (0, 0)  # of the first image that is in no part
        if parts := self._paths():
            from pyarrow.parquet import read_schema

            about = json.loads(read_schema(parts[-1]).metadata[KEY])
            self.rows = about["rows"]
            self.errors = about["errors"]
            self.start = (about["end"][0], about["end"][1])
        self._end = self.start
        self._tables: list[Any] = []
        self._waiting = 0  # rows that are in no part yet
        self._since = time.monotonic()

    def write(self, table: Any, end: "Position") -> None:
        """Take the rows of the next images, up to a position."""
        self._tables.append(table)
        self._waiting += len(table)
        self._end = end
        if self._waiting >= PART_ROWS or time.monotonic() - self._since >= PART_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what waits as a part."""
        if self._waiting:
            with writing(self.path):
                self._write_part()

    def _write_part(self) -> None:
        import pyarrow as pa
        from pyarrow.parquet import write_table

        table = pa.concat_tables(self._tables)
        path = self.folder / f"part-{self.rows:012d}.parquet"
        self.rows += self._waiting
        self.errors += self._waiting - table["error"].null_count
        about = {"end": self._end, "rows": self.rows, "errors": self.errors}
        unfinished = path.with_name("new")
        write_table(table.replace_schema_metadata({KEY: json.dumps(about)}), unfinished)
        _sync(unfinished)
        os.replace(unfinished, path)
        self._tables = []
        self._waiting = 0
        self._since = time.monotonic()

    def merge(self) -> None:
        """Make one file of all parts, in the order of the images."""
        from pyarrow.parquet import ParquetFile, ParquetWriter, read_schema

        parts = self._paths()
        unfinished = self.folder / "merged"
        with ParquetWriter(unfinished, read_schema(parts[0]).remove_metadata()) as writer:
            for part in parts:
                with ParquetFile(part) as file:
                    for batch in file.iter_batches(PART_ROWS):
                        writer.write_batch(batch.replace_schema_metadata(None))
        _sync(unfinished)
        os.replace(unfinished, self.path)

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.parquet"))


@contextmanager
def open_parts(path: Path, given: list[str], about: Mapping[str, Any]) -> Iterator[Parts]:
    """Begin a Parquet file, or go on with it; what was written is kept if the command is stopped.

    Args:
        path: the file.
        given: where images are.
        about: what else decides the rows: parts of another command are refused.
    """
    from fewmore.classifier.model_file import locked
    from fewmore.data.streams import PlaceList

    folder = path.with_name(f"{path.name}.unfinished")
    asked = {**about, "given": given}
    listed = folder / "places.jsonl"
    with locked(path, timeout=0):
        with writing(path):
            folder.mkdir(exist_ok=True)
            _check_same(folder / "about.json", asked)
        try:
            with writing(path):
                places = PlaceList(listed) if listed.exists() else None
                places = places or write_places(listed, given)
                parts = Parts(path, folder, places)
            try:
                yield parts
            finally:
                parts.flush()
            with writing(path):
                parts.merge()
        except BaseException:
            if not any(folder.glob("part-*")):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        with writing(path):
            shutil.rmtree(folder)


def write_places(path: Path, given: list[str]) -> "PlaceList":
    """Write the list of places that were given, and say which kinds of files are left out."""
    from fewmore.data.folders import printable
    from fewmore.data.streams import PlaceList, list_places

    others: Counter[str] = Counter()
    places = PlaceList.write(path, list_places(given, others))
    if others:
        files = count_noun(others.total(), "file")
        kinds = printable(join_names(sorted(others)))
        note = f"note: {files} of other kinds left out ({kinds}): save images of these as JPEG"
        typer.echo(note, err=True)
    return places


def _check_same(path: Path, asked: Mapping[str, Any]) -> None:
    """Refuse to go on with what another command began."""
    if not path.exists():
        write_bytes(path, json.dumps(asked, indent=1).encode())  # a part of it would stop all tries
        return
    begun = json.loads(path.read_text(encoding="utf-8"))
    if different := [name for name in asked if begun.get(name) != asked[name]]:
        name = different[0]
        raise ConfigError(
            f"{path.parent} was begun with another {name} ({begun.get(name)}, now {asked[name]}): "
            "give another -o, or remove that folder"
        )


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
