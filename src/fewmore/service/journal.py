"""Read the journals in which changes were stored before they were stored in SQLite.

    file    = record …
    record  = magic (4 bytes), length of head, length of body (4 bytes each), checksum (16 bytes),
              head (JSON), body (bytes)

A crash can cut short only the last record. A damaged record with whole ones behind it has another
cause.
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fewmore.errors import ModelFileError
from fewmore.service.idempotency import IdempotencyKey
from fewmore.service.operations import Operation

MAGIC = b"cecJ"
_HEAD = struct.Struct("<4sII16s")


@dataclass
class Journal:
    """Hold what a journal says."""

    backbone: str | None = None
    operations: list[Operation | None] = field(default_factory=list)  # None: damaged ones
    states: dict[str, int] = field(default_factory=dict)  # state -> operations that it contains
    responses: list[tuple[IdempotencyKey, str]] = field(default_factory=list)
    tail: bytes = b""  # behind the last whole record

    @classmethod
    def parse(cls, data: bytes) -> "Journal":
        """Read all whole records."""
        journal = cls()
        end = 0
        for start, stop, head, body in _records(data):
            if start > end:
                journal.operations.append(None)
            journal._add(head, body)
            end = stop
        journal.tail = data[end:]
        return journal

    def _add(self, head: dict[str, Any], body: bytes) -> None:
        for name, digest, response in head.get("remembered", ()):
            self._remember(name, digest, response)
        if "key" in head:
            # "answer" and "prints" are names from before the first release
            response = head["response"] if "response" in head else head["answer"]
            self._remember(head["key"], head["digest"], response)
        self.backbone = self.backbone or head.get("backbone")
        if "state" in head:
            self.states[head["state"]] = len(self.operations)
            return
        try:
            hashes = tuple(head["hashes"] if "hashes" in head else head["prints"])
            operation = Operation(head["kind"], tuple(head["names"]), hashes, body, head["when"])
        except (KeyError, TypeError) as error:
            raise ModelFileError(f"a journal's record has no field {error}") from error
        self.operations.append(operation)

    def _remember(self, name: str, digest: str, response: dict[str, Any]) -> None:
        """Keep a response; "pictures" was the name of "images" before the first release."""
        renamed = {"images" if name == "pictures" else name: v for name, v in response.items()}
        text = json.dumps(renamed, ensure_ascii=False)
        self.responses.append((IdempotencyKey(name, digest), text))


def _records(data: bytes) -> Iterator[tuple[int, int, dict[str, Any], bytes]]:
    """Yield start, end, head and body of all whole records."""
    start = 0
    while (start := data.find(MAGIC, start)) >= 0:
        head, body = b"", b""
        end = start + _HEAD.size
        checksum = None
        if end <= len(data):
            _, head_length, body_length, checksum = _HEAD.unpack_from(data, start)
            head = data[end : end + head_length]
            body = data[end + head_length : end + head_length + body_length]
            end += head_length + body_length
        if end > len(data) or checksum != _checksum(head, body):
            start += 1
            continue
        yield start, end, json.loads(head), body
        start = end


def _checksum(head: bytes, body: bytes) -> bytes:
    lengths = struct.pack("<II", len(head), len(body))
    return hashlib.blake2b(lengths + head + body, digest_size=16).digest()
