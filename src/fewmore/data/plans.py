"""Plan sessions by name: their classes in order, how many images of each, or which images.

A plan is what a user writes, in a benchmark file or in Python. `resolve` finds its classes and
images in a training set and refuses what does not fit; `splits.planned_split` then draws the
shots. Importable without PyTorch: a wrong plan is refused before anything is loaded.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fewmore.errors import SplitError, UnknownName


@dataclass(frozen=True)
class SessionPlan:
    """Describe one session.

    Attributes:
        classes: the names of its classes, in order. Where images are named, the classes may be
            left out: they come in the order of their first image.
        shots: how many training images of each class are drawn, one number for all or one by
            class; None shows all of them.
        images: the images it shows, by key (CLASS/FILE in a folder) or by position in the
            training set; none are drawn then.
    """

    classes: tuple[str, ...] = ()
    shots: int | Mapping[str, int] | None = None
    images: tuple[str | int, ...] = ()

    def shot(self, name: str) -> int | None:
        """Return how many images of a class are drawn, or None for all."""
        return self.shots.get(name) if isinstance(self.shots, Mapping) else self.shots


@dataclass(frozen=True)
class ResolvedSession:
    """Hold one session as numbers: labels, and positions in the training set."""

    classes: tuple[int, ...]
    images: tuple[int, ...] | None  # None: drawn
    shots: tuple[int | None, ...] = ()  # by class, where images are drawn


def resolve(
    benchmark: str,
    plan: Sequence[SessionPlan],
    labels: Sequence[int],
    class_names: Sequence[str],
    keys: Sequence[str] = (),
) -> list[ResolvedSession]:
    """Find the classes and images of a plan in a training set.

    Args:
        benchmark: what messages call it.
        plan: the sessions, the base session first.
        labels: the label of each training image.
        class_names: the name of each label.
        keys: the name of each training image, if they have names.
    """
    if not plan:
        raise SplitError(f"{benchmark} has no sessions: give at least the base session")
    training_set = _TrainingSet(labels, class_names, keys)
    session_of: dict[int, int] = {}
    resolved = []
    for number, session in enumerate(plan):
        place = f"{benchmark}, session {number}"
        found = training_set.resolve(place, session)
        for label in found.classes:
            if label in session_of:
                raise SplitError(
                    f"{place}: class '{class_names[label]}' came in session {session_of[label]} "
                    "already: a class belongs to one session"
                )
            session_of[label] = number
        resolved.append(found)
    return resolved


class _TrainingSet:
    """Look up classes and images by name."""

    def __init__(
        self, labels: Sequence[int], class_names: Sequence[str], keys: Sequence[str]
    ) -> None:
        self.labels = labels
        self.class_names = class_names
        self.counts = Counter(labels)
        self.label_of = {name: label for label, name in enumerate(class_names)}
        self.index_of = {key: index for index, key in enumerate(keys)}

    def resolve(self, place: str, session: SessionPlan) -> ResolvedSession:
        """Return one session as numbers; `place` is what messages begin with."""
        repeated = [name for name, times in Counter(session.classes).items() if times > 1]
        if repeated:
            raise SplitError(f"{place}: class '{repeated[0]}' is named twice: keep it once")
        for name in session.classes:
            if name not in self.label_of:
                raise UnknownName("class", name, self.label_of, place)
        classes = tuple(self.label_of[name] for name in session.classes)
        if session.images:
            return self._resolve_images(place, session, classes)
        if not classes:
            raise SplitError(f"{place} has no classes: name its classes, or its images")
        return ResolvedSession(classes, None, self._resolve_shots(place, session))

    def _resolve_shots(self, place: str, session: SessionPlan) -> tuple[int | None, ...]:
        if isinstance(session.shots, Mapping):
            for name in session.shots:
                if name not in session.classes:
                    raise UnknownName("class of the session", name, session.classes, place)
        shots = []
        for name in session.classes:
            shot, there = session.shot(name), self.counts[self.label_of[name]]
            if shot is not None and shot < 1:
                raise SplitError(f"{place}: shots must be at least 1, not {shot}")
            if there < (shot or 1):
                raise SplitError(
                    f"{place}: class '{name}' has {there} training images, and {shot or 1} are "
                    "needed: add images, or lower its shots"
                )
            shots.append(shot)
        return tuple(shots)

    def _resolve_images(
        self, place: str, session: SessionPlan, classes: tuple[int, ...]
    ) -> ResolvedSession:
        if session.shots is not None:
            raise SplitError(
                f"{place} names its images, so that no shots are drawn: leave out shots or images"
            )
        images = tuple(self._find_image(place, image) for image in session.images)
        index, times = Counter(images).most_common(1)[0]
        if times > 1:
            name = session.images[images.index(index)]
            raise SplitError(f"{place}: image {name} is named {times} times: keep it once")
        shown = tuple(dict.fromkeys(self.labels[index] for index in images))
        if classes and set(classes) != set(shown):
            wrong = sorted(self.class_names[label] for label in set(classes) ^ set(shown))
            raise SplitError(
                f"{place}: its classes and the classes of its images differ in "
                f"{', '.join(wrong)}: name images of all its classes and of no others"
            )
        return ResolvedSession(classes or shown, images)

    def _find_image(self, place: str, image: str | int) -> int:
        if isinstance(image, int):
            if not 0 <= image < len(self.labels):
                raise SplitError(
                    f"{place}: there is no training image {image}: "
                    f"their positions are 0 … {len(self.labels) - 1}"
                )
            return image
        if image not in self.index_of:
            raise SplitError(
                f"{place}: image {image} is not among the {len(self.index_of):,} training images: "
                "add it, or leave it out"
            )
        return self.index_of[image]


def shape(sessions: Sequence[ResolvedSession]) -> tuple[int, int, int]:
    """Return the base classes, and the most classes and shots of any new session."""
    base, *new = sessions
    way = max((len(session.classes) for session in new), default=1)
    shots = [
        -(-len(session.images) // len(session.classes))
        if session.images is not None
        else max(shot or 1 for shot in session.shots)
        for session in new
    ]
    return len(base.classes), way, max(shots, default=1)


def describe(sessions: Sequence[ResolvedSession], class_names: Sequence[str]) -> str:
    """Name a plan in a result: its sizes, and a hash of its classes, shots and images."""
    base, *new = sessions
    sizes = [len(session.classes) for session in new]
    later = ", ".join(map(str, sizes))
    if len(sizes) > 1 and len(set(sizes)) == 1:
        later = f"{len(sizes)} × {sizes[0]}"
    content = [
        ([class_names[label] for label in session.classes], session.images, session.shots)
        for session in sessions
    ]
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:8]
    then = f", then {later}" if new else ""
    return f"{len(base.classes)} base{then}, sessions {digest}"
