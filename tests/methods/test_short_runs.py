"""Test that methods with features of their own run a few glyphs through the whole protocol."""

from dataclasses import replace

import pytest

from fewmore.data import glyphs
from fewmore.data.benchmarks import BENCHMARKS, Task
from fewmore.data.splits import sample_split
from fewmore.methods import find
from fewmore.research import protocol
from fewmore.research.recipes import recipe
from fewmore.training.runtime import Runtime

CLASSES = range(12)  # of 100


@pytest.fixture(scope="module")
def few_glyphs() -> Task:
    """Make a task of 8 base classes and two sessions of 2-way 5-shot."""
    train, test = (
        glyphs.render(split, count).select_classes(CLASSES).compact()
        for split, count in (("train", 16), ("test", 4))
    )
    benchmark = replace(BENCHMARKS["glyphs"], classes=12, base=8, way=2)
    return Task(benchmark, train, test, sample_split(train, 8, 2, 5))


@pytest.mark.parametrize("name", ["fact", "s3c", "savc", "motic"])
def test_a_short_run_of_glyphs(few_glyphs: Task, name: str) -> None:
    settings = ("pretrain.epochs=2", "pretrain.batch=32")
    made = recipe("quick", few_glyphs.benchmark, name, settings)
    method = find(name).build(made, Runtime(), 0)
    outcome = protocol.run(method, few_glyphs, Runtime())
    assert (outcome.sessions, method.sessions, method.images_kept()) == (3, 3, 0)
    features = method.embed(few_glyphs.test)
    assert method.scores_of(features).shape == (48, 12)
    views = {"fact": 1, "s3c": 4, "savc": 2, "motic": 2}[name]
    assert features.shape == (48, 64 * views)
    assert ("one_view" in method.also_scores_of(features)) == (views > 1)
