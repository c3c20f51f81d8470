"""Scorers: prototypes that grow without copying, contexts that follow, few-image correction."""

import math

import pytest
import torch
from torch import Tensor

from fewmore.classifier.classes import KnownClass, empty_class
from fewmore.classifier.heads import REBUILD_SHARE, Head, Scorer
from fewmore.nn.adapter import Adapter

DIM = 12


def random_classes(count: int, seed: int = 0) -> tuple[KnownClass, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        KnownClass(f"{seed} {i}", torch.rand(DIM, generator=generator, dtype=torch.float64) * 3, 3)
        for i in range(count)
    )


def make_head(with_adapter: bool = False) -> Head:
    adapter = None
    if with_adapter:
        adapter = Adapter(DIM, generator=torch.Generator().manual_seed(0))
        adapter.eval().requires_grad_(False)
    return Head(torch.device("cpu"), DIM, 0.05, adapter)


def test_growing_shares_the_prototypes_of_before():
    scorer = Scorer.build(make_head(), random_classes(2))
    classes = scorer.classes
    for number in range(30):
        classes = (*classes, *random_classes(1, seed=number + 1))
        grown = scorer.with_classes(classes)
        rebuilt = Scorer.build(make_head(), classes)
        assert torch.equal(grown.unit_prototypes, rebuilt.unit_prototypes)
        assert torch.equal(scorer.unit_prototypes, grown.unit_prototypes[: len(scorer)])
        scorer = grown
    larger = scorer.with_classes((*classes, *random_classes(1, seed=99)))
    assert scorer.prototypes.buffer.data_ptr() == larger.prototypes.buffer.data_ptr()


def test_two_continuations_of_one_scorer_do_not_meet():
    base = Scorer.build(make_head(), random_classes(3))
    past = base.with_classes((*random_classes(3), *random_classes(1, seed=5)))
    first = past.with_classes((*past.classes, *random_classes(1, seed=6)))
    second = past.with_classes((*past.classes, *random_classes(1, seed=7)))
    for scorer in (first, second):
        rebuilt = Scorer.build(make_head(), scorer.classes)
        assert torch.equal(scorer.unit_prototypes, rebuilt.unit_prototypes)
    assert torch.equal(past.unit_prototypes, first.unit_prototypes[:4])


@pytest.mark.parametrize("with_adapter", [False, True])
def test_any_other_classes_are_the_same_as_rebuilt(with_adapter: bool):
    base = random_classes(10)
    head = make_head(with_adapter)
    scorer = Scorer.build(head, base)
    refined = (*base[:4], base[4].with_images(torch.rand(2, DIM)), *base[5:])
    features = torch.rand(7, DIM)
    for classes in (
        refined,
        base[:3] + base[4:],
        base[:1],
        base[::-1],
        (*base[1:], *random_classes(1, seed=3)),
        random_classes(10, seed=4),
        (*base, *random_classes(20, seed=5)),
    ):
        scorer = scorer.with_classes(classes)
        rebuilt = Scorer.build(head, classes)
        assert torch.equal(scorer.unit_prototypes, rebuilt.unit_prototypes)
        assert torch.equal(scorer.similarity(features), rebuilt.similarity(features))
        torch.testing.assert_close(
            scorer.scores(features), rebuilt.scores(features), atol=1e-4, rtol=1e-4
        )
    assert len(scorer.with_classes(())) == 0
    assert len(scorer.with_classes(()).with_classes(base)) == 10


@pytest.mark.parametrize("gone", [(1, 4), (0, 1), (7, 11), (0, 5, 11)])
def test_classes_forgotten_at_once_with_an_adapter(gone: tuple[int, ...]):
    base = random_classes(16)
    head = make_head(with_adapter=True)
    left = tuple(known for place, known in enumerate(base) if place not in gone)
    assert len(gone) <= REBUILD_SHARE * len(left), "the context is updated and not rebuilt"
    forgotten = Scorer.build(head, base).with_classes(left)
    features = torch.rand(7, DIM, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        forgotten.scores(features), Scorer.build(head, left).scores(features), atol=1e-4, rtol=1e-4
    )


def test_the_correction_for_few_images_by_hand():
    """Compare with √(‖mean‖² / (‖mean‖² − variance / count)), which is at most 2."""
    direction = torch.zeros(DIM, dtype=torch.float64)
    direction[0] = 1.0
    head = Head(torch.device("cpu"), DIM, 3.0)

    def similarity(length: float, count: int) -> float:
        known = KnownClass("one", direction * length * count, count)
        return float(Scorer.build(head, [known]).similarity(direction[None].float()))

    assert similarity(2.0, 1) == pytest.approx(math.sqrt(4 / (4 - 3)))
    assert similarity(2.0, 5) == pytest.approx(math.sqrt(4 / (4 - 3 / 5)))
    assert similarity(1.0, 6) == pytest.approx(math.sqrt(1 / (1 - 3 / 6)))
    assert similarity(1.0, 1) == similarity(1.0, 2) == 2.0


def test_closeness_corrects_both_means():
    direction = torch.zeros(DIM, dtype=torch.float64)
    direction[0] = 1.0
    head = Head(torch.device("cpu"), DIM, 3.0)
    scorer = Scorer.build(head, [KnownClass("one", direction * 2 * 5, 5)])
    for count in (1, 2, 1000):
        expected = math.sqrt(4 / (4 - 3 / 5)) * math.sqrt(4 / (4 - 3 / count))
        assert float(scorer.closeness(direction * 2, count)) == pytest.approx(expected)


def test_a_class_of_few_images_is_not_at_a_disadvantage():
    """On average, images are as similar to the corrected means of 1 and 5 as of 1,000 images."""
    generator = torch.Generator().manual_seed(0)
    dim = 200
    noise = 0.5
    center = torch.ones(dim, dtype=torch.float64)

    def draw(count: int) -> Tensor:
        return center + noise * torch.randn(count, dim, generator=generator, dtype=torch.float64)

    corrected = Head(torch.device("cpu"), dim, dim * noise**2)
    queries = draw(300).float()
    similarities = []
    for count in (1, 5, 1000):
        classes = [empty_class(str(i), dim).with_images(draw(count)) for i in range(20)]
        similarities.append(float(Scorer.build(corrected, classes).similarity(queries).mean()))
    assert max(similarities) - min(similarities) < 0.01
    uncorrected = Head(torch.device("cpu"), dim)
    scorer = Scorer.build(uncorrected, [empty_class("1", dim).with_images(draw(1))])
    assert float(scorer.similarity(queries).mean()) < similarities[0] - 0.05
