"""Remember the responses to requests that carried an Idempotency-Key.

The same request with the same key gets the first response again and is applied once, also after a
crash: the store writes key and response into the same journal record as the change itself.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

from fewmore.errors import FewmoreError

MOST_KEYS = 1000  # the oldest are forgotten

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


class KeyReused(FewmoreError):
    """Report that one key came with two different requests."""


class ResponseCache:
    """Map the latest keys to their responses."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[str, JSON]] = {}  # key -> (digest, response)

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
        return response

    def put(self, key: IdempotencyKey, response: JSON) -> None:
        """Remember a response, and forget the oldest if there are too many."""
        self._entries[key.name] = (key.digest, response)
        while len(self._entries) > MOST_KEYS:
            del self._entries[next(iter(self._entries))]

    def dump(self) -> list[list[Any]]:
        """List all entries as JSON values, the oldest first."""
        return [[name, digest, response] for name, (digest, response) in self._entries.items()]

    def load_head(self, head: JSON) -> None:
        """Remember what the head of a journal record holds: one response, or a whole dump."""
        for name, digest, response in head.get("remembered", ()):
            self.put(IdempotencyKey(name, digest), _current(response))
        if "key" in head:
            # "answer": the name from before the first release
            response = head["response"] if "response" in head else head["answer"]
            self.put(IdempotencyKey(head["key"], head["digest"]), _current(response))


def _current(response: JSON) -> JSON:
    """Rename the field "pictures", which was the name of "images" before the first release."""
    return {"images" if name == "pictures" else name: value for name, value in response.items()}
