"""Write a write-ahead log whose records are on the disk when `append` returns.

    file    = record …
    record  = magic (4 bytes), length of head, length of body (4 bytes each), checksum (16 bytes),
              head (JSON), body (bytes)

After a crash, every record is whole or absent: a crash can cut short only the last one, which is
then dropped. A damaged record with whole ones behind it has another cause, and the file is refused.
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

MAGIC = b"cecJ"
_HEAD = struct.Struct("<4sII16s")


@dataclass(frozen=True)
class Record:
    """Hold a JSON object and the bytes that belong to it."""

    head: dict[str, Any]
    body: bytes = b""


class Journal:
    """Append to the file, durably. Use `create` or `open` to get one."""

    def __init__(self, path: Path, records: list[Record], size: int) -> None:
        self.path = path
        self.records = records  # those found at the start; later ones are not kept in memory
        self.size = size
        self.broken = False  # after an error that could not be reverted: the file's end is unknown
        self._file = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))

    @classmethod
    def create(cls, path: Path, first: Record) -> "Journal":
        """Replace whatever is there by a file with one record; it and its folder are synced."""
        data = _pack(first)
        write_bytes(path, data)
        return cls(path, [first], len(data))

    @classmethod
    def open(cls, path: Path) -> "Journal":
        """Open an existing file, and truncate a last record that was cut short."""
        data = path.read_bytes()
        found = list(_unpack(data))
        size = found[-1][1] if found else 0
        if any(True for start in _find_magic(data, size + 1) for _ in _unpack(data, start)):
            raise ModelFileError(
                f"{path} is damaged at byte {size:,}, with whole records behind that: copy it back "
                "from a backup, or move it away and lose what was taught since the model file was "
                "last written"
            )
        journal = cls(path, [record for record, _ in found], size)
        if size < len(data):
            journal._truncate()
        return journal

    def append(self, record: Record) -> None:
        """Write a record and sync it to the disk. After an error nothing of it is there."""
        if self.broken:
            raise OSError(
                f"{self.path} could not be written, and what is in it is not certain: "
                "check the disk, then start anew"
            )
        data = _pack(record)
        try:
            os.lseek(self._file, self.size, os.SEEK_SET)
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError:
            self.broken = True
            self._truncate()
            self.broken = False
            raise
        self.size += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _truncate(self) -> None:
        os.ftruncate(self._file, self.size)
        os.fsync(self._file)


def _pack(record: Record) -> bytes:
    head = json.dumps(record.head, ensure_ascii=True, separators=(",", ":")).encode()
    body = record.body
    return _HEAD.pack(MAGIC, len(head), len(body), _checksum(head, body)) + head + body


def _unpack(data: bytes, start: int = 0) -> Iterator[tuple[Record, int]]:
    """Yield whole records and their end offsets, up to the first that is not whole."""
    while start + _HEAD.size <= len(data):
        magic, head_length, body_length, checksum = _HEAD.unpack_from(data, start)
        middle = start + _HEAD.size + head_length
        end = middle + body_length
        if magic != MAGIC or end > len(data):
            return
        head = data[start + _HEAD.size : middle]
        body = data[middle:end]
        if _checksum(head, body) != checksum:
            return
        yield Record(json.loads(head), body), end
        start = end


def _find_magic(data: bytes, start: int) -> Iterator[int]:
    while (start := data.find(MAGIC, start)) >= 0:
        yield start
        start += 1


def _checksum(head: bytes, body: bytes) -> bytes:
    lengths = struct.pack("<II", len(head), len(body))
    return hashlib.blake2b(lengths + head + body, digest_size=16).digest()
