"""Split and Session: which class, and which images of it, in which session.

A split is either read from the official lists or drawn from a seed; either way it is plain index tensors into the
training set, so a run can be repeated from the split's name alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import SplitError


@dataclass(frozen=True)
class Session:
    """What arrives at once: its classes, in order, and the training images shown of them."""

    classes: tuple[int, ...]
    images: Tensor  # (n,) positions in the training set

    def of(self, train: ImageSet) -> ImageSet:
        """The session's own images and nothing else, its classes numbered from 0."""
        return train.select(self.images).only(self.classes)


@dataclass(frozen=True)
class Split:
    """The base session, then the new ones."""

    name: str  # "official", or how it was drawn
    sessions: tuple[Session, ...]

    def seen(self, session: int) -> tuple[int, ...]:
        """All classes up to and including a session, in the order they came."""
        return tuple(c for s in self.sessions[: session + 1] for c in s.classes)


def class_order(classes: int, seed: int | None) -> tuple[int, ...]:
    """Label order, or a shuffle of it that depends on the seed alone."""
    if seed is None:
        return tuple(range(classes))
    return tuple(torch.randperm(classes, generator=torch.Generator().manual_seed(seed)).tolist())


def draw(
    train: ImageSet, base: int, way: int, shot: int, seed: int = 0, order: int | None = None
) -> Split:
    """All images of `base` classes, then sessions of `way` classes with `shot` images each, drawn from a seed."""
    classes = len(train.class_names)
    wrong = [
        f"{name} must be at least 1, not {value}"
        for name, value in (("base", base), ("way", way), ("shot", shot))
        if value < 1
    ]
    if not wrong and base > classes:
        wrong.append(
            f"{base} base classes were asked for, but there are {classes} classes: use --base {classes} or less"
        )
    elif not wrong and (classes - base) % way:
        even = [w for w in range(1, classes - base + 1) if (classes - base) % w == 0]
        wrong.append(
            f"{classes - base} classes are left after {base} base classes, which sessions of {way} do not divide: "
            f"use --way {min(even, key=lambda w: abs(w - way))}"
        )
    if wrong:
        raise SplitError("; ".join(wrong))
    numbers = class_order(classes, order)
    groups = [numbers[:base], *(numbers[i : i + way] for i in range(base, classes, way))]
    labels = train.labels.cpu()
    sessions = []
    for index, group in enumerate(groups):
        images = []
        for c in group:
            own = (labels == c).nonzero().squeeze(1)
            need = 1 if index == 0 else shot
            if len(own) < need:
                raise SplitError(
                    f"class '{train.class_names[c]}' has {len(own)} training images, and session {index} needs {need} of it: "
                    f"add images, lower --shot, or change --base or --class-order so that it is not a new class"
                )
            if index:  # a draw of its own for each class: it does not depend on the other classes
                generator = torch.Generator().manual_seed(seed * 1_000_003 + c)
                own = own[torch.randperm(len(own), generator=generator)[:shot]]
            images.append(own)
        sessions.append(Session(tuple(group), torch.cat(images)))
    shuffled = "" if order is None else f", class order {order}"
    return Split(f"draw {seed}: {base} base, {way}-way {shot}-shot{shuffled}", tuple(sessions))


def from_lists(train: ImageSet, lists: Sequence[Tensor]) -> Split:
    """The official split: one list of training positions a session; a session's classes in the order of their labels."""
    labels = train.labels.cpu()
    sessions: list[Session] = []
    met: dict[int, int] = {}
    for index, images in enumerate(lists):
        classes = sorted(set(labels[images].tolist()))
        for c in classes:
            if c in met:
                raise SplitError(
                    f"class '{train.class_names[c]}' is in session {met[c]} and again in session {index}: sessions must not share classes; "
                    f"check the session lists, or remove them to have a split drawn"
                )
            met[c] = index
        sessions.append(Session(tuple(classes), images))
    return Split("official", tuple(sessions))
