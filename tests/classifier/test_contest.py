"""The choice of a head: it takes evidence, and one image does not wreck old classes."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from fewmore.classifier.classes import SupportSet
from fewmore.classifier.fitting.base import NEVER, BaseFeatures
from fewmore.classifier.fitting.contest import (
    CORRECTIONS,
    MAX_LOSS,
    SHARES,
    SHRINKAGES,
    _Features,
    errors_for,
    is_proven,
    list_candidates,
    power_for,
)
from fewmore.classifier.fitting.frozen import fit_features
from fewmore.classifier.fitting.sessions import Session, map_alike, simulate_sessions
from fewmore.classifier.heads import Scorer

DIM = 24


class World:
    """Draw images of classes, whose features have nuisance directions and uneven lengths."""

    def __init__(self, classes: int, nuisance: float, noise: float = 0.3, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.means = torch.randn(classes, DIM, generator=self.generator)
        self.noise = torch.full((DIM,), noise)
        self.noise[:6] += nuisance

    def draw(self, label: int, count: int) -> Tensor:
        noise = torch.randn(count, DIM, generator=self.generator) * self.noise
        lengths = 0.5 + torch.rand(count, 1, generator=self.generator)
        return (3 + self.means[label] + noise) * lengths

    def base(self, classes: int, images: int) -> BaseFeatures:
        features = torch.cat([self.draw(label, images) for label in range(classes)])
        labels = torch.arange(classes).repeat_interleave(images)
        names = tuple(f"class {label}" for label in range(classes))
        return BaseFeatures(names, features, labels, torch.full_like(labels, NEVER))


def accuracy(scorer: Scorer, features: Tensor, label: int) -> float:
    return float((scorer.scores(features).argmax(1) == label).float().mean())


def test_ten_classes_of_one_image_do_not_wreck_the_old_ones():
    """Raw lengths decided on the correction once, and a short image's class swallowed others."""
    world = World(22, nuisance=1.0)
    base, whitening, head, _ = fit_features(world.base(12, 20), seed=0)
    queries = [whitening(world.draw(label, 20)) for label in range(12)]
    scorer = Scorer.build(head, base.classes())
    new = [
        SupportSet(f"new {label}", whitening(world.draw(label, 1))).to_class()
        for label in range(12, 22)
    ]

    def old_accuracy(scorer: Scorer) -> float:
        return sum(accuracy(scorer, of, label) for label, of in enumerate(queries)) / 12

    before = old_accuracy(scorer)
    after = old_accuracy(scorer.with_classes((*scorer.classes, *new)))
    assert before > 0.9
    assert before - after <= MAX_LOSS[1]


def test_whitening_wins_where_images_of_a_class_differ_in_few_directions():
    world = World(12, nuisance=4.0)
    base, whitening, _, calibration = fit_features(world.base(12, 20), seed=0)
    assert whitening.damping.shape[1] > 0
    assert calibration.sessions_chosen > calibration.sessions_plain + 0.05
    assert "whitened with shrinkage" in base.notes[-1]


def test_the_backbones_own_classes_win_where_they_tell_the_classes_apart():
    """The class is written in features too small for a cosine, and the classifier reads them."""
    raw = World(12, nuisance=1.0, noise=1.5).base(12, 20)
    small = 0.01 * torch.nn.functional.one_hot(raw.labels, 12)
    raw = replace(raw, features=torch.cat([raw.features, small], 1))
    classifier = torch.cat([torch.zeros(12, DIM), 500 * torch.eye(12), torch.zeros(12, 1)], 1)
    _, whitening, _, plain = fit_features(raw, seed=0)
    assert whitening.classifier is None
    base, whitening, head, calibration = fit_features(raw, seed=0, classifier=classifier)
    assert whitening.share > 0
    assert head.dim == whitening.dim == base.features.shape[1] == DIM + 12 + 12
    assert calibration.sessions_chosen > plain.sessions_chosen
    assert "by the classes that the backbone knows" in base.notes[-1]


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_scores_of_the_contest_are_those_of_the_head_that_it_chooses(power: float):
    base = World(9, nuisance=1.0).base(9, 8)
    if power == 0.5:
        base = replace(base, features=base.features.abs())
    classifier = torch.randn(5, DIM + 1, generator=torch.Generator().manual_seed(0))
    base = BaseFeatures(base.names, base.features, base.labels, torch.arange(72) % 5)
    sessions = list(simulate_sessions(base, torch.Generator().manual_seed(0)))
    features = _Features(base, classifier)
    candidates = list(product(list_candidates(power, classifier), CORRECTIONS))
    for session in sessions[1:3]:
        scores = torch.cat(list(features.scores(session, list(features.fit(session.known)))))
        assert len(scores) == len(candidates)
        for place, (candidate, correction) in enumerate(candidates):
            choice = replace(candidate, correction=correction)
            _, whitened, head = choice.fit(base, classifier, session.known)
            scorer = Scorer.build(head, whitened.select(session.learnt).classes())
            expected = scorer.similarity(whitened.features[session.queries])
            torch.testing.assert_close(scores[place], expected, atol=1e-4, rtol=1e-3)


def test_threads_choose_what_one_thread_chooses(monkeypatch: pytest.MonkeyPatch):
    """Sessions that share their images are fitted once; the results keep the sessions' order."""
    base = World(9, nuisance=1.0).base(9, 8)
    base = BaseFeatures(base.names, base.features, base.labels, torch.arange(72) % 5)
    drawn = list(simulate_sessions(base, torch.Generator().manual_seed(0)))
    calls: list[list[int]] = []

    def note(alike: list[Session]) -> list[int]:
        calls.append([id(session) for session in alike])
        return calls[-1]

    order = map_alike(note, drawn, lambda session: session.rest)
    assert order == [id(session) for session in drawn]
    assert len(calls) == len({id(session.rest) for session in drawn}) == 5
    threaded = fit_features(base, seed=0)
    monkeypatch.setattr("fewmore.classifier.fitting.sessions.threaded_map", map)
    plain = fit_features(base, seed=0)
    assert threaded[3] == plain[3], "the same calibration"
    assert torch.equal(threaded[0].features, plain[0].features)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_better_by_chance_is_not_chosen(seed: int):
    """Round classes and few images: the usual head stays, whether the backbone has classes."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(5, DIM, generator=generator)
    labels = torch.arange(5).repeat_interleave(6)
    features = means[labels] + 0.1 * torch.randn(30, DIM, generator=generator)
    names = tuple("abcde")
    raw = BaseFeatures(names, features, labels, torch.full_like(labels, NEVER))
    base, _, _, _ = fit_features(raw, seed)
    assert f"by a cosine whitened with shrinkage {SHRINKAGES[0]:g}:" in base.notes[-1]
    classifier = torch.randn(7, DIM + 1, generator=generator)
    base, whitening, _, _ = fit_features(raw, seed, classifier)
    assert f"whitened with shrinkage {SHRINKAGES[0]:g} and to 10 %" in base.notes[-1]
    assert whitening.share == SHARES[1][0]


def test_sessions_keep_queries_and_shots_apart():
    world = World(9, nuisance=1.0)
    base = world.base(9, 8)
    folds = torch.arange(72) % 5
    folds[:8] = NEVER  # the first class is never held out, and so never new
    base = BaseFeatures(base.names, base.features, base.labels, folds)
    sessions = list(simulate_sessions(base, torch.Generator().manual_seed(0)))
    assert {session.shots for session in sessions} == {0, 1, 5}
    for session in sessions:
        assert not bool(session.learnt[session.queries].any())
        assert not bool(session.rest[session.queries].any())
        assert bool(session.is_old[0])
        learnt = torch.bincount(base.labels[session.learnt], minlength=9)
        assert (learnt[~session.is_old] == session.shots).all()
        assert int((~session.is_old).sum()) == (3 if session.shots else 0)
        assert not bool((~session.is_old)[base.labels[session.known]].any())


def test_roots_are_taken_of_features_that_are_never_negative():
    """A root of signed features, such as a rotation of them, says nothing."""
    base = World(12, nuisance=4.0).base(12, 20)
    assert bool((base.features < 0).any())
    _, whitening, _, _ = fit_features(base, seed=0)
    assert (power_for(base.features), whitening.power) == (1.0, 1.0)
    _, whitening, _, _ = fit_features(replace(base, features=base.features + 30), seed=0)
    assert whitening.damping.shape[1] > 0
    assert whitening.power == 0.5


def test_new_classes_are_drawn_several_times_for_six_hundred_images():
    """Which classes are new decides on the losses of old ones more than which images are."""
    base = World(20, nuisance=1.0).base(20, 30)
    base = replace(base, folds=torch.arange(600) % 5)
    sessions = list(simulate_sessions(base, torch.Generator().manual_seed(0)))
    drawn = {tuple(session.is_old.tolist()) for session in sessions if session.shots}
    assert len(drawn) == 3 * 5


def test_a_gain_on_one_class_of_three_proves_nothing():
    """Images of one class are right or wrong together, so that they count as one."""
    labels = torch.arange(3).repeat_interleave(100)
    assert not is_proven(torch.where(labels == 0, 0.3, 0.0).double(), labels, 1.01)
    labels = torch.arange(20).repeat_interleave(15)
    assert is_proven(torch.where(labels % 3 == 0, 0.0, 0.1).double(), labels, errors_for(20))
    assert not is_proven(torch.ones(10).double(), torch.zeros(10, dtype=torch.long), 1.0)


def test_fewer_classes_need_a_larger_gain():
    assert [errors_for(classes) for classes in (1, 2, 3)] == [float("inf")] * 3
    assert errors_for(5) == pytest.approx(2**0.5)
    assert errors_for(20) == pytest.approx(1.06, abs=0.01)
    labels = torch.arange(3).repeat_interleave(10)
    assert not is_proven(0.1 + 0.01 * labels.double(), labels, errors_for(3))
    assert not is_proven(torch.ones(30).double(), labels, errors_for(3)), "equal in each class"
