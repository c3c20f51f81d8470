"""Simulate sessions on held-out base images: some classes are new, and have few images.

n: images   C: classes   q: queries
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fewmore.classifier.fitting.base import BaseFeatures

SHOTS = (1, 5)  # images of each new class
NEW_SHARE = 1 / 3  # of the classes are new ones
ENOUGH_QUERIES = 600  # for each number of shots; fewer held-out images are asked for repeatedly
MAX_REPEATS = 5


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
