"""Provide the small world of the exam: images, a task of them, and recipes that train quickly.

A class is a color with a pattern. There are 4 base classes with 12 images of 8 × 8 pixels each, two
sessions of 2 classes with 3 images each, and 5 test images a class.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Benchmark, Task
from fewmore.data.images import ImageSet
from fewmore.data.splits import sample_split
from fewmore.methods import METHODS, MethodInfo, find
from fewmore.methods.base import Method, Recipe
from fewmore.research import recipes
from fewmore.training.checkpoint import State
from fewmore.training.runtime import Runtime

TRANSFORM = Transform(8, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), "pad", pad=1, flip=False)
SMALL_SETTINGS = (
    "pretrain.epochs=2",
    "pretrain.batch=24",
    "pretrain.schedule=milestones",
    "pretrain.warm_up=0",
    "pretrain.milestones=1",
    "pretrain.queue=32",
    "session.epochs=2",
    "session.batch=16",
    "balanced.epochs=2",
    "exemplars.per_class=4",
    "nodes=20",  # of TOPIC's neural gas
    "rounds=4",
    "pseudo.base_way=2",
    "pseudo.new_way=2",
    "pseudo.base_query=2",
    "pseudo.new_query=2",
    "pseudo.episodes=4",
)


def make_images(classes: int = 4, per_class: int = 6, size: int = 8, seed: int = 0) -> ImageSet:
    """Make images, class by class.

    A class is a color with a pattern, the same for every seed. The seed decides the noise that
    each image adds.
    """
    noise = np.random.default_rng(seed)
    images = []
    for number in range(classes):
        pattern = np.random.default_rng(number)
        color = np.array([60.0, 190.0])[[number & 1, number >> 1 & 1, number >> 2 & 1]]
        coarse = color[:, None, None] + pattern.normal(0, 30, (3, 4, 4))
        nearest = np.arange(size) * 4 // size
        whole = coarse[:, nearest][:, :, nearest] + noise.normal(0, 12, (per_class, 3, size, size))
        images.append(whole.round().clip(0, 255).astype(np.uint8))
    labels = torch.arange(classes).repeat_interleave(per_class)
    return ImageSet.from_images(
        np.concatenate(images), labels, [f"class {number}" for number in range(classes)]
    )


def make_task() -> Task:
    """Make the task: 4 base classes, and two sessions of 2-way 3-shot."""
    benchmark = Benchmark("tiny", "Colours", 8, 4, 2, 3, "resnet8", False, TRANSFORM)
    train = make_images(8, 12, seed=0)
    return Task(benchmark, train, make_images(8, 5, seed=1), sample_split(train, 4, 2, 3))


def make_recipe(
    name: str, benchmark: Benchmark, method: str, settings: Sequence[str] = ()
) -> Recipe:
    """Make a recipe that trains in no time; settings that the method lacks are left out."""
    # Features are those of the method alone: the others are here to have all small settings.
    features, rest = recipes.take_features([None], settings)
    (recipe, _), *_ = recipes.recipes_for(
        name,
        benchmark,
        [method, *METHODS],
        [*SMALL_SETTINGS, *rest],
        [*features, *(None for _ in METHODS)],
    )
    return recipe


@dataclass(frozen=True)
class Case:
    """Hold a method to examine, and the images that it sees."""

    info: MethodInfo
    recipe: Recipe
    task: Task
    base: ImageSet
    sessions: tuple[ImageSet, ...]
    test: ImageSet
    ordered: bool  # whether the order of the classes matters for what is learnt
    results: dict[int, tuple[State, Tensor]] = field(default_factory=dict)  # by sessions learnt

    def build(self, seed: int = 0, runtime: Runtime | None = None) -> Method:
        """Construct the method."""
        return self.info.build(self.recipe, runtime or Runtime(), seed)

    def fitted(self, sessions: int = 0, seed: int = 0) -> Method:
        """Construct the method and let it learn the base session and some new ones."""
        method = self.build(seed)
        method.fit(self.base)
        for session in self.sessions[:sessions]:
            method.learn(session)
        return method

    def expected(self, sessions: int) -> tuple[State, Tensor]:
        """Return state and scores after some sessions; computed once, as many checks need them."""
        if sessions not in self.results:
            method = self.fitted(sessions)
            self.results[sessions] = (method.state(), method.scores(self.test))
        return self.results[sessions]

    def restored(self, state: State) -> Method:
        """Construct the method and restore a state."""
        method = self.build()
        method.restore(state)
        return method

    def classes(self, sessions: int) -> int:
        """Return how many classes are known after some sessions."""
        known = self.sessions[:sessions]
        return len(self.base.class_names) + sum(len(s.class_names) for s in known)


def make_case(method: str, settings: Sequence[str] = (), ordered: bool | None = None) -> Case:
    """Prepare the exam of a method, given by its name or as file.py:Class."""
    info, task = find(method), make_task()
    recipe = make_recipe("quick", task.benchmark, method, settings)
    base, *sessions = (s.select_from(task.train).compact() for s in task.split.sessions)
    ordered = info.ordered if ordered is None else ordered
    return Case(info, recipe, task, base, tuple(sessions), task.test, ordered)
