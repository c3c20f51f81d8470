"""Test the features that are pretrained weights as they are."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods import METHODS, find
from fewmore.methods.base import Method, Recipe
from fewmore.methods.network import Network
from fewmore.methods.pretrained import Features
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import class_means
from fewmore.research import recipes
from fewmore.training.embed import embed
from fewmore.training.runtime import Runtime

MakeRecipe = Callable[..., Recipe]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Write the weights of a backbone to a file."""
    path = tmp_path / "weights.pth"
    torch.save(build("resnet8", 5).state_dict(), path)
    return path


@pytest.fixture
def make(tiny_task: Task, small_recipe: MakeRecipe, weights: Path) -> Callable[[str], Method]:
    """Return a function that builds a method on pretrained features."""

    def make_method(name: str) -> Method:
        recipe = small_recipe("quick", tiny_task.benchmark, name, f"weights={weights}")
        recipe = replace(recipe, pretrain=Features(), features="pretrained")
        return find(name).build(recipe, Runtime(stage1_cache=weights.parent / "stage1"), 0)

    return make_method


def test_the_weights_stay_as_they_are_and_the_head_has_class_means(
    make: Callable[[str], Method], sessions: list[ImageSet], weights: Path
) -> None:
    method = make("decoupled-cosine")
    method.fit(sessions[0])
    network = method.network  # type: ignore[attr-defined]
    given = torch.load(weights)
    learnt = network.backbone.state_dict()
    assert all(torch.equal(learnt[name], given[name]) for name in learnt)
    features = embed(network.backbone, sessions[0], method.recipe.transform)
    means = class_means(features, sessions[0].labels, len(sessions[0].class_names))
    torch.testing.assert_close(network.classifier.prototypes.data, means)
    assert not (weights.parent / "stage1").exists(), "there is nothing to take over"


@pytest.mark.parametrize("name", ["cec", "lda", "teen", "finetune"])
def test_methods_learn_on_pretrained_features(
    name: str, make: Callable[[str], Method], sessions: list[ImageSet], tiny_task: Task
) -> None:
    method = make(name)
    for session in sessions[:2]:
        method.fit(session) if session is sessions[0] else method.learn(session)
    classes = sum(len(session.class_names) for session in sessions[:2])
    scores = method.scores(tiny_task.test)
    assert scores.shape == (len(tiny_task.test), classes)
    assert scores.isfinite().all()


def test_random_weights_are_refused(
    tiny_task: Task, small_recipe: MakeRecipe, sessions: list[ImageSet]
) -> None:
    recipe = small_recipe("quick", tiny_task.benchmark, "cec")
    recipe = replace(recipe, pretrain=Features(), features="pretrained")
    with pytest.raises(ConfigError, match="resnet8 has random weights: give pretrained ones"):
        Network(recipe, Runtime()).fit(sessions[0], "cosine", 0)


def test_settings_of_training_are_refused(tiny_task: Task) -> None:
    with pytest.raises(ConfigError, match="has no effect with features=pretrained"):
        recipes.recipe(
            "quick", tiny_task.benchmark, "cec", ["features=pretrained", "pretrain.lr=0.1"]
        )
    with pytest.raises(ConfigError, match="epochs must be at least 1, not 0"):
        recipes.recipe("quick", tiny_task.benchmark, "cec", ["pretrain.epochs=0"])
    assert "pretrained" not in METHODS
