"""Test LUCIR: its losses, frozen prototypes and nearest means."""

import copy
import dataclasses
import math

import pytest
import torch

from fewmore.errors import ConfigError
from fewmore.methods import lucir
from fewmore.methods.lucir import LUCIR, Config, ranking_loss
from fewmore.methods.recipe import override
from fewmore.nn.similarity import TEMPERATURE
from fewmore.training.learn_session import SessionConfig
from fewmore.training.runtime import Runtime


@pytest.fixture
def recipe(tiny_recipe):
    session = SessionConfig(epochs=6, batch=16, lr=0.01)
    return dataclasses.replace(tiny_recipe, method=Config(less_forget=5.0, session=session))


def fitted(recipe, sessions, **settings) -> LUCIR:
    method = LUCIR(override(recipe, {"method": settings}), Runtime(), 0)
    method.fit(sessions[0])
    return method


def test_ranking_by_hand():
    cosines = torch.tensor(
        [[0.9, 0.1, 0.2, 0.6, 0.7], [0.3, 0.4, 0.1, -0.2, -0.5], [0.0, 0.0, 0.1, 0.9, 0.2]]
    )
    labels = torch.tensor([0, 1, 3])  # the last is of a new class and does not count
    first = (max(0, 0.5 - 0.9 + 0.7) + max(0, 0.5 - 0.9 + 0.6)) / 2
    second = (
        max(0, 0.5 - 0.4 + 0.1) + max(0, 0.5 - 0.4 - 0.2)
    ) / 2  # the nearest new prototypes are the third and the fourth
    assert float(ranking_loss(cosines, labels, 2, 0.5, 2)) == pytest.approx((first + second) / 2)
    assert float(ranking_loss(cosines, torch.tensor([2, 3, 4]), 2, 0.5, 2)) == 0, (
        "a batch without old classes"
    )
    assert float(ranking_loss(cosines, labels, 4, 0.5, 2)) == pytest.approx(
        (max(0, 0.5 - 0.9 + 0.7) + 0 + max(0, 0.5 - 0.9 + 0.2)) / 3
    )


def cosine(one: list[float], other: list[float]) -> float:
    return (
        sum(a * b for a, b in zip(one, other, strict=True)) / math.hypot(*one) / math.hypot(*other)
    )


def test_the_loss_is_the_papers(recipe, sessions, record_training, naive):
    """Compare with the sum of cross-entropy, less-forget and margin ranking.

    The weight of less-forget is λ_base · √(old classes / new classes), as it grows with the share
    of old classes. Ranking is the mean over the negatives, as in the authors' program.
    """
    method = fitted(recipe, sessions, session={"frozen_norm": True}, less_forget=4.0, ranking=3.0)
    method.learn(sessions[1])
    before = copy.deepcopy(method.network)
    trainings = record_training(lucir)
    method.learn(sessions[2])
    [training] = trainings
    labels = training.images.labels.tolist()
    assert training.images.class_counts().tolist() == [12] * 4 + [3] * 4
    with torch.no_grad():
        features = training.modules["backbone"](training.view).double().tolist()
        old_features = before.backbone.eval()(training.view).double().tolist()
        prototypes = torch.cat(
            [before.classifier.prototypes, training.modules["new"].prototypes]
        ).tolist()
    cosines = [[cosine(x, prototype) for prototype in prototypes] for x in features]
    scale = float(training.modules["scale"].value.detach())
    classified = naive.cross_entropy(scale * torch.tensor(cosines), training.images.labels)
    drifts = [1 - cosine(x, old) for x, old in zip(features, old_features, strict=True)]
    less_forget = 4 * math.sqrt(6 / 2) * sum(drifts) / len(drifts)
    rankings = [
        sum(max(0.0, 0.5 - row[label] + negative) for negative in row[6:]) / 2
        for row, label in zip(cosines, labels, strict=True)
        if label < 6
    ]
    ranking = 3 * sum(rankings) / len(rankings)
    assert min(less_forget, ranking) > 0.01
    assert training.loss == pytest.approx(classified + less_forget + ranking, rel=1e-4)


def test_old_prototypes_are_frozen_and_the_scale_is_learnt(recipe, sessions):
    method = fitted(recipe, sessions)
    assert method.scale == TEMPERATURE
    before = method.network.classifier.prototypes.detach().clone()
    method.learn(sessions[1])
    prototypes = method.network.classifier.prototypes.detach()
    assert torch.equal(prototypes[:4], before)
    assert method.scale != TEMPERATURE
    assert math.isfinite(method.scale)
    method.learn(sessions[2])
    assert torch.equal(method.network.classifier.prototypes[:6], prototypes)


def test_less_forget_keeps_the_directions(recipe, sessions):
    drift = {}
    for weight in (0.0, 20.0):
        method = fitted(recipe, sessions, less_forget=weight)
        kept = method.exemplars.images
        before = method.network.embed(kept)
        method.learn(sessions[1])
        drift[weight] = float(
            (1 - torch.nn.functional.cosine_similarity(before, method.network.embed(kept))).mean()
        )
    assert 0 < drift[20.0] < drift[0.0]


def test_the_nearest_mean_classifies(recipe, sessions, tiny_task):
    method = fitted(recipe, sessions)
    method.learn(sessions[1])
    means = method.exemplars.means(method.network.backbone, recipe.transform)
    assert torch.equal(
        method.scores(tiny_task.test), means(method.network.embed(tiny_task.test)).detach()
    )


@pytest.mark.parametrize(
    "wrong", [{"less_forget": -1.0}, {"ranking": -1.0}, {"margin": -0.1}, {"negatives": 0}]
)
def test_settings_that_cannot_be(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)
