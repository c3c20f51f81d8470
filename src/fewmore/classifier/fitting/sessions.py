"""Simulate sessions on held-out base images: some classes are new, and have few images.

n: images   C: classes   q: queries
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fewmore.classifier.fitting.base import BaseFeatures

SHOTS = (0, 1, 5)  # images of each new class; 0: no class is new
NEW_SHARE = 1 / 3  # of the classes are new ones
ENOUGH_QUERIES = 600  # for each number of shots; fewer held-out images are asked for repeatedly
MAX_REPEATS = 5


@dataclass(frozen=True, eq=False)
class Session:
    """Say which base images are known, which are shots of new classes, and which are queries."""

    shots: int
    rest: Tensor  # (n,) bool: images that are not held out
    known: Tensor  # (n,) bool: those of the old classes
    learnt: Tensor  # (n,) bool: those that old and new classes are learnt from
    queries: Tensor  # (q,): positions of the held-out images
    is_old: Tensor  # (C,) bool


def simulate_sessions(base: BaseFeatures, generator: Generator) -> Iterator[Session]:
    """Hold out each fold in turn, and let a third of the classes be new ones.

    A class that is too small to be held out is never new, and neither is one that would have no
    image left.
    """
    held_out = int((base.folds >= 0).sum())
    repeats = min(MAX_REPEATS, -(-ENOUGH_QUERIES // max(1, held_out)))
    for shots in SHOTS:
        for _ in range(repeats if shots else 1):
            for fold in base.fold_numbers:
                yield _simulate(base, fold, shots, generator)


def _simulate(base: BaseFeatures, fold: int, shots: int, generator: Generator) -> Session:
    held = base.folds == fold
    is_old = torch.ones(len(base.names), dtype=torch.bool, device=base.labels.device)
    learnt = ~held
    if shots:
        eligible = torch.tensor(sorted(set(base.labels[base.folds >= 0].tolist())))
        order = torch.randperm(len(eligible), generator=generator)
        new = eligible[order[: min(len(base.names) - 1, round(NEW_SHARE * len(eligible)))]]
        is_old[new.to(is_old.device)] = False
        for label in new.tolist():
            others = ((base.labels == label) & ~held).nonzero().squeeze(1)
            order = torch.randperm(len(others), generator=generator).to(others.device)
            learnt[others[order[shots:]]] = False
    known = learnt & is_old[base.labels]
    return Session(shots, ~held, known, learnt, held.nonzero().squeeze(1), is_old)
