"""A rehearsal on the base session alone: where settings are chosen, as no test image and no new class may choose them.

Two thirds of the base classes play the base, the others arrive in sessions of the benchmark's ways and shots, and a tenth of every
class's training images is held out as the test. Afterwards a method is trained on all of the base with what was chosen.
"""

from dataclasses import replace

import torch

from fewmore.data import splits
from fewmore.data.benchmarks import Task
from fewmore.errors import SplitError

HELD_OUT = 10  # one image in so many


def pretend(task: Task, draw: int = 0) -> Task:
    """The rehearsal of a task, its held-out images and its shots drawn from a seed."""
    base = task.split.sessions[0].of(task.train).to("cpu")
    classes = len(base.class_names)
    way = min(task.benchmark.way, classes // 3)
    if way == 0:
        raise SplitError(
            f"{classes} base classes are too few to pretend that some of them are new: there must be at least 3"
        )
    new = classes // 3 // way * way
    shuffled = torch.randperm(len(base), generator=torch.Generator().manual_seed(draw))
    by_class = shuffled[torch.argsort(base.labels[shuffled], stable=True)]
    counts = base.counts()
    rank = torch.arange(len(base)) - (counts.cumsum(0) - counts)[base.labels[by_class]]
    held_out = rank < (counts // HELD_OUT)[base.labels[by_class]]
    train, test = (
        base.select(by_class[~held_out]).compact(),
        base.select(by_class[held_out]).compact(),
    )
    split = splits.draw(train, classes - new, way, task.benchmark.shot, draw)
    benchmark = replace(task.benchmark, classes=classes, base=classes - new, way=way, lists=None)
    return Task(benchmark, train, test, replace(split, name=f"pretend, {split.name}"))
