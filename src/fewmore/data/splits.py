"""Describe which classes, and which images of them, each session shows.

A split is read from the official session lists, sampled from a seed or planned by a user. It is
plain index tensors into the training set, so a run can be repeated from the name of its split.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewmore.data import plans
from fewmore.data.images import ImageSet
from fewmore.data.plans import SessionPlan
from fewmore.errors import SplitError
from fewmore.random import derive_seed

ORDER = ", class order "  # ends the name of a split of shuffled classes, before the seed


@dataclass(frozen=True)
class Session:
    """Hold the classes of one session, in order, and the training images that it shows."""

    classes: tuple[int, ...]
    indices: Tensor  # (n,) positions in the training set

    def select_from(self, train: ImageSet) -> ImageSet:
        """Select the session's images from the training set, with classes labelled from 0."""
        return train.select(self.indices).select_classes(self.classes)


@dataclass(frozen=True)
class Split:
    """Hold the base session and then the new ones."""

    name: str  # "official", or how it was sampled
    sessions: tuple[Session, ...]

    def seen(self, session: int) -> tuple[int, ...]:
        """Return all classes up to and including a session, in the order they came."""
        return tuple(c for s in self.sessions[: session + 1] for c in s.classes)


def class_order(classes: int, seed: int | None) -> tuple[int, ...]:
    """Return all labels in order, or shuffled by a seed."""
    if seed is None:
        return tuple(range(classes))
    return tuple(torch.randperm(classes, generator=_generator(seed)).tolist())


def _generator(seed: int) -> torch.Generator:
    """Make a generator of any whole number; PyTorch takes 64 bits."""
    return torch.Generator().manual_seed(seed % 2**64)


def sample_split(
    train: ImageSet, base: int, way: int, shot: int, seed: int = 0, order: int | None = None
) -> Split:
    """Sample a split: all images of the base classes, then sessions of `way` classes.

    Args:
        train: the training set.
        base: the number of base classes.
        way: the number of new classes per session.
        shot: the number of training images per new class.
        seed: decides which images are shown of a new class.
        order: shuffles the classes by this seed; by default they come in the order of labels.
    """
    classes = len(train.class_names)
    check_shape(classes, base, way, shot)
    labels = class_order(classes, order)
    groups = [labels[:base], *(labels[i : i + way] for i in range(base, classes, way))]
    train_labels = train.labels.cpu()
    sessions = []
    for number, group in enumerate(groups):
        indices = []
        for label in group:
            members = _images_of(label, train_labels)
            needed = 1 if number == 0 else shot
            if len(members) < needed:
                raise SplitError(
                    f"class '{train.class_names[label]}' has {len(members)} training images, "
                    f"and session {number} needs {needed} of it: add images, lower --shot, "
                    f"or change --base or --class-order so that it is not a new class"
                )
            if number:
                members = _sample_shots(members, shot, seed * 1_000_003 + label)
            indices.append(members)
        sessions.append(Session(tuple(group), torch.cat(indices)))
    shuffled = "" if order is None else f"{ORDER}{order}"
    return Split(f"draw {seed}: {base} base, {way}-way {shot}-shot{shuffled}", tuple(sessions))


def _images_of(label: int, train_labels: Tensor) -> Tensor:
    """Return the indices of a class's training images."""
    return (train_labels == label).nonzero().squeeze(1)


def _sample_shots(images: Tensor, shot: int, class_seed: int) -> Tensor:
    """Sample some images of a class; its seed is its own, so no other class matters for them."""
    return images[torch.randperm(len(images), generator=_generator(class_seed))[:shot]]


def order_of(split: Split) -> str:
    """Return how the name of a split ends where its classes are shuffled; else nothing."""
    return "".join(split.name.rpartition(ORDER)[1:]) if ORDER in split.name else ""


def check_shape(classes: int, base: int, way: int, shot: int) -> None:
    """Raise SplitError where base, way and shot do not fit the number of classes."""
    problems = [
        f"{name} must be at least 1, not {value}"
        for name, value in (("base", base), ("way", way), ("shot", shot))
        if value < 1
    ]
    new = classes - base
    if not problems and new < 0:
        problems.append(
            f"{base} base classes were asked for, but there are {classes} classes: "
            f"use --base {classes} or less"
        )
    elif not problems and new % way:
        divisors = [w for w in range(1, new + 1) if new % w == 0]
        left = "1 class is" if new == 1 else f"{new} classes are"
        problems.append(
            f"{left} left after {base} base classes, which sessions of {way} "
            f"do not divide: use --way {min(divisors, key=lambda w: abs(w - way))}"
        )
    if problems:
        raise SplitError("; ".join(problems))


def planned_split(
    benchmark: str,
    train: ImageSet,
    plan: Sequence[SessionPlan],
    keys: Sequence[str] = (),
    seed: int | None = None,
) -> Split:
    """Make the split of a plan.

    Which images of a class are drawn depends on the seed and the class's name, on nothing else.

    Args:
        benchmark: what messages call it.
        train: the training set.
        plan: the sessions, the base session first.
        keys: the name of each training image, if they have names.
        seed: decides which images are drawn, by default 0; a plan that names all its images
            has none.
    """
    train_labels = train.labels.cpu()
    resolved = plans.resolve(benchmark, plan, train_labels.tolist(), train.class_names, keys)

    def draw(label: int, shot: int | None) -> Tensor:
        members = _images_of(label, train_labels)
        if shot is None:
            return members
        class_seed = derive_seed(seed or 0, "planned shots", train.class_names[label])
        return _sample_shots(members, shot, class_seed)

    sessions = []
    for session in resolved:
        if session.images is not None:
            indices = torch.tensor(session.images, dtype=torch.int64)
        else:
            indices = torch.cat(list(map(draw, session.classes, session.shots)))
        sessions.append(Session(session.classes, indices))
    is_drawn = any(shot is not None for session in resolved for shot in session.shots)
    if seed is not None and not is_drawn:
        raise SplitError(
            f"{benchmark} draws no images, its sessions name all that they show: "
            "leave out --draw and --draws"
        )
    name = f"draw {seed or 0}" if is_drawn else "named images"
    return Split(f"{name}: {plans.describe(resolved, train.class_names)}", tuple(sessions))


def split_from_lists(train: ImageSet, lists: Sequence[Tensor]) -> Split:
    """Make the official split from one index tensor per session.

    The classes of a session come in the order of their labels.
    """
    labels = train.labels.cpu()
    sessions: list[Session] = []
    session_of: dict[int, int] = {}
    for number, indices in enumerate(lists):
        classes = sorted(set(labels[indices].tolist()))
        for label in classes:
            if label in session_of:
                raise SplitError(
                    f"class '{train.class_names[label]}' is in session {session_of[label]} "
                    f"and again in session {number}: sessions must not share classes; "
                    f"check the session lists, or remove them to have a split drawn"
                )
            session_of[label] = number
        sessions.append(Session(tuple(classes), indices))
    return Split("official", tuple(sessions))
