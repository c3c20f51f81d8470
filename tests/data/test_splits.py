"""Check that a split has every class once, its images only, and repeats for the same seed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewmore.data.images import ImageSet
from fewmore.data.splits import Split, class_order, sample_split, split_from_lists
from fewmore.errors import SplitError


def images(counts: list[int]) -> ImageSet:
    """Make this many images of each class, in shuffled order."""
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    return ImageSet.from_images(
        torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8),
        labels,
        [f"class {i}" for i in range(len(counts))],
    )


def shown(split: Split) -> list[list[int]]:
    return [session.indices.tolist() for session in split.sessions]


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_draw_shows_each_class_once_and_the_shots_asked_for(data: st.DataObject) -> None:
    way, sessions, base, shot = (
        data.draw(st.integers(1, 4), label=name) for name in ("way", "sessions", "base", "shot")
    )
    classes = base + way * sessions
    counts = data.draw(st.lists(st.integers(shot, 7), min_size=classes, max_size=classes))
    seed, order = data.draw(st.integers(0, 99)), data.draw(st.none() | st.integers(0, 99))
    train = images(counts)
    split = sample_split(train, base, way, shot, seed, order)
    assert [len(session.classes) for session in split.sessions] == [base] + [way] * sessions
    assert sorted(split.seen(sessions)) == list(range(classes))
    for number, session in enumerate(split.sessions):
        own = train.labels[session.indices]
        for label in session.classes:
            assert int((own == label).sum()) == (shot if number else counts[label])
        assert len(set(session.indices.tolist())) == len(session.indices)
        assert set(own.tolist()) == set(session.classes)


def test_same_seed_same_split_and_another_seed_another() -> None:
    train = images([20] * 10)
    assert shown(sample_split(train, 4, 2, 3, seed=1)) == shown(
        sample_split(train, 4, 2, 3, seed=1)
    )
    assert shown(sample_split(train, 4, 2, 3, seed=1)) != shown(
        sample_split(train, 4, 2, 3, seed=2)
    )


def test_a_class_has_the_same_shots_whatever_the_others_are() -> None:
    train = images([20] * 10)
    many, few = sample_split(train, 4, 2, 3), sample_split(train, 8, 2, 3)
    assert many.sessions[-1].classes == few.sessions[-1].classes == (8, 9)
    assert torch.equal(many.sessions[-1].indices, few.sessions[-1].indices)


def test_class_order() -> None:
    assert class_order(4, None) == (0, 1, 2, 3)
    assert sorted(class_order(50, 3)) == list(range(50))
    assert class_order(50, 3) == class_order(50, 3) != class_order(50, 4)
    train = images([6] * 8)
    assert sample_split(train, 4, 2, 3, order=5).seen(2) == class_order(8, 5)
    assert "class order 5" in sample_split(train, 4, 2, 3, order=5).name


@pytest.mark.parametrize("seed", [-5, 2**63, 10**30])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert sorted(class_order(9, seed)) == list(range(9))
    assert class_order(9, seed) == class_order(9, seed)
    first = sample_split(images([5] * 6), 2, 2, 3, seed=seed)
    assert shown(first) == shown(sample_split(images([5] * 6), 2, 2, 3, seed=seed))
    assert first.name == f"draw {seed}: 2 base, 2-way 3-shot"


def test_negative_seeds_are_those_of_pytorch() -> None:
    order = torch.randperm(9, generator=torch.Generator().manual_seed(-5))
    assert list(class_order(9, -5)) == order.tolist()


def test_a_session_shows_its_own_images_numbered_from_0() -> None:
    train = images([6] * 8)
    split = sample_split(train, 4, 2, 3, order=5)
    own = split.sessions[1].select_from(train)
    assert own.class_names == tuple(f"class {label}" for label in split.sessions[1].classes)
    assert sorted(own.labels.tolist()) == [0, 0, 0, 1, 1, 1]
    assert own.indices.tolist() == split.sessions[1].indices.tolist()
    assert split.seen(0) == split.sessions[0].classes
    assert split.seen(1) == split.sessions[0].classes + split.sessions[1].classes


@pytest.mark.parametrize(
    ("base", "way", "shot", "sentence"),
    [
        (0, 2, 3, "base must be at least 1, not 0"),
        (4, 0, 3, "way must be at least 1, not 0"),
        (4, 2, 0, "shot must be at least 1, not 0"),
        (0, -1, 3, "base must .*; way must"),
        (9, 2, 3, "9 base classes were asked for, but there are 8 classes: use --base 8"),
        (
            2,
            4,
            3,
            "6 classes are left after 2 base classes.*: use --way 3",
        ),
        (7, 2, 3, "1 class is left after 7 base classes, .* do not divide: use --way 1"),
        (
            4,
            2,
            7,
            "'class 4' has 6 training images, and session 1 needs 7 of it",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(base: int, way: int, shot: int, sentence: str) -> None:
    with pytest.raises(SplitError, match=sentence):
        sample_split(images([6] * 8), base, way, shot)


def test_lists_give_the_official_split() -> None:
    train = images([3] * 4)
    of = [(train.labels == label).nonzero().squeeze(1) for label in range(4)]
    split = split_from_lists(train, [torch.cat([of[1], of[0]]), of[3][:2], of[2][1:]])
    assert split.name == "official"
    assert [session.classes for session in split.sessions] == [(0, 1), (3,), (2,)]
    assert split.sessions[0].indices.tolist() == torch.cat([of[1], of[0]]).tolist()


def test_sessions_that_share_a_class_are_refused() -> None:
    train = images([3] * 4)
    of = [(train.labels == label).nonzero().squeeze(1) for label in range(4)]
    with pytest.raises(SplitError, match="'class 1' is in session 0 and again in session 2"):
        split_from_lists(train, [torch.cat([of[0], of[1]]), of[2], of[1][:1]])
