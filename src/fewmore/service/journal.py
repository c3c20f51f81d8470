"""A write-ahead log: records that are on the disk when `append` returns, and are whole or not there after a crash.

    file    = record …
    record  = mark (4 bytes), length of head, length of body (4 bytes each), checksum (16 bytes), head (JSON), body (bytes)

The first record says what the file was begun with. A crash can cut only the last record short: it is dropped. A damaged record with whole
ones behind it is no crash's work, and the file is refused.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewmore.errors import ModelFileError
from fewmore.io import write_bytes

MARK = b"cecJ"
_HEAD = struct.Struct("<4sII16s")


@dataclass(frozen=True)
class Record:
    """A JSON object, and bytes that belong to it."""

    head: dict[str, Any]
    body: bytes = b""


class Journal:
    """The file, open at its end."""

    def __init__(self, path: Path, records: list[Record], size: int) -> None:
        self.path, self.size = path, size
        self.records = records  # as they were found; later ones are not kept in memory
        self.broken = (
            False  # whether the file's end is unknown, after an error that could not be taken back
        )
        self._file = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))

    @classmethod
    def begun(cls, path: Path, first: Record) -> "Journal":
        """A new file with one record, in the place of whatever was there: it and its folder are on the disk."""
        data = _packed(first)
        write_bytes(path, data)
        return cls(path, [first], len(data))

    @classmethod
    def opened(cls, path: Path) -> "Journal":
        """The file as it was left; a last record that was cut short is taken off."""
        data = path.read_bytes()
        found = list(_unpacked(data))
        size = found[-1][1] if found else 0
        if any(True for start in _marks(data, size + 1) for _ in _unpacked(data, start)):
            raise ModelFileError(
                f"{path} is damaged at byte {size:,}, with whole records behind that: copy it back from a backup, "
                f"or move it away and lose what was taught since the model file was last written"
            )
        journal = cls(path, [record for record, _ in found], size)
        if size < len(data):
            journal._cut()
        return journal

    def append(self, record: Record) -> None:
        """Write a record and wait until it is on the disk. After an error nothing of it is there."""
        if self.broken:
            raise OSError(
                f"{self.path} could not be written, and what is in it is not certain: check the disk, then start anew"
            )
        data = _packed(record)
        try:
            os.lseek(self._file, self.size, os.SEEK_SET)
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError:
            self.broken = True
            self._cut()
            self.broken = False
            raise
        self.size += len(data)

    def close(self) -> None:
        os.close(self._file)

    def _cut(self) -> None:
        os.ftruncate(self._file, self.size)
        os.fsync(self._file)


def _packed(record: Record) -> bytes:
    head = json.dumps(record.head, ensure_ascii=True, separators=(",", ":")).encode()
    return (
        _HEAD.pack(MARK, len(head), len(record.body), _checksum(head, record.body))
        + head
        + record.body
    )


def _unpacked(data: bytes, at: int = 0) -> Iterator[tuple[Record, int]]:
    """Whole records from a place on, each with the place behind it, up to the first that is not whole."""
    while at + _HEAD.size <= len(data):
        mark, head_length, body_length, checksum = _HEAD.unpack_from(data, at)
        middle = at + _HEAD.size + head_length
        end = middle + body_length
        if mark != MARK or end > len(data):
            return
        head, body = data[at + _HEAD.size : middle], data[middle:end]
        if _checksum(head, body) != checksum:
            return
        yield Record(json.loads(head), body), end
        at = end


def _marks(data: bytes, at: int) -> Iterator[int]:
    while (at := data.find(MARK, at)) >= 0:
        yield at
        at += 1


def _checksum(head: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(
        struct.pack("<II", len(head), len(body)) + head + body, digest_size=16
    ).digest()
