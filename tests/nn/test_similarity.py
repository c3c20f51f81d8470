"""Similarities, against plain loops."""

import math

import pytest
import torch
from torch import Tensor

from fewmore.nn.similarity import SIMILARITIES, TEMPERATURE, cosine


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
    expected = torch.tensor(
        [[NAIVE[name](x, w) for w in prototypes.tolist()] for x in features.tolist()]
    )
    assert torch.allclose(SIMILARITIES[name](features, prototypes), expected, atol=1e-4)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_scores_have_gradients_for_features_and_prototypes(name: str) -> None:
    features, prototypes = (drawn(rows, 6, seed=rows).double().requires_grad_() for rows in (3, 4))
    assert torch.autograd.gradcheck(SIMILARITIES[name], (features, prototypes))


def test_the_cosine_does_not_care_for_lengths() -> None:
    features, prototypes = drawn(5, 7), drawn(4, 7, seed=1)
    lengths = torch.tensor([0.1, 1.0, 5.0, 100.0])[:, None]
    assert torch.allclose(
        cosine(features, prototypes), cosine(7 * features, prototypes * lengths), atol=1e-4
    )
    assert float(cosine(features, features).diagonal().min()) == pytest.approx(TEMPERATURE)


def test_a_feature_of_zeros_has_a_cosine_of_zero() -> None:
    assert torch.equal(cosine(torch.zeros(1, 7), drawn(4, 7)), torch.zeros(1, 4))


def test_the_nearest_prototype_has_the_largest_l2_score() -> None:
    features, prototypes = drawn(50, 7), drawn(9, 7, seed=1)
    nearest = [
        min(range(9), key=lambda c: math.dist(x, prototypes[c].tolist())) for x in features.tolist()
    ]
    assert SIMILARITIES["l2"](features, prototypes).argmax(1).tolist() == nearest


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("length", [1.0, 1e-6, 1e6])
def test_the_cosine_on_a_gpu_is_that_of_a_cpu(length: float) -> None:
    """With its gradients, and for a vector without a direction."""
    generator = torch.Generator().manual_seed(0)
    vectors = (
        torch.randn(9, 64, generator=generator) * length,
        torch.randn(5, 64, generator=generator),
    )
    vectors[0][0] = 0
    found = []
    for device in ("cpu", "cuda"):
        features, prototypes = (v.clone().to(device).requires_grad_() for v in vectors)
        scores = cosine(features, prototypes)
        scores[1:].square().sum().backward()
        found.append([t.detach().cpu() for t in (scores, features.grad, prototypes.grad)])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(
            ours, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())
        )
