"""Test TEEN's calibration against loops over classes."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods import find
from fewmore.methods.base import Recipe
from fewmore.methods.teen import Config
from fewmore.training.learn_session import class_prototypes
from fewmore.training.runtime import Runtime


def unit(vector: Tensor) -> Tensor:
    return vector / math.sqrt(float((vector * vector).sum()))


def calibrated(mean: Tensor, base: Tensor, alpha: float, temperature: float) -> Tensor:
    """Return the prototype of a new class, given its mean and those of the base classes."""
    mean, base = unit(mean), torch.stack([unit(row) for row in base])
    weights = [math.exp(temperature * float(mean @ row)) for row in base]
    similar = sum(weight * row for weight, row in zip(weights, base, strict=True))
    assert isinstance(similar, Tensor)
    return (1 - alpha) * mean + alpha * unit(similar)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_new_prototypes_are_moved_towards_base_classes(
    tiny_task: Task, sessions: list[ImageSet], small_recipe: Callable[..., Recipe], alpha: float
) -> None:
    recipe = small_recipe("quick", tiny_task.benchmark, "teen", f"alpha={alpha}")
    method = find("teen").build(recipe, Runtime(), 0)
    method.fit(sessions[0])
    backbone = method.network.backbone
    base = class_prototypes(backbone, sessions[0], recipe.transform)
    expected = [*base]
    for session in sessions[1:]:
        method.learn(session)
        means = class_prototypes(backbone, session, recipe.transform)
        expected += [calibrated(mean, base, alpha, 16) for mean in means]
    prototypes = method.network.classifier.prototypes.detach()
    assert torch.allclose(prototypes, torch.stack(expected), atol=1e-5)
    scores = method.scores(tiny_task.test)
    image = method.embed(tiny_task.test)[0]
    assert float(scores[0, 5]) == pytest.approx(16 * float(unit(image) @ unit(expected[5])), 1e-4)


def test_each_test_view_is_calibrated_by_itself(
    tiny_task: Task, sessions: list[ImageSet], small_recipe: Callable[..., Recipe]
) -> None:
    views = ("transform.test_views=plain,rot180", "transform.view_features=separate")
    recipe = small_recipe("quick", tiny_task.benchmark, "teen", "alpha=0.4", *views)
    method = find("teen").build(recipe, Runtime(), 0)
    method.fit(sessions[0])
    method.learn(sessions[1])
    backbone = method.network.backbone
    base = class_prototypes(backbone, sessions[0], recipe.transform)
    means = class_prototypes(backbone, sessions[1], recipe.transform)
    for part in (slice(0, 64), slice(64, 128)):
        expected = [calibrated(mean, base[:, part], 0.4, 16) for mean in means[:, part]]
        found = method.network.classifier.prototypes.detach()[4:, part]
        assert torch.allclose(found, torch.stack(expected), atol=1e-5)


def test_a_weight_beyond_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="alpha must lie in"):
        Config(alpha=1.5)
