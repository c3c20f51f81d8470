"""Record the changes of a classifier, and what takes each of them back."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from fewmore.classifier.classes import KnownClass
from fewmore.classifier.text import count_noun, join_names


@dataclass(frozen=True)
class Change:
    """Describe one change of a classifier."""

    kind: str  # fit, learn, remove, forget or rename
    classes: tuple[str, ...]  # for rename: the old name and the new one
    images: int
    when: str  # UTC, to the second

    def __str__(self) -> str:
        if self.kind == "rename":
            return f"renaming of {self.classes[0]} to {self.classes[1]}"
        if self.kind == "remove":
            return f"removal of {count_noun(self.images, 'image')} of {self.classes[0]}"
        nouns = {"fit": "training on", "learn": "learning of", "forget": "forgetting of"}
        return f"{nouns.get(self.kind, self.kind)} {join_names(self.classes)}"


@dataclass(frozen=True)
class UndoStep:
    """Take a change back: drop some classes, then insert others at their former positions."""

    drop: tuple[str, ...]
    restore: tuple[tuple[int, KnownClass], ...]  # (position, class), in the order of positions


def class_sessions(history: Iterable[Change]) -> dict[str, int]:
    """Return the session in which each known class was learnt: training is 0, a `learn` one more.

    Raises LookupError or ValueError for a history that contradicts itself.
    """
    sessions: dict[str, int] = {}
    session = -1
    for change in history:
        if change.kind in ("fit", "learn"):
            session += 1
            sessions |= {name: session for name in change.classes if name not in sessions}
        elif change.kind == "rename":
            old, new = change.classes
            sessions[new] = sessions.pop(old)
        elif change.kind == "forget":
            for name in change.classes:
                del sessions[name]
        elif change.kind == "remove":
            (name,) = change.classes
            sessions[name]  # must be known
        else:
            raise ValueError(f"no change is of the kind '{change.kind}'")
    return sessions


def utc_now() -> str:
    """Return the current time in UTC, to the second, in ISO 8601."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
