"""Test the validation split of the base classes."""

import dataclasses

import pytest
import torch

from fewmore.data.benchmarks import Benchmark, Task
from fewmore.data.plans import SessionPlan
from fewmore.data.splits import planned_split, sample_split
from fewmore.errors import SplitError
from fewmore.research.validation import redraw_shots, validation_task


@pytest.fixture
def task(tiny_images, tiny_transform) -> Task:
    benchmark = Benchmark(
        "tiny", "Colours", 15, 9, 2, 3, "resnet8", False, tiny_transform, lists="tiny"
    )
    train = tiny_images(15, 20)
    return Task(benchmark, train, tiny_images(15, 5, seed=1), sample_split(train, 9, 2, 3))


def contents(images) -> list[bytes]:
    return [images.image(i).numpy().tobytes() for i in range(len(images))]


def test_it_is_made_of_the_base_session_alone(task):
    validation = validation_task(task)
    base = task.split.sessions[0].select_from(task.train)
    assert validation.train.class_names == validation.test.class_names == base.class_names
    assert sorted(contents(validation.train) + contents(validation.test)) == sorted(
        contents(base)
    ), "every image once"
    assert validation.test.class_counts().tolist() == [2] * 9
    assert validation.train.class_counts().tolist() == [18] * 9


def test_a_third_of_the_classes_is_new(task):
    validation = validation_task(task)
    assert [len(s.classes) for s in validation.split.sessions] == [7, 2], (
        "three classes are one session of two ways, and one that stays"
    )
    assert [len(s.indices) for s in validation.split.sessions] == [7 * 18, 2 * 3]
    benchmark = validation.benchmark
    assert (benchmark.classes, benchmark.base, benchmark.lists) == (9, 7, None)
    assert validation.split.name.startswith("validation, draw 0")


def test_the_seed_decides(task):
    first = validation_task(task)
    assert torch.equal(first.test.storage, validation_task(task).test.storage)
    assert not torch.equal(first.test.storage, validation_task(task, 1).test.storage)


def test_too_few_classes(task):
    few = dataclasses.replace(task, split=sample_split(task.train, 1, 2, 3))
    with pytest.raises(SplitError, match="too few"):
        validation_task(few)


def test_small_classes_have_fewer_shots(task, tiny_images):
    train = tiny_images(15, 3)
    small = dataclasses.replace(task, train=train, split=sample_split(train, 9, 2, 3))
    validation = validation_task(small)
    assert validation.train.class_counts().tolist() == [2] * 9, "one image of three is held out"
    assert validation.benchmark.shot == 2
    assert [len(s.indices) for s in validation.split.sessions] == [14, 4]


def test_planned_sessions_are_left_behind(task):
    names = task.train.class_names
    plan = (SessionPlan(names[:9]), SessionPlan(names[9:], 2))
    benchmark = dataclasses.replace(task.benchmark, plan=plan, way=6)
    split = planned_split("tiny", task.train, plan)
    validation = validation_task(dataclasses.replace(task, benchmark=benchmark, split=split))
    assert validation.benchmark.plan == ()
    assert validation.train.class_names == names[:9]
    assert [len(s.classes) for s in validation.split.sessions] == [6, 3]


def test_the_name_says_the_order_of_the_classes(task):
    shuffled = dataclasses.replace(task, split=sample_split(task.train, 9, 2, 3, order=4))
    validation = validation_task(shuffled)
    assert validation.split.name == "validation, draw 0: 7 base, 2-way 3-shot, class order 4"
    assert redraw_shots(validation, 1).split.name.endswith("2-way 3-shot, class order 4")
