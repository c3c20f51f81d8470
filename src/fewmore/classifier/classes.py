"""What a classifier knows: its classes, how they came about, and how to take a change back.

A class is the sum of its images' features and their number, so more images of it refine its mean exactly as if all had
come at once. Nothing here is ever changed in place: a change gives a new `Knowledge`, and whoever holds the old one goes on
with that.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import torch
from torch import Tensor

from fewmore.errors import ConfigError, DataError, UnknownName

UNDOABLE = 20  # of the last changes; what older ones replaced is no longer kept
LONGEST_NAME = 200  # characters


@dataclass(frozen=True, eq=False)
class KnownClass:
    """A class: its name, the sum of its images' features, and what tells its images from others."""

    name: str
    total: Tensor  # (d,) float64 on the CPU; features are added one by one, so the grouping leaves no trace in its bits
    count: int
    prints: frozenset[int] = (
        frozenset()
    )  # fingerprints of its images, where images were shown and not features

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    def refined(self, features: Tensor, prints: Iterable[int] = ()) -> "KnownClass":
        """The class with more images."""
        total = self.total.clone()
        for row in features.detach().cpu().double():
            total += row
        return KnownClass(
            self.name, total, self.count + len(features), self.prints | frozenset(prints)
        )


@dataclass(frozen=True)
class Change:
    """One step of a classifier's history."""

    kind: str  # fit, learn, forget or rename
    classes: tuple[str, ...]  # for rename: the old name and the new one
    images: int
    when: str  # UTC, to the second

    def __str__(self) -> str:
        if self.kind == "rename":
            return f"rename of {self.classes[0]} to {self.classes[1]}"
        return f"{self.kind} of {listed(self.classes)}"


@dataclass(frozen=True)
class Reversal:
    """What takes a change back: classes to drop, then classes to put back where they stood."""

    drop: tuple[str, ...]
    restore: tuple[tuple[int, KnownClass], ...]  # in the order of their places


@dataclass(frozen=True)
class Lesson:
    """What is shown of one class: features (k, d), and the images' fingerprints where there were images."""

    name: str
    features: Tensor
    prints: tuple[int, ...] = ()


@dataclass(frozen=True)
class Knowledge:
    """All classes in the order they came, and their history."""

    classes: tuple[KnownClass, ...]
    history: tuple[Change, ...]
    reversals: tuple[
        Reversal, ...
    ] = ()  # of the last changes, the newest last; training itself has none
    version: int = 1  # grows with every change, an undo among them

    @classmethod
    def founded(cls, classes: Sequence[KnownClass]) -> "Knowledge":
        """What training leaves."""
        names = tuple(known.name for known in classes)
        return cls(
            tuple(classes), (Change("fit", names, sum(known.count for known in classes), now()),)
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(known.name for known in self.classes)

    @property
    def kept(self) -> tuple[KnownClass, ...]:
        """All classes, and behind them those that an undo can bring back."""
        return (
            *self.classes,
            *(known for reversal in self.reversals for _, known in reversal.restore),
        )

    def learned(self, lessons: Sequence[Lesson]) -> "Knowledge":
        """With new classes at the end, and known ones refined in their places."""
        places = {known.name: place for place, known in enumerate(self.classes)}
        classes = list(self.classes)
        replaced: list[tuple[int, KnownClass]] = []
        for lesson in lessons:
            if lesson.name in places:
                place = places[lesson.name]
                replaced.append((place, classes[place]))
                classes[place] = classes[place].refined(lesson.features, lesson.prints)
            else:
                nothing = KnownClass(
                    lesson.name, torch.zeros(lesson.features.shape[1], dtype=torch.float64), 0
                )
                classes.append(nothing.refined(lesson.features, lesson.prints))
        names = tuple(lesson.name for lesson in lessons)
        change = Change("learn", names, sum(len(lesson.features) for lesson in lessons), now())
        return self._changed(classes, change, Reversal(names, _by_place(replaced)))

    def forgot(self, names: Iterable[str]) -> "Knowledge":
        """Without these classes."""
        wanted = [self.found(name) for name in names]
        gone = [(place, self.classes[place]) for place in dict.fromkeys(wanted)]
        if not gone:
            raise ConfigError("no class was named: say which ones to forget")
        places = {place for place, _ in gone}
        classes = [known for place, known in enumerate(self.classes) if place not in places]
        change = Change(
            "forget",
            tuple(known.name for _, known in gone),
            sum(known.count for _, known in gone),
            now(),
        )
        return self._changed(classes, change, Reversal((), _by_place(gone)))

    def renamed(self, old: str, new: str) -> "Knowledge":
        """With another name for a class."""
        place, new = self.found(old), clean_name(new)
        if new in self.names:
            raise ConfigError(
                f"'{new}' is the name of a class already: forget that one first, or choose another name"
            )
        known = self.classes[place]
        classes = [*self.classes[:place], replace(known, name=new), *self.classes[place + 1 :]]
        change = Change("rename", (known.name, new), known.count, now())
        return self._changed(classes, change, Reversal((new,), ((place, known),)))

    def undone(self) -> tuple["Knowledge", Change]:
        """As it was before the last change, and that change."""
        last = self.history[-1]
        if last.kind == "fit":
            raise ConfigError("there is nothing to undo: no change was made since training")
        if not self.reversals:
            raise ConfigError(
                f"the {last} cannot be undone: only the last {UNDOABLE} changes can, and those were taken back already"
            )
        reversal = self.reversals[-1]
        classes = [known for known in self.classes if known.name not in set(reversal.drop)]
        for place, known in reversal.restore:
            classes.insert(place, known)
        return Knowledge(
            tuple(classes), self.history[:-1], self.reversals[:-1], self.version + 1
        ), last

    def found(self, name: str) -> int:
        """The place of a class."""
        name = clean_name(name)
        for place, known in enumerate(self.classes):
            if known.name == name:
                return place
        if not self.classes:
            raise ConfigError(
                f"no class is named '{name}': no class is known at all; learn some first"
            )
        raise UnknownName("class", name, self.names)

    def _changed(
        self, classes: Sequence[KnownClass], change: Change, reversal: Reversal
    ) -> "Knowledge":
        reversals = (*self.reversals, reversal)[-UNDOABLE:]
        return Knowledge(tuple(classes), (*self.history, change), reversals, self.version + 1)


def class_sessions(history: Iterable[Change]) -> dict[str, int]:
    """The session that each known class came in: training is 0, and every lesson one more."""
    came: dict[str, int] = {}
    session = -1
    for change in history:
        if change.kind in ("fit", "learn"):
            session += 1
            came |= {name: session for name in change.classes if name not in came}
        elif change.kind == "rename":
            old, new = change.classes
            came[new] = came.pop(old)
        elif change.kind == "forget":
            for name in change.classes:
                del came[name]
        else:
            raise ValueError(f"no change is of the kind '{change.kind}'")
    return came


def clean_name(name: object) -> str:
    """A class's name as it is kept: composed characters, no space around it."""
    if not isinstance(name, str):
        raise DataError(f"a class's name must be a text, not {name!r} ({type(name).__name__})")
    clean = unicodedata.normalize("NFC", name).strip()
    if not clean:
        raise DataError(f"a class's name must not be empty, and {name!r} is")
    if len(clean) > LONGEST_NAME:
        raise DataError(
            f"a class's name must have at most {LONGEST_NAME} characters, and '{clean[:20]}…' has {len(clean)}"
        )
    if odd := next((c for c in clean if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")), None):
        raise DataError(
            f"a class's name must hold no control characters, and {clean!r} holds {odd!r}"
        )
    return clean


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def counted(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _by_place(classes: Sequence[tuple[int, KnownClass]]) -> tuple[tuple[int, KnownClass], ...]:
    return tuple(sorted(classes, key=lambda one: one[0]))
