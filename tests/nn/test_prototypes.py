"""Test class means, random prototypes, and classifiers and buffers that grow."""

import pytest
import torch
from torch import Tensor

from fewmore.nn.prototypes import Classifier, GrowingBuffer, class_means, random_prototypes
from fewmore.nn.similarity import SIMILARITIES


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_class_means_equal_plain_loops() -> None:
    features = randn(20, 5)
    labels = torch.randint(0, 4, (20,), generator=torch.Generator().manual_seed(1))
    means = class_means(features, labels, 4)
    for label in range(4):
        of_class = [
            x for x, y in zip(features.tolist(), labels.tolist(), strict=True) if y == label
        ]
        expected = [sum(column) / len(of_class) for column in zip(*of_class, strict=True)]
        assert torch.allclose(means[label], torch.tensor(expected), atol=1e-6)


def test_class_means_of_many_images_are_exact_to_the_last_bit() -> None:
    """Sum in float64: in float32 the sum of so many would be off in the fourth digit."""
    features = randn(200_000, 3) * 0.01 + 1000
    means = class_means(features, torch.zeros(200_000, dtype=torch.int64), 1)
    assert means.dtype == torch.float32
    assert torch.equal(means[0], features.double().mean(0).float())


def test_class_means_do_not_depend_on_the_order_of_images() -> None:
    features = randn(40, 6)
    labels = torch.arange(40) % 3
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        class_means(features, labels, 3), class_means(features[order], labels[order], 3)
    )


def test_random_prototypes_are_those_of_an_untrained_linear_layer() -> None:
    prototypes = random_prototypes(400, 64, torch.Generator().manual_seed(0))
    assert prototypes.shape == (400, 64)
    assert float(prototypes.abs().max()) <= 1 / 8
    assert float(prototypes.std()) == pytest.approx((1 / 8) / 3**0.5, rel=0.02)
    again = random_prototypes(400, 64, torch.Generator().manual_seed(0))
    other = random_prototypes(400, 64, torch.Generator().manual_seed(1))
    assert torch.equal(prototypes, again)
    assert not torch.equal(prototypes, other)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_classifier_scores_by_its_similarity(similarity: str) -> None:
    prototypes = randn(4, 5)
    features = randn(3, 5, seed=1)
    classifier = Classifier(similarity, prototypes.clone())
    assert len(classifier) == 4
    assert [name for name, _ in classifier.named_parameters()] == ["prototypes"]
    assert torch.equal(classifier(features), SIMILARITIES[similarity](features, prototypes))


def test_growing_appends_prototypes_and_leaves_the_old_classifier_alone() -> None:
    prototypes = randn(4, 5)
    new = randn(2, 5, seed=1)
    features = randn(3, 5, seed=2)
    small = Classifier("cosine", prototypes.clone())
    grown = small.grown(new)
    assert grown.similarity == "cosine"
    assert torch.equal(grown.prototypes, torch.cat([prototypes, new]))
    assert torch.allclose(grown(features)[:, :4], small(features))
    assert grown.prototypes.requires_grad
    with torch.no_grad():
        grown.prototypes.zero_()
        new.zero_()
    assert torch.equal(small.prototypes, prototypes)


def test_new_prototypes_take_the_dtype_of_the_old_ones() -> None:
    classifier = Classifier("linear", torch.zeros(1, 3))
    grown = classifier.grown(torch.ones(1, 3, dtype=torch.float64))
    assert grown.prototypes.dtype == torch.float32


def test_a_growing_buffer_copies_seldom_and_shares_safely() -> None:
    expected = randn(2, 3, 5)
    buffer = GrowingBuffer(expected)
    addresses = set()
    for seed in range(40):
        new = randn(2, 1, 5, seed=seed)
        before = buffer
        buffer = buffer.grown(new)
        expected = torch.cat([expected, new], 1)
        assert torch.equal(buffer.filled, expected)
        assert torch.equal(before.filled, expected[:, :-1])
        addresses.add(buffer.buffer.data_ptr())
    assert len(addresses) <= 5

    # The first to append takes the free space, so the second has to copy.
    first = buffer.grown(randn(2, 1, 5, seed=50))
    second = buffer.grown(randn(2, 1, 5, seed=51))
    assert torch.equal(first.filled[:, -1:], randn(2, 1, 5, seed=50))
    assert torch.equal(second.filled[:, -1:], randn(2, 1, 5, seed=51))
    assert torch.equal(first.filled[:, :-1], second.filled[:, :-1])
