"""Test the classifier of the own recipe: whitened means, the new ones of corrected length."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, NotFittedError
from fewmore.methods import find
from fewmore.methods.base import Recipe
from fewmore.methods.evolve import Config, Evolve, correct_length
from fewmore.training.runtime import Runtime

Fitted = Callable[..., Evolve]


@pytest.fixture
def fitted(
    tiny_task: Task, sessions: list[ImageSet], small_recipe: Callable[..., Recipe]
) -> Fitted:
    """Return a function that learns two sessions with given settings."""

    def fit(*settings: str) -> Evolve:
        recipe = small_recipe("quick", tiny_task.benchmark, "evolve", *settings)
        method = find("evolve").build(recipe, Runtime(), 0)
        assert isinstance(method, Evolve)
        method.fit(sessions[0])
        method.learn(sessions[1])
        return method

    return fit


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to length 1."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def expected_scores(
    views: list[dict[str, np.ndarray]],
    labels: dict[str, np.ndarray],
    power: float,
    shrinkage: float,
    share: float,
) -> np.ndarray:
    """Compute the scores of test images, image by image, from features of each view."""
    total: Any = 0
    for features in views:
        raised = {name: of**power for name, of in features.items()}  # none is negative
        base, new, test = (unit(raised[name]) for name in ("base", "new", "test"))
        means = np.array([base[labels["base"] == c].mean(0) for c in range(4)])
        rest = base - means[labels["base"]]
        covariance = rest.T @ rest / (len(base) - 4)
        d = len(covariance)
        shrunk = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / d * np.eye(d)
        variances, directions = np.linalg.eigh(shrunk)
        root = directions @ np.diag(variances**-0.5) @ directions.T
        base, new, test = (unit(part @ root) for part in (base, new, test))
        means = np.array([base[labels["base"] == c].mean(0) for c in range(4)])
        variance = np.mean(np.sum((base - means[labels["base"]]) ** 2, 1))
        prototypes = list(unit(means))
        for c in range(2):
            shots = new[labels["new"] == c]
            mean = shots.mean(0)
            squared = mean @ mean
            prototypes.append(
                mean / np.sqrt(max(squared - share * variance / len(shots), 0.05 * squared))
            )
        total += 16 * test @ np.array(prototypes).T / len(views)
    return total


@pytest.mark.parametrize(
    ("power", "shrinkage", "share"), [(0.75, 0.2, 0.6), (0.5, 0.5, 0.0), (1.0, 0.1, 1.0)]
)
def test_scores_are_cosines_of_whitened_features(
    power: float,
    shrinkage: float,
    share: float,
    fitted: Fitted,
    tiny_task: Task,
    sessions: list[ImageSet],
) -> None:
    method = fitted(f"power={power}", f"shrinkage={shrinkage}", f"correction={share}")
    images = {"base": sessions[0], "new": sessions[1], "test": tiny_task.test}
    parts = {name: method.split_views(method.embed(of).double()) for name, of in images.items()}
    count = len(parts["base"])
    assert count == 4
    views = [{name: of[view].numpy() for name, of in parts.items()} for view in range(count)]
    labels = {name: of.labels.numpy() for name, of in images.items()}
    expected = expected_scores(views, labels, power, shrinkage, share)
    scores = method.scores(tiny_task.test).double().numpy()
    assert np.allclose(scores, expected, atol=2e-3)


def test_without_correction_new_prototypes_have_length_one(fitted: Fitted) -> None:
    plain, corrected = fitted("correction=0"), fitted("correction=1")
    lengths = [
        torch.stack([part.norm(dim=1) for part in m.split_views(m.network.classifier.prototypes)])
        for m in (plain, corrected)
    ]
    assert torch.allclose(lengths[0], torch.ones_like(lengths[0]), atol=1e-5)
    assert torch.allclose(lengths[1][:, :4], lengths[0][:, :4], atol=1e-5)
    assert (lengths[1][:, 4:] > lengths[0][:, 4:]).all()


def test_the_corrected_length_is_that_of_a_mean_of_many_images() -> None:
    generator = torch.Generator().manual_seed(0)
    center = torch.nn.functional.normalize(torch.randn(64, generator=generator), dim=0)
    noise = 0.1 * torch.randn(20_000, 5, 64, generator=generator)
    draws = torch.nn.functional.normalize(center + noise, dim=2)
    mean = draws.flatten(0, 1).mean(0)
    variance = (draws - mean).square().sum(2).mean()
    few = correct_length(draws.mean(1), variance / 5)
    # Cosines with the mean of many: unbiased by the number of images a mean is of.
    on_average = (few @ torch.nn.functional.normalize(mean, dim=0)).mean()
    assert abs(float(on_average) - 1) < 0.01
    uncorrected = torch.nn.functional.normalize(draws.mean(1), dim=1)
    assert float((uncorrected @ torch.nn.functional.normalize(mean, dim=0)).mean()) < 0.96


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"power": 0.0}, "power must lie in"),
        ({"shrinkage": 0.0}, "shrinkage must lie in"),
        ({"correction": 1.5}, "correction must lie in"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**settings)


def test_nothing_is_whitened_before_it_is_fitted(
    tiny_task: Task, small_recipe: Callable[..., Recipe]
) -> None:
    recipe = small_recipe("quick", tiny_task.benchmark, "evolve")
    method = find("evolve").build(recipe, Runtime(), 0)
    with pytest.raises(NotFittedError, match="call fit"):
        _ = method.whitening
    with pytest.raises(NotFittedError, match="call fit"):
        _ = method.variances
