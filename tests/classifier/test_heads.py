"""Scorers: rows that grow without copying, contexts that follow, and the correction for few images."""

import pytest
import torch

from fewmore.classifier.classes import KnownClass
from fewmore.classifier.heads import Head, Scorer
from fewmore.nn.adapter import Adapter

DIM = 12


def some(count: int, seed: int = 0) -> tuple[KnownClass, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        KnownClass(f"{seed} {i}", torch.rand(DIM, generator=generator, dtype=torch.float64) * 3, 3)
        for i in range(count)
    )


def head(adapter: bool = False) -> Head:
    made = (
        Adapter(DIM, generator=torch.Generator().manual_seed(0)).eval().requires_grad_(False)
        if adapter
        else None
    )
    return Head(torch.device("cpu"), DIM, 0.05, made)


def test_growing_shares_the_rows_of_before():
    scorer = Scorer.of(head(), some(2))
    classes = scorer.classes
    for number in range(30):
        classes = (*classes, *some(1, seed=number + 1))
        grown = scorer.knowing(classes)
        assert torch.equal(grown.unit_rows, Scorer.of(head(), classes).unit_rows)
        assert torch.equal(scorer.unit_rows, grown.unit_rows[: len(scorer)])
        scorer = grown
    assert (
        len(
            {
                scorer.rows.buffer.data_ptr(),
                scorer.knowing((*classes, *some(1, seed=99))).rows.buffer.data_ptr(),
            }
        )
        == 1
    )


def test_two_futures_of_one_past_do_not_meet():
    past = Scorer.of(head(), some(3)).knowing((*some(3), *some(1, seed=5)))
    one, other = some(1, seed=6), some(1, seed=7)
    first, second = past.knowing((*past.classes, *one)), past.knowing((*past.classes, *other))
    assert torch.equal(first.unit_rows, Scorer.of(head(), first.classes).unit_rows)
    assert torch.equal(second.unit_rows, Scorer.of(head(), second.classes).unit_rows)
    assert torch.equal(past.unit_rows, first.unit_rows[:4])


@pytest.mark.parametrize("adapter", [False, True])
def test_any_other_classes_are_the_same_as_built_anew(adapter: bool):
    base = some(10)
    scorer = Scorer.of(head(adapter), base)
    refined = (*base[:4], base[4].refined(torch.rand(2, DIM)), *base[5:])
    features = torch.rand(7, DIM)
    for classes in (
        refined,
        base[:3] + base[4:],
        base[:1],
        base[::-1],
        (*base[1:], *some(1, seed=3)),
        some(10, seed=4),
        (*base, *some(20, seed=5)),
    ):
        scorer = scorer.knowing(classes)
        anew = Scorer.of(head(adapter), classes)
        assert torch.equal(scorer.unit_rows, anew.unit_rows)
        assert torch.equal(scorer.likeness(features), anew.likeness(features))
        torch.testing.assert_close(
            scorer.scores(features), anew.scores(features), atol=1e-4, rtol=1e-4
        )
    assert len(scorer.knowing(())) == 0
    assert len(scorer.knowing(()).knowing(base)) == 10


def test_a_class_of_few_images_is_not_at_a_disadvantage():
    """Many images of one class: the corrected likeness to means of 1, 5 and 1,000 of them is the same on average."""
    generator = torch.Generator().manual_seed(0)
    dim, noise = 200, 0.5
    centre = torch.ones(dim, dtype=torch.float64)
    draw = lambda count: (
        centre + noise * torch.randn(count, dim, generator=generator, dtype=torch.float64)
    )  # noqa: E731
    wide = Head(torch.device("cpu"), dim, dim * noise**2)
    queries = draw(300).float()
    nothing = torch.zeros(dim, dtype=torch.float64)
    likeness = []
    for count in (1, 5, 1000):
        classes = [KnownClass(str(i), nothing, 0).refined(draw(count)) for i in range(20)]
        likeness.append(float(Scorer.of(wide, classes).likeness(queries).mean()))
    assert max(likeness) - min(likeness) < 0.01
    plain = float(
        Scorer.of(Head(torch.device("cpu"), dim), [KnownClass("1", nothing, 0).refined(draw(1))])
        .likeness(queries)
        .mean()
    )
    assert plain < likeness[0] - 0.05
