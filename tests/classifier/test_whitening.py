"""Whitening: the algebra, and what it does to features."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.classifier.whitening import Covariance


def draw(classes: int, images: int, dim: int, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw features of classes that differ in all directions, with noise in some."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(images)
    means = torch.randn(classes, dim, generator=generator)
    return means[labels] + noise * torch.randn(len(labels), dim, generator=generator), labels


@pytest.mark.parametrize("images", [4, 30])  # fewer and more than there are features
def test_it_is_the_inverse_root_of_the_shrunk_covariance(images: int):
    features, labels = draw(5, images, 40, torch.linspace(0.1, 2, 40))
    shrinkage = 0.6
    whitening = Covariance.within(features, labels).whitening(shrinkage)
    unit = F.normalize(features - features.mean(0) * 5 / 6, dim=1).double()
    means = torch.stack([unit[labels == label].mean(0) for label in range(5)])
    residuals = unit - means[labels]
    covariance = residuals.T @ residuals / (len(unit) - 5)
    average = covariance.trace() / 40
    shrunk = (1 - shrinkage) * covariance + shrinkage * average * torch.eye(40)
    eigenvalues, vectors = torch.linalg.eigh(shrunk)
    root = vectors @ torch.diag((shrinkage * average / eigenvalues).sqrt()) @ vectors.T
    expected = F.normalize(unit @ root, dim=1)
    torch.testing.assert_close(whitening(features).double(), expected, atol=1e-4, rtol=1e-4)


def test_without_shrinkage_to_less_than_one_features_are_centered_alone():
    features, labels = draw(3, 4, 10, torch.ones(10))
    whitening = Covariance.within(features, labels).whitening(1.0)
    center = features.mean(0) * 3 / 4  # as if a fourth class lay at the origin
    expected = F.normalize(features - center, dim=1)
    torch.testing.assert_close(whitening(features), expected, atol=1e-6, rtol=1e-5)


def test_one_image_a_class_gives_nothing_to_damp():
    features, labels = draw(6, 1, 10, torch.ones(10))
    whitening = Covariance.within(features, labels).whitening(0.5)
    assert bool(torch.isfinite(whitening(features)).all())


def test_the_mean_image_itself_stays_finite():
    features, labels = draw(3, 4, 10, torch.ones(10))
    whitening = Covariance.within(features, labels).whitening(0.5)
    assert bool(torch.isfinite(whitening(whitening.center[None])).all())


def test_a_root_is_taken_before_all_else_and_keeps_the_sign():
    features, labels = draw(5, 30, 10, torch.ones(10))
    assert bool((features < 0).any())
    roots = features.abs().sqrt() * features.sign()
    torch.testing.assert_close(
        Covariance.within(features, labels, 0.5).whitening(0.7)(features),
        Covariance.within(roots, labels).whitening(0.7)(roots),
    )


def test_a_share_of_the_cosine_is_that_of_the_classifiers_probabilities():
    features, labels = draw(3, 8, 10, torch.ones(10))
    plain = Covariance.within(features, labels).whitening(0.5)
    generator = torch.Generator().manual_seed(1)
    classifier = torch.randn(4, 11, generator=generator)
    probabilities = F.linear(features, classifier[:, :-1], classifier[:, -1]).softmax(1)
    both = replace(plain, classifier=classifier, share=0.25)(features)
    assert both.shape == (24, 14)
    bhattacharyya = (probabilities[:, None] * probabilities).sqrt().sum(-1)
    cosines = plain(features) @ plain(features).T
    torch.testing.assert_close(both @ both.T, 0.75 * cosines + 0.25 * bhattacharyya)
