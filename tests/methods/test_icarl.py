"""Test iCaRL: nearest means, training and distillation."""

import copy
import dataclasses

import pytest
import torch

from fewmore.methods import icarl
from fewmore.methods.distillation import DistillationConfig
from fewmore.methods.icarl import Config, ICaRL
from fewmore.methods.recipe import override
from fewmore.training.embed import embed
from fewmore.training.learn_session import SessionConfig
from fewmore.training.runtime import Runtime


@pytest.fixture
def base(tiny_task):
    return tiny_task.split.sessions[0].select_from(tiny_task.train).compact()


@pytest.fixture
def session(tiny_task):
    return tiny_task.split.sessions[1].select_from(tiny_task.train).compact()


@pytest.fixture
def recipe(tiny_recipe):
    session = SessionConfig(data_init=False, epochs=8, batch=16, lr=0.03)
    return dataclasses.replace(
        tiny_recipe,
        method=Config(session, distillation=DistillationConfig()),
        pretrain=dataclasses.replace(tiny_recipe.pretrain, epochs=6, milestones=(5,)),
    )


def fitted(recipe, base, **settings) -> ICaRL:
    method = ICaRL(override(recipe, {"method": settings}), Runtime(), 0)
    method.fit(base)
    return method


def test_the_prediction_is_the_nearest_mean_of_exemplars(recipe, base, session, tiny_task):
    method = fitted(recipe, base)
    method.learn(session)
    test = tiny_task.test
    features = torch.nn.functional.normalize(
        embed(method.network.backbone, test, recipe.transform), dim=1
    )
    kept = method.exemplars.images
    directions = torch.nn.functional.normalize(
        embed(method.network.backbone, kept, recipe.transform), dim=1
    )
    means = torch.stack(
        [
            torch.nn.functional.normalize(directions[kept.labels == c].mean(0), dim=0)
            for c in range(6)
        ]
    )
    nearest = torch.cdist(features, means).argmin(1)
    assert torch.equal(method.scores(test).argmax(1), nearest)


def test_means_follow_the_network(recipe, base, session, tiny_task):
    """Check that the head is not used, and that means are computed anew after each session."""
    method = fitted(recipe, base)
    before = method.exemplars.means(method.network.backbone, recipe.transform).prototypes
    with torch.no_grad():
        method.network.classifier.prototypes.mul_(-3)
    scores = method.scores(tiny_task.test)
    method.learn(session)
    after = method.exemplars.means(method.network.backbone, recipe.transform).prototypes
    assert not torch.equal(before, after[:4])
    assert scores.shape[1] == 4


def test_distillation_keeps_the_old_logits(recipe, base, session):
    gently = {"lr": 0.002, "frozen_norm": True}
    drift = {}
    for weight in (0.0, 3.0):
        method = fitted(recipe, base, session=gently, distillation={"weight": weight})
        kept = method.exemplars.images
        before = method.network.scores_of(method.network.embed(kept)).log_softmax(1)
        method.learn(session)
        after = method.network.scores_of(method.network.embed(kept))[:, :4].log_softmax(1)
        drift[weight] = float((after - before).abs().mean())
    assert drift[3.0] < drift[0.0]


def test_a_session_trains_on_exemplars_and_new_images_by_both_losses(
    recipe, base, session, record_training, naive
):
    """Compare with the paper, its sigmoids being a softmax as the module declares.

    The images are exemplars and the session's; the loss is classification plus distillation.
    """
    method = fitted(recipe, base, session={"frozen_norm": True}, distillation={"weight": 3.0})
    before = copy.deepcopy(method.network)
    exemplars = method.exemplars.images
    trainings = record_training(icarl)
    method.learn(session)
    [training] = trainings
    images = training.images
    assert images.class_counts().tolist() == [12] * 4 + [3] * 2
    assert torch.equal(images.storage[:48], exemplars.storage)
    assert torch.equal(images.storage[48:], session.storage)
    assert images.class_names == (*base.class_names, *session.class_names)
    with torch.no_grad():
        teacher = before.classifier(before.backbone.eval()(training.view))
        features = training.modules["backbone"](training.view)
        logits = training.modules["classifier"](features)
    classified = naive.cross_entropy(logits, images.labels)
    distilled = naive.distillation(logits[:, :4], teacher, 2.0)
    assert 3 * distilled > 0.1
    assert training.loss == pytest.approx(classified + 3 * distilled, rel=1e-4)


def test_new_classes_are_learnt_and_all_their_images_kept(recipe, base, session, tiny_task):
    method = fitted(recipe, base)
    assert method.images_kept() == 4 * 12
    method.learn(session)
    assert method.images_kept() == 4 * 12 + 2 * 3
    test = tiny_task.test.select_classes(range(6))
    assert (method.scores(test).argmax(1) == test.labels).float().mean() > 0.5
