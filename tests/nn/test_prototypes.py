"""The class-weight matrix: means, random rows, growth."""

import pytest
import torch
from torch import Tensor

from fewmore.nn.prototypes import Classifier, GrowingBuffer, class_means, random_prototypes
from fewmore.nn.similarity import SIMILARITIES


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_class_means_are_those_of_plain_loops() -> None:
    features, labels = (
        drawn(20, 5),
        torch.randint(0, 4, (20,), generator=torch.Generator().manual_seed(1)),
    )
    means = class_means(features, labels, 4)
    for label in range(4):
        own = [x for x, y in zip(features.tolist(), labels.tolist(), strict=True) if y == label]
        expected = [sum(column) / len(own) for column in zip(*own, strict=True)]
        assert torch.allclose(means[label], torch.tensor(expected), atol=1e-6)


def test_class_means_of_many_images_are_exact_to_the_last_bit() -> None:
    """In float32 alone the sum of so many would be off in the fourth digit."""
    features = drawn(200_000, 3) * 0.01 + 1000
    means = class_means(features, torch.zeros(200_000, dtype=torch.int64), 1)
    assert means.dtype == torch.float32
    assert torch.equal(means[0], features.double().mean(0).float())


def test_class_means_do_not_depend_on_the_order_of_images() -> None:
    features, labels = drawn(40, 6), torch.arange(40) % 3
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        class_means(features, labels, 3), class_means(features[order], labels[order], 3)
    )


def test_random_rows_are_those_of_an_untrained_linear_layer() -> None:
    rows = random_prototypes(400, 64, torch.Generator().manual_seed(0))
    assert rows.shape == (400, 64)
    assert float(rows.abs().max()) <= 1 / 8
    assert float(rows.std()) == pytest.approx((1 / 8) / 3**0.5, rel=0.02)
    assert torch.equal(rows, random_prototypes(400, 64, torch.Generator().manual_seed(0)))
    assert not torch.equal(rows, random_prototypes(400, 64, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_classifier_scores_by_its_similarity(similarity: str) -> None:
    rows, features = drawn(4, 5), drawn(3, 5, seed=1)
    classifier = Classifier(similarity, rows.clone())
    assert len(classifier) == 4
    assert [name for name, _ in classifier.named_parameters()] == ["rows"]
    assert torch.equal(classifier(features), SIMILARITIES[similarity](features, rows))


def test_a_grown_classifier_has_new_rows_below_and_its_own_unchanged() -> None:
    rows, more, features = drawn(4, 5), drawn(2, 5, seed=1), drawn(3, 5, seed=2)
    small = Classifier("cosine", rows.clone())
    grown = small.grown(more)
    assert grown.similarity == "cosine"
    assert torch.equal(grown.prototypes, torch.cat([rows, more]))
    assert torch.allclose(grown(features)[:, :4], small(features))
    assert grown.prototypes.requires_grad
    with torch.no_grad():
        grown.prototypes.zero_()
        more.zero_()
    assert torch.equal(small.prototypes, rows)


def test_grown_rows_take_the_type_of_the_others() -> None:
    assert (
        Classifier("linear", torch.zeros(1, 3))
        .grown(torch.ones(1, 3, dtype=torch.float64))
        .prototypes.dtype
        == torch.float32
    )


def test_growing_copies_seldom_and_disturbs_nobody() -> None:
    growing, past = GrowingBuffer(drawn(2, 3, 5)), drawn(2, 3, 5)
    buffers = set()
    for number in range(40):
        new = drawn(2, 1, 5, seed=number)
        before, growing, past = growing, growing.grown(new), torch.cat([past, new], 1)
        assert torch.equal(growing.filled, past)
        assert torch.equal(before.filled, past[:, :-1])
        buffers.add(growing.buffer.data_ptr())
    assert len(buffers) <= 5
    one, other = (
        growing.grown(drawn(2, 1, 5, seed=50)),
        growing.grown(drawn(2, 1, 5, seed=51)),
    )  # the second finds the room taken
    assert torch.equal(one.filled[:, -1:], drawn(2, 1, 5, seed=50))
    assert torch.equal(other.filled[:, -1:], drawn(2, 1, 5, seed=51))
    assert torch.equal(one.filled[:, :-1], other.filled[:, :-1])
