"""Test linear discriminants with the covariance of the base classes."""

from collections.abc import Callable

import numpy as np
import pytest

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods import find
from fewmore.methods.base import Recipe
from fewmore.methods.discriminant import Config
from fewmore.training.runtime import Runtime


def test_scores_are_log_probabilities_of_gaussian_classes(
    tiny_task: Task, sessions: list[ImageSet], small_recipe: Callable[..., Recipe]
) -> None:
    recipe = small_recipe("quick", tiny_task.benchmark, "lda", "shrinkage=0.2")
    method = find("lda").build(recipe, Runtime(), 0)
    method.fit(sessions[0])
    method.learn(sessions[1])

    def unit(images: ImageSet) -> np.ndarray:
        features = method.embed(images).double().numpy()
        return features / np.linalg.norm(features, axis=1, keepdims=True)

    base, new = unit(sessions[0]), unit(sessions[1])
    rest = []
    means = []
    for label in range(4):
        own = base[sessions[0].labels.numpy() == label]
        means.append(own.mean(0))
        rest += list(own - own.mean(0))
    means += [new[sessions[1].labels.numpy() == label].mean(0) for label in range(2)]
    covariance = np.array(rest).T @ np.array(rest) / (len(base) - 4)
    covariance = 0.8 * covariance + 0.2 * np.trace(covariance) / 64 * np.eye(64)
    test = unit(tiny_task.test)
    expected = np.array(
        [
            [
                x @ np.linalg.solve(covariance, mean) - mean @ np.linalg.solve(covariance, mean) / 2
                for mean in means
            ]
            for x in test
        ]
    )
    scores = method.scores(tiny_task.test).double().numpy()
    assert np.allclose(scores, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("shrinkage", [0, 1.5])
def test_a_covariance_that_cannot_be_inverted_is_refused(shrinkage: float) -> None:
    with pytest.raises(ConfigError, match="shrinkage must lie in"):
        Config(shrinkage=shrinkage)
