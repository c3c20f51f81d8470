"""Test mixup and CutMix against loops in NumPy, and their random numbers against SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fewmore.errors import ConfigError
from fewmore.training.mixing import MIXERS, Mixed, cutmix, mixup, sample_beta


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Return 40 images of 12 × 10 pixels, and labels."""
    view = torch.randn(40, 3, 12, 10, generator=generator())
    labels = torch.randint(7, (40,), generator=generator())
    return view.contiguous(memory_format=torch.channels_last), labels


# Beta


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0, 2.0, 30.0])
def test_sampled_numbers_have_the_quantiles_of_beta(alpha: float) -> None:
    sampled = sample_beta(200_000, alpha, generator()).double().numpy()
    assert sampled.min() >= 0
    assert sampled.max() <= 1
    quantiles = np.linspace(0.05, 0.95, 19)
    # Where the density is high, quantiles are compared; where it is low, their probabilities.
    reached = stats.beta.cdf(np.quantile(sampled, quantiles), alpha, alpha)
    off = np.minimum(
        np.abs(reached - quantiles),
        np.abs(np.quantile(sampled, quantiles) - stats.beta.ppf(quantiles, alpha, alpha)),
    )
    assert off.max() < 0.005
    assert sampled.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.02)


@pytest.mark.parametrize("alpha", [1e-4, 0.01, 1e4])
def test_extreme_alphas_give_numbers_between_0_and_1(alpha: float) -> None:
    sampled = sample_beta(100_000, alpha, generator())
    assert bool(((sampled >= 0) & (sampled <= 1)).all())
    nearest = torch.minimum(sampled, 1 - sampled)
    expected = 0.5 if alpha > 1 else 0.0
    assert float((nearest - expected).abs().mean()) < 0.02


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match="alpha of mixup and CutMix must be a positive number"):
        sample_beta(3, alpha, generator())


# Images


def test_mixup_blends_each_image_with_the_one_before(batch: tuple[Tensor, Tensor]) -> None:
    view, labels = batch
    mixed = mixup(view, labels, 0.8, generator(3))
    pixels, shares = view.double().numpy(), mixed.share.double().numpy()
    for i in range(len(view)):
        expected = shares[i] * pixels[i] + (1 - shares[i]) * pixels[i - 1]
        np.testing.assert_allclose(mixed.view[i].double().numpy(), expected, atol=1e-6)
        assert int(mixed.labels[i]) == int(labels[i])
        assert int(mixed.partner_labels[i]) == int(labels[i - 1])
    assert len(set(shares.tolist())) == len(view)
    assert torch.equal(mixed.share, sample_beta(len(view), 0.8, generator(3)))


def test_cutmix_pastes_a_box_of_the_area_that_the_partner_counts(
    batch: tuple[Tensor, Tensor],
) -> None:
    """Compute the boxes image by image, as in the paper: clipped, and the share from the rest."""
    view, labels = batch
    height, width = 12, 10
    mixed = cutmix(view, labels, 1.0, generator(5))
    same = generator(5)
    sampled = sample_beta(len(view), 1.0, same).numpy()
    centre = torch.rand(2, len(view), generator=same).numpy()
    clipped = 0
    for i in range(len(view)):
        cut = np.sqrt(np.float32(1) - sampled[i])
        box_h, box_w = int(height * cut), int(width * cut)
        top = int(height * centre[0, i]) - box_h // 2
        left = int(width * centre[1, i]) - box_w // 2
        rows = slice(max(top, 0), min(top + box_h, height))
        columns = slice(max(left, 0), min(left + box_w, width))
        expected = view[i].numpy().copy()
        expected[:, rows, columns] = view[i - 1].numpy()[:, rows, columns]
        np.testing.assert_array_equal(mixed.view[i].numpy(), expected)
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        assert float(mixed.share[i]) == pytest.approx(1 - area / (height * width), abs=1e-6)
        clipped += area < box_h * box_w
        assert int(mixed.partner_labels[i]) == int(labels[i - 1])
    assert 5 < clipped < 40


def test_the_share_of_cutmix_is_what_remains_of_the_image() -> None:
    """Count the pixels of images that are all of one value."""
    view = torch.arange(64.0)[:, None, None, None].expand(64, 3, 9, 9)
    mixed = cutmix(view, torch.arange(64), 1.0, generator())
    remaining = (mixed.view == view).float().mean((1, 2, 3))
    torch.testing.assert_close(mixed.share, remaining)
    assert bool((remaining < 1).any())


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_memory_format_device_and_generator(mixer, batch: tuple[Tensor, Tensor]) -> None:
    view, labels = batch
    before = view.clone(), labels.clone()
    torch.manual_seed(1)
    untouched = torch.get_rng_state()
    mixed = mixer(view, labels, 1.0, generator())
    assert mixed.view.is_contiguous(memory_format=torch.channels_last)
    assert mixed.view.dtype == view.dtype
    assert torch.equal(torch.get_rng_state(), untouched)
    assert torch.equal(view, before[0])
    assert torch.equal(labels, before[1])
    again = mixer(view, labels, 1.0, generator())
    assert torch.equal(again.view, mixed.view)
    assert not torch.equal(mixer(view, labels, 1.0, generator(1)).view, mixed.view)


# Loss


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_cross_entropy_with_mixed_labels(smoothing: float) -> None:
    """Compute −Σ_c q_c log softmax(z)_c, with q the mixture of both smoothed one-hot vectors."""
    logits = torch.randn(6, 5, generator=generator(), requires_grad=True)
    labels, partners = torch.randint(5, (2, 6), generator=generator(1))
    share = torch.rand(6, generator=generator(2))
    loss = Mixed(torch.zeros(6, 3, 1, 1), labels, partners, share).cross_entropy(logits, smoothing)
    expected = 0.0
    for row, own, partner, weight in zip(
        logits.tolist(), labels.tolist(), partners.tolist(), share.tolist(), strict=True
    ):
        total = math.log(sum(math.exp(value) for value in row))
        for c, value in enumerate(row):
            q = weight * (c == own) + (1 - weight) * (c == partner)
            q = (1 - smoothing) * q + smoothing / 5
            expected -= q * (value - total) / 6
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())
    assert float(logits.grad.abs().max()) > 0
