"""Test EEIL: both parts of a session, and its heads."""

import copy
import dataclasses

import pytest
import torch

from fewmore.methods import eeil
from fewmore.methods.distillation import DistillationConfig
from fewmore.methods.eeil import EEIL, Config
from fewmore.methods.recipe import override
from fewmore.training.learn_session import SessionConfig
from fewmore.training.optimizer import EpochsConfig
from fewmore.training.runtime import Runtime


@pytest.fixture
def recipe(tiny_recipe):
    config = Config(
        session=SessionConfig(data_init=False, epochs=4, batch=16, lr=0.03),
        balanced=EpochsConfig(epochs=3, batch=16, lr=0.003),
        distillation=DistillationConfig(),
    )
    return dataclasses.replace(tiny_recipe, method=config)


def learnt(recipe, sessions, on_round=lambda report: None) -> EEIL:
    method = EEIL(recipe, Runtime(on_round=on_round), 0)
    method.fit(sessions[0])
    for session in sessions[1:]:
        method.learn(session)
    return method


def test_a_session_has_two_parts(recipe, sessions):
    reports = []
    method = learnt(recipe, sessions, on_round=reports.append)
    parts = [
        (name, sum(r.stage == name for r in reports))
        for name in dict.fromkeys(r.stage for r in reports)
    ]
    assert parts == [
        ("pretrain", 2),
        ("session 1", 4),
        ("session 1, balanced", 3),
        ("session 2", 4),
        ("session 2, balanced", 3),
    ]
    assert [r.lr for r in reports if "balanced" in r.stage] == [0.003] * 6
    assert method.heads == [4, 2, 2]


def test_the_second_part_sees_as_many_of_each_class(recipe, sessions, monkeypatch):
    seen = []

    def recorded(loss_of, modules, images, *rest):
        seen.append(images.class_counts().tolist())
        original(loss_of, modules, images, *rest)

    original = eeil.train_by_loss
    monkeypatch.setattr(eeil, "train_by_loss", recorded)
    learnt(recipe, sessions)
    assert seen == [[12] * 4 + [3] * 2, [3] * 6, [12] * 4 + [3] * 4, [3] * 8]


def test_both_losses_are_cross_entropy_and_distillation_of_each_head(
    recipe, sessions, record_training, naive
):
    """Compare with the formula of the paper: the old heads are those of before the session.

    In the second part, the new head is held to what it was after the first.
    """
    recipe = override(
        recipe, {"method": {"session": {"frozen_norm": True}, "distillation": {"weight": 3.0}}}
    )
    method = learnt(recipe, sessions[:2])
    before = copy.deepcopy(method.network)
    trainings = record_training(eeil)
    method.learn(sessions[2])
    first, second = trainings

    @torch.no_grad()
    def logits_of(backbone, classifier, view):
        return classifier(backbone.eval()(view))

    def expected(training, teacher, heads):
        logits = logits_of(*training.modules.values(), training.view)
        distilled = sum(
            naive.distillation(logits[:, head], teacher[:, head], 2.0) for head in heads
        )
        assert 3 * distilled > 0.1
        return naive.cross_entropy(logits, training.images.labels) + 3 * distilled

    heads = [slice(0, 4), slice(4, 6), slice(6, 8)]
    old = logits_of(before.backbone, before.classifier, first.view)
    assert first.loss == pytest.approx(expected(first, old, heads[:2]), rel=1e-4)
    old = logits_of(before.backbone, before.classifier, second.view)
    after = logits_of(*first.modules.values(), second.view)
    teacher = torch.cat([old, after[:, 6:]], 1)
    assert second.loss == pytest.approx(expected(second, teacher, heads), rel=1e-4)


def test_both_parts_change_the_scores(recipe, sessions, tiny_task):
    both = learnt(recipe, sessions[:2]).scores(tiny_task.test)
    for part in ("session", "balanced"):
        without = override(recipe, {"method": {part: {"lr": 0.0}}})
        other = learnt(without, sessions[:2]).scores(tiny_task.test)
        assert not torch.equal(both, other)


def test_the_head_classifies(recipe, sessions, tiny_task):
    method = learnt(recipe, sessions)
    network = method.network
    assert network.classifier.similarity == "linear"
    assert torch.equal(
        method.scores(tiny_task.test), network.scores_of(network.embed(tiny_task.test))
    )
