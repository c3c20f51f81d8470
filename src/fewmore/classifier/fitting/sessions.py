"""Simulate sessions on held-out base images: some classes are new, and have few images.

n: images   C: classes   q: queries
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TypeVar

import torch
from torch import Generator, Tensor

from fewmore.classifier.fitting.base import BaseFeatures
from fewmore.data.threads import one_core_each, threaded_map

SHOTS = (1, 5)  # images of each new class
NEW_SHARE = 1 / 3  # of the classes are new ones
ENOUGH_QUERIES = 1800  # of each number of shots; fewer held-out images are asked for repeatedly
MAX_REPEATS = 5

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Session:
    """Say which base images are known, which are shots of new classes, and which are queries."""

    shots: int  # images of each new class; 0: no class is new
    rest: Tensor  # (n,) bool: images that are not held out
    known: Tensor  # (n,) bool: those of the old classes
    learnt: Tensor  # (n,) bool: those that old and new classes are learnt from
    queries: Tensor  # (q,): positions of the held-out images
    is_old: Tensor  # (C,) bool


def simulate_sessions(base: BaseFeatures, generator: Generator) -> Iterator[Session]:
    """Hold out each fold in turn: once with all classes, then with a third of them as new ones.

    A class that is too small to be held out is never new, and neither is one that would have no
    image left.
    """
    held_out = int((base.folds >= 0).sum())
    repeats = min(MAX_REPEATS, -(-ENOUGH_QUERIES // max(1, held_out)))
    for fold in base.fold_numbers:
        rest = base.folds != fold
        queries = (~rest).nonzero().squeeze(1)
        is_old = torch.ones(len(base.names), dtype=torch.bool, device=base.labels.device)
        yield Session(0, rest, rest, rest, queries, is_old)
        for _ in range(repeats):
            yield from _simulate(base, rest, queries, generator)


def _simulate(
    base: BaseFeatures, rest: Tensor, queries: Tensor, generator: Generator
) -> Iterator[Session]:
    """Draw new classes, and give them each number of shots; what is known is the same object."""
    eligible = torch.tensor(sorted(set(base.labels[base.folds >= 0].tolist())))
    order = torch.randperm(len(eligible), generator=generator)
    new = eligible[order[: min(len(base.names) - 1, round(NEW_SHARE * len(eligible)))]]
    is_old = torch.ones(len(base.names), dtype=torch.bool, device=base.labels.device)
    is_old[new.to(is_old.device)] = False
    known = rest & is_old[base.labels]
    images = []
    for label in new.tolist():
        of_class = ((base.labels == label) & rest).nonzero().squeeze(1)
        images.append(of_class[torch.randperm(len(of_class), generator=generator).to(of_class)])
    for shots in SHOTS:
        learnt = known.clone()
        for of_class in images:
            learnt[of_class[:shots]] = True
        yield Session(shots, rest, known, learnt, queries, is_old)


def map_alike(
    function: Callable[[list[Session]], list[R]],
    sessions: Sequence[Session],
    fitted: Callable[[Session], Tensor],
) -> list[R]:
    """Return what a function makes of the sessions, in their order.

    It is called with those together whose `fitted` images are the same object, so that what is
    fitted on them is fitted once. On a CPU each core has some of the calls.
    """
    alike = [list(group) for _, group in groupby(sessions, lambda session: id(fitted(session)))]
    if not sessions or sessions[0].rest.device.type != "cpu":
        return list(chain.from_iterable(map(function, alike)))
    with one_core_each():
        return list(chain.from_iterable(threaded_map(function, alike)))
