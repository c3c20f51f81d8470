"""Hold the known classes, their history and how to undo the last changes.

Nothing is changed in place: `learn`, `remove`, `forget`, `rename` and `undo` return a new
`ClassSet`, and code that holds the old one keeps working with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fewmore.classifier.classes import KnownClass, SupportSet, clean_name
from fewmore.classifier.history import Change, UndoStep, utc_now
from fewmore.classifier.text import count_noun
from fewmore.errors import ConfigError, StateError, UnknownName

MAX_UNDO_STEPS = 20  # what older changes replaced is no longer stored


@dataclass(frozen=True)
class ClassSet:
    """Hold all classes in the order they were learnt, with their history."""

    classes: tuple[KnownClass, ...]
    history: tuple[Change, ...]
    undo_steps: tuple[UndoStep, ...] = ()  # of the last changes, the newest last; none for `fit`
    version: int = 1  # grows with every change, including an undo

    @classmethod
    def from_training(cls, classes: Sequence[KnownClass]) -> "ClassSet":
        """Return the base classes, with their training as the first change of the history."""
        names = tuple(known.name for known in classes)
        images = sum(known.count for known in classes)
        return cls(tuple(classes), (Change("fit", names, images, utc_now()),))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all classes."""
        return tuple(known.name for known in self.classes)

    @property
    def stored_classes(self) -> tuple[KnownClass, ...]:
        """Return all classes, followed by those that an undo can bring back."""
        undoable = (known for step in self.undo_steps for _, known in step.restore)
        return (*self.classes, *undoable)

    def index(self, name: str) -> int:
        """Return the position of a class."""
        name = clean_name(name)
        for position, known in enumerate(self.classes):
            if known.name == name:
                return position
        if not self.classes:
            raise StateError(
                f"no class is named '{name}': no class is known at all; learn some first"
            )
        raise UnknownName("class", name, self.names)

    def learn(self, support: Sequence[SupportSet]) -> "ClassSet":
        """Add new classes at the end, and refine known ones in their positions."""
        positions = {known.name: position for position, known in enumerate(self.classes)}
        classes = list(self.classes)
        replaced: list[tuple[int, KnownClass]] = []
        for shots in support:
            if shots.name in positions:
                position = positions[shots.name]
                replaced.append((position, classes[position]))
                classes[position] = classes[position].with_images(shots.features, shots.hashes)
            else:
                classes.append(shots.to_class())
        names = tuple(shots.name for shots in support)
        images = sum(len(shots.features) for shots in support)
        change = Change("learn", names, images, utc_now())
        return self._changed(classes, change, UndoStep(names, _by_position(replaced)))

    def remove(self, support: SupportSet) -> "ClassSet":
        """Take images out of a class, which keeps at least one."""
        position = self.index(support.name)
        known = self.classes[position]
        if not len(support.features):
            raise ConfigError(f"no image was named: say which ones to remove from '{known.name}'")
        if missing := set(support.hashes) - known.hashes:
            raise StateError(
                f"{count_noun(len(missing), 'image')} of those to remove are none of "
                f"'{known.name}': name images that it has learnt"
            )
        if len(support.features) >= known.count:
            raise StateError(
                f"'{known.name}' would be left without an image: forget the class instead"
            )
        classes = list(self.classes)
        classes[position] = known.without_images(support.features, support.hashes)
        change = Change("remove", (known.name,), len(support.features), utc_now())
        return self._changed(classes, change, UndoStep((known.name,), ((position, known),)))

    def forget(self, names: Iterable[str]) -> "ClassSet":
        """Remove classes."""
        positions = dict.fromkeys(self.index(name) for name in names)
        if not positions:
            raise ConfigError("no class was named: say which ones to forget")
        removed = [(position, self.classes[position]) for position in positions]
        classes = [known for place, known in enumerate(self.classes) if place not in positions]
        change = Change(
            "forget",
            tuple(known.name for _, known in removed),
            sum(known.count for _, known in removed),
            utc_now(),
        )
        return self._changed(classes, change, UndoStep((), _by_position(removed)))

    def rename(self, old: str, new: str) -> "ClassSet":
        """Give a class another name."""
        position = self.index(old)
        new = clean_name(new)
        if new == self.names[position]:
            raise StateError(
                f"'{new}' is the name of the class already, so nothing was renamed: "
                "give another new name"
            )
        if new in self.names:
            raise StateError(
                f"'{new}' is the name of a class already: forget that one first, "
                "or choose another name"
            )
        known = self.classes[position]
        classes = list(self.classes)
        classes[position] = replace(known, name=new)
        change = Change("rename", (known.name, new), known.count, utc_now())
        return self._changed(classes, change, UndoStep((new,), ((position, known),)))

    def undo(self) -> tuple["ClassSet", Change]:
        """Take back the last change; return the classes before it, and that change."""
        last = self.history[-1]
        if last.kind == "fit":
            raise StateError("there is nothing to undo: no change was made since training")
        if not self.undo_steps:
            raise StateError(
                f"the {last} cannot be undone: only the last {MAX_UNDO_STEPS} changes can, "
                "and those were taken back already"
            )
        step = self.undo_steps[-1]
        dropped = set(step.drop)
        classes = [known for known in self.classes if known.name not in dropped]
        for position, known in step.restore:
            classes.insert(position, known)
        before = ClassSet(tuple(classes), self.history[:-1], self.undo_steps[:-1], self.version + 1)
        return before, last

    def _changed(self, classes: Sequence[KnownClass], change: Change, undo: UndoStep) -> "ClassSet":
        undo_steps = (*self.undo_steps, undo)[-MAX_UNDO_STEPS:]
        return ClassSet(tuple(classes), (*self.history, change), undo_steps, self.version + 1)


def _by_position(classes: Sequence[tuple[int, KnownClass]]) -> tuple[tuple[int, KnownClass], ...]:
    return tuple(sorted(classes, key=lambda item: item[0]))
