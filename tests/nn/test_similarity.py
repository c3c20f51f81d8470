"""Compare similarities with plain loops."""

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


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_every_similarity_has_a_reference() -> None:
    assert SIMILARITIES.keys() == NAIVE.keys()


@pytest.mark.parametrize("name", SIMILARITIES)
def test_scores_equal_plain_loops(name: str) -> None:
    features, prototypes = randn(5, 7), 3 * randn(4, 7, seed=1)
    expected = torch.tensor(
        [[NAIVE[name](x, w) for w in prototypes.tolist()] for x in features.tolist()]
    )
    assert torch.allclose(SIMILARITIES[name](features, prototypes), expected, atol=1e-4)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_scores_have_gradients_for_features_and_prototypes(name: str) -> None:
    features = randn(3, 6, seed=3).double().requires_grad_()
    prototypes = randn(4, 6, seed=4).double().requires_grad_()
    assert torch.autograd.gradcheck(SIMILARITIES[name], (features, prototypes))


def test_the_cosine_ignores_lengths() -> None:
    features, prototypes = randn(5, 7), randn(4, 7, seed=1)
    lengths = torch.tensor([0.1, 1.0, 5.0, 100.0])[:, None]
    scaled = cosine(7 * features, prototypes * lengths)
    assert torch.allclose(cosine(features, prototypes), scaled, atol=1e-4)
    assert float(cosine(features, features).diagonal().min()) == pytest.approx(TEMPERATURE)


def test_a_feature_of_zeros_has_a_cosine_of_zero() -> None:
    assert torch.equal(cosine(torch.zeros(1, 7), randn(4, 7)), torch.zeros(1, 4))


def test_the_nearest_prototype_has_the_largest_l2_score() -> None:
    features, prototypes = randn(50, 7), randn(9, 7, seed=1)
    nearest = [
        min(range(9), key=lambda c: math.dist(x, prototypes[c].tolist())) for x in features.tolist()
    ]
    assert SIMILARITIES["l2"](features, prototypes).argmax(1).tolist() == nearest


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("length", [1.0, 1e-6, 1e6])
def test_the_cosine_on_a_gpu_equals_that_on_a_cpu(length: float) -> None:
    """Compare scores and gradients, also for a vector of zeros."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(9, 64, generator=generator) * length
    prototypes = torch.randn(5, 64, generator=generator)
    features[0] = 0

    def scores_and_gradients(device: str) -> list[Tensor]:
        x = features.clone().to(device).requires_grad_()
        w = prototypes.clone().to(device).requires_grad_()
        scores = cosine(x, w)
        scores[1:].square().sum().backward()
        return [tensor.detach().cpu() for tensor in (scores, x.grad, w.grad)]

    on_cpu = scores_and_gradients("cpu")
    on_gpu = scores_and_gradients("cuda")
    for actual, expected in zip(on_gpu, on_cpu, strict=True):
        tolerance = 1e-4 * float(expected.abs().max())
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=tolerance)
