"""Similarities, against plain loops."""

import math

import pytest
import torch
from torch import Tensor

from cecil.nn.similarity import SIMILARITIES, TEMPERATURE, cosine


def naive_dot(x: list[float], w: list[float]) -> float:
    return sum(a * b for a, b in zip(x, w, strict=True))


def naive_cosine(x: list[float], w: list[float]) -> float:
    return 16 * naive_dot(x, w) / math.sqrt(naive_dot(x, x) * naive_dot(w, w))


def naive_l2(x: list[float], w: list[float]) -> float:
    return -sum((a - b) ** 2 for a, b in zip(x, w, strict=True))


NAIVE = {"linear": naive_dot, "cosine": naive_cosine, "l2": naive_l2}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_every_similarity_has_a_reference() -> None:
    assert SIMILARITIES.keys() == NAIVE.keys()


@pytest.mark.parametrize("name", SIMILARITIES)
def test_scores_are_those_of_plain_loops(name: str) -> None:
    features, prototypes = drawn(5, 7), 3 * drawn(4, 7, seed=1)
    expected = torch.tensor([[NAIVE[name](x, w) for w in prototypes.tolist()] for x in features.tolist()])
    assert torch.allclose(SIMILARITIES[name](features, prototypes), expected, atol=1e-4)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_scores_have_gradients_for_features_and_prototypes(name: str) -> None:
    features, prototypes = (drawn(rows, 6, seed=rows).double().requires_grad_() for rows in (3, 4))
    assert torch.autograd.gradcheck(SIMILARITIES[name], (features, prototypes))


def test_the_cosine_does_not_care_for_lengths() -> None:
    features, prototypes = drawn(5, 7), drawn(4, 7, seed=1)
    lengths = torch.tensor([0.1, 1.0, 5.0, 100.0])[:, None]
    assert torch.allclose(cosine(features, prototypes), cosine(7 * features, prototypes * lengths), atol=1e-4)
    assert float(cosine(features, features).diagonal().min()) == pytest.approx(TEMPERATURE)


def test_a_feature_of_zeros_has_a_cosine_of_zero() -> None:
    assert torch.equal(cosine(torch.zeros(1, 7), drawn(4, 7)), torch.zeros(1, 4))


def test_the_nearest_prototype_has_the_largest_l2_score() -> None:
    features, prototypes = drawn(50, 7), drawn(9, 7, seed=1)
    nearest = [min(range(9), key=lambda c: math.dist(x, prototypes[c].tolist())) for x in features.tolist()]
    assert SIMILARITIES["l2"](features, prototypes).argmax(1).tolist() == nearest
