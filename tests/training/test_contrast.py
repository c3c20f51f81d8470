"""Test contrastive losses against loops over pairs."""

import math

import pytest
import torch
from torch import Tensor

from fewmore.training.contrast import (
    each_positive_contrast,
    info_nce,
    inter_class_cosine,
    inter_class_cosine_with,
    label_contrast,
    label_contrast_with,
    view_contrast,
)

SCALE = 8.0
LABELS = torch.tensor([0, 1, 0, 2, 1, 0])


@pytest.fixture
def features() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 5, generator=generator)


def cosine(one: Tensor, other: Tensor) -> float:
    dot = sum(a * b for a, b in zip(one.tolist(), other.tolist(), strict=True))
    lengths = [math.sqrt(sum(a * a for a in vector.tolist())) for vector in (one, other)]
    return dot / lengths[0] / lengths[1]


def naive_contrast(
    anchors: Tensor, candidates: Tensor, positive: list[list[bool]], skip_itself: bool
) -> float:
    """Return the mean over anchors of the mean over positives of −log softmax."""
    losses = []
    for i, anchor in enumerate(anchors):
        others = [j for j in range(len(candidates)) if not (skip_itself and i == j)]
        total = sum(math.exp(SCALE * cosine(anchor, candidates[j])) for j in others)
        own = [
            math.log(total) - SCALE * cosine(anchor, candidates[j])
            for j in others
            if positive[i][j]
        ]
        if own:
            losses.append(sum(own) / len(own))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("views", [2, 3])
def test_view_contrast(features: Tensor, views: int) -> None:
    images = 6 // views
    same = [[i % images == j % images for j in range(6)] for i in range(6)]
    expected = naive_contrast(features, features, same, skip_itself=True)
    assert float(view_contrast(features, views, SCALE)) == pytest.approx(expected, rel=1e-5)


def test_label_contrast_leaves_out_lonely_anchors(features: Tensor) -> None:
    same = [[bool(a == b) for b in LABELS] for a in LABELS]
    expected = naive_contrast(features, features, same, skip_itself=True)
    assert float(label_contrast(features, LABELS, SCALE)) == pytest.approx(expected, rel=1e-5)


def test_label_contrast_with_candidates(features: Tensor) -> None:
    candidates = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 0, 1, -1, -1, 4, 1])
    same = [[bool(a == b) for b in labels] for a in LABELS]  # label 2 has no positive
    expected = naive_contrast(features, candidates, same, skip_itself=False)
    loss = label_contrast_with(features, LABELS, candidates, labels, SCALE)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_info_nce(features: Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    keys, others = torch.randn(6, 5, generator=generator), torch.randn(4, 5, generator=generator)
    losses = []
    for query, key in zip(features, keys, strict=True):
        own = SCALE * cosine(query, key)
        rest = [SCALE * cosine(query, other) for other in others]
        losses.append(math.log(sum(map(math.exp, [own, *rest]))) - own)
    loss = info_nce(features, keys, others, SCALE)
    assert float(loss) == pytest.approx(sum(losses) / 6, rel=1e-5)


def test_the_cosine_between_classes_is_that_of_pairs_with_different_labels(
    features: Tensor,
) -> None:
    pairs = [
        cosine(features[i], features[j])
        for i in range(6)
        for j in range(i + 1, 6)
        if LABELS[i] != LABELS[j]
    ]
    expected = sum(pairs) / len(pairs)
    assert float(inter_class_cosine(features, LABELS)) == pytest.approx(expected, rel=1e-5)
    assert float(inter_class_cosine(features, torch.zeros(6))) == 0  # a single class


def test_gradients_are_finite(features: Tensor) -> None:
    others = features.clone()
    features.requires_grad_()
    total = (
        view_contrast(features, 3, SCALE)
        + label_contrast(features, LABELS, SCALE)
        + label_contrast_with(features, LABELS, others, LABELS, SCALE)
        + info_nce(features, others, others, SCALE)
        + inter_class_cosine(features, LABELS)
    )
    total.backward()
    assert features.grad is not None
    assert bool(features.grad.isfinite().all())
    assert bool(features.grad.any())


def test_no_positive_at_all_is_no_loss(features: Tensor) -> None:
    assert float(label_contrast(features, torch.arange(6), SCALE)) == 0


def test_each_positive_is_told_from_the_negatives(features: Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    keys, others = torch.randn(6, 5, generator=generator), torch.randn(7, 5, generator=generator)
    labels = torch.tensor([0, 0, 1, -1, -1, 4, 1])
    losses = []
    for query, key, label in zip(features, keys, LABELS, strict=True):
        logits = [SCALE * cosine(query, other) for other in others]
        same = [bool(label == other) for other in labels]
        positives = [z for z, positive in zip(logits, same, strict=True) if positive]
        negatives = [z for z, positive in zip(logits, same, strict=True) if not positive]
        own = [
            math.log(1 + sum(math.exp(negative - positive) for negative in negatives))
            for positive in (SCALE * cosine(query, key), *positives)
        ]
        losses.append(sum(own) / len(own))
    loss = each_positive_contrast(features, keys, LABELS, others, labels, SCALE)
    assert float(loss) == pytest.approx(sum(losses) / 6, rel=1e-5)


def test_without_negatives_there_is_no_loss_and_gradients_are_numbers(features: Tensor) -> None:
    features.requires_grad_()
    ones = torch.ones(6, dtype=torch.int64)
    others = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    loss = each_positive_contrast(features, features.detach(), ones, others, ones[:3], SCALE)
    loss.backward()
    assert float(loss.detach()) == 0
    assert features.grad is not None
    assert bool(features.grad.isfinite().all())


def test_inter_class_cosine_with_candidates(features: Tensor) -> None:
    candidates = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 0, 1, -1, -1, 4, 1])
    pairs = [
        cosine(features[i], candidates[j])
        for i in range(6)
        for j in range(7)
        if LABELS[i] != labels[j]
    ]
    found = inter_class_cosine_with(features, LABELS, candidates, labels)
    assert float(found) == pytest.approx(sum(pairs) / len(pairs), rel=1e-5)
    zero = torch.zeros(6, dtype=torch.int64)
    assert float(inter_class_cosine_with(features, zero, features, zero)) == 0
