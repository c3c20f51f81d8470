"""Hold what a client sends beside a change, and remember the responses to requests with a key.

The same request with the same Idempotency-Key gets the first response again and is applied once,
also after a crash: key and response are stored in the same transaction as the change itself.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fewmore.errors import FewmoreError

MOST_KEYS = 1000  # the oldest are forgotten
MOST_BYTES = 4_000_000  # of all responses

JSON = dict[str, Any]


@dataclass(frozen=True)
class IdempotencyKey:
    """Identify a request by the client's name for it and a digest of its content."""

    name: str
    digest: str

    @classmethod
    def of(cls, name: str | None, *parts: str) -> "IdempotencyKey | None":
        """Build the key of a request with this content; None where the client sent no key."""
        if name is None:
            return None
        content = "".join(f"{len(part)}:{part}" for part in parts)
        digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
        return cls(name, digest)


@dataclass(frozen=True)
class Request:
    """Hold the key of a request, and the version of the model that it was made for."""

    key: IdempotencyKey | None = None
    version: int | None = None  # None: any


class KeyReused(FewmoreError):
    """Report that one key came with two different requests."""


class ResponseCache:
    """Map the latest keys to their responses, up to a number of keys and of bytes."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[str, str]] = {}  # key -> (digest, response as JSON)
        self._bytes = 0

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._entries)

    def get(self, key: IdempotencyKey | None) -> JSON | None:
        """Return the response to an earlier request with this key, if there was one."""
        if key is None or key.name not in self._entries:
            return None
        digest, response = self._entries[key.name]
        if digest != key.digest:
            raise KeyReused(
                f"the Idempotency-Key {key.name} came with another request before: "
                "take a new key for a new request"
            )
        loaded: JSON = json.loads(response)
        return loaded

    def put(self, key: IdempotencyKey, response: str) -> None:
        """Remember a response, and forget the oldest if there are too many."""
        self._remove(key.name)
        self._entries[key.name] = (key.digest, response)
        self._bytes += len(response)
        while len(self._entries) > MOST_KEYS or self._bytes > MOST_BYTES:
            self._remove(next(iter(self._entries)))

    def load(self, rows: Iterable[tuple[IdempotencyKey, str]]) -> None:
        """Remember stored responses, the oldest first."""
        for key, response in rows:
            self.put(key, response)

    def _remove(self, name: str) -> None:
        if name in self._entries:
            self._bytes -= len(self._entries.pop(name)[1])
