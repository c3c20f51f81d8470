"""The rehearsal on base classes."""

import dataclasses

import pytest
import torch

from fewmore.data.benchmarks import Benchmark, Task
from fewmore.data.splits import draw
from fewmore.errors import SplitError
from fewmore.research.validation import pretend


@pytest.fixture
def task(tiny_images, tiny_transform) -> Task:
    benchmark = Benchmark(
        "tiny", "Colours", 15, 9, 2, 3, "resnet8", False, tiny_transform, lists="tiny"
    )
    train = tiny_images(15, 20)
    return Task(benchmark, train, tiny_images(15, 5, seed=1), draw(train, 9, 2, 3))


def contents(images) -> list[bytes]:
    return [images.image(i).numpy().tobytes() for i in range(len(images))]


def test_it_is_made_of_the_base_session_alone(task):
    rehearsal = pretend(task)
    base = task.split.sessions[0].of(task.train)
    assert rehearsal.train.class_names == rehearsal.test.class_names == base.class_names
    assert sorted(contents(rehearsal.train) + contents(rehearsal.test)) == sorted(contents(base)), (
        "every image once"
    )
    assert rehearsal.test.counts().tolist() == [2] * 9
    assert rehearsal.train.counts().tolist() == [18] * 9


def test_a_third_of_the_classes_is_new(task):
    rehearsal = pretend(task)
    assert [len(s.classes) for s in rehearsal.split.sessions] == [7, 2], (
        "three classes are one session of two ways, and one that stays"
    )
    assert [len(s.images) for s in rehearsal.split.sessions] == [7 * 18, 2 * 3]
    assert (rehearsal.benchmark.classes, rehearsal.benchmark.base, rehearsal.benchmark.lists) == (
        9,
        7,
        None,
    )
    assert rehearsal.split.name.startswith("pretend, draw 0")


def test_the_seed_decides(task):
    one, again, other = pretend(task), pretend(task), pretend(task, 1)
    assert torch.equal(one.test.storage, again.test.storage)
    assert not torch.equal(one.test.storage, other.test.storage)


def test_too_few_classes(task):
    few = dataclasses.replace(task, split=draw(task.train, 1, 2, 3))
    with pytest.raises(
        SplitError, match="1 base classes are too few to pretend that some of them are new"
    ):
        pretend(few)
