"""Split the base classes into a small task of their own, for choosing settings.

No test image and no new class may choose a setting. So two thirds of the base classes play the
base, the others arrive in sessions of the benchmark's ways and shots, and a tenth of every class's
training images, at least one, is held out as the test set. Afterwards a method is trained on all
base classes with the chosen settings.
"""

from dataclasses import replace

import torch

from fewmore.data import splits
from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.errors import SplitError

HELD_OUT = 10  # one image in so many


def validation_task(task: Task, draw: int = 0) -> Task:
    """Return the validation split of a task; held-out images and shots are drawn from a seed."""
    base = task.split.sessions[0].select_from(task.train).to("cpu")
    classes = len(base.class_names)
    way = min(task.benchmark.way, classes // 3)
    if way == 0:
        raise SplitError(
            f"{classes} base classes are too few for a validation split, in which some of them "
            "are new: there must be at least 3"
        )
    new_classes = classes // 3 // way * way
    base_classes = classes - new_classes
    train, test = _hold_out(base, draw)
    fewest = int(train.class_counts()[base_classes:].min())
    shot = max(1, min(task.benchmark.shot, fewest))  # small classes have one image less
    split = splits.sample_split(train, base_classes, way, shot, draw)
    benchmark = replace(
        task.benchmark, classes=classes, base=base_classes, way=way, shot=shot, lists=None, plan=()
    )
    split = replace(split, name=f"validation, {split.name}{splits.order_of(task.split)}")
    return Task(benchmark, train, test, split, data_root=task.data_root)


def redraw_shots(task: Task, draw: int) -> Task:
    """Return a validation split with the same images held out and its shots drawn anew."""
    b = task.benchmark
    split = splits.sample_split(task.train, b.base, b.way, b.shot, draw)
    name = f"validation, {split.name}{splits.order_of(task.split)}"
    return replace(task, split=replace(split, name=name))


def _hold_out(images: ImageSet, seed: int) -> tuple[ImageSet, ImageSet]:
    """Return the images without a tenth of every class, at least one image, and that tenth."""
    shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    by_class = shuffled[torch.argsort(images.labels[shuffled], stable=True)]
    labels = images.labels[by_class]
    counts = images.class_counts()
    rank = torch.arange(len(images)) - (counts.cumsum(0) - counts)[labels]
    held_out = rank < (counts // HELD_OUT).clamp(min=1)[labels]
    train = images.select(by_class[~held_out]).compact()
    test = images.select(by_class[held_out]).compact()
    return train, test
