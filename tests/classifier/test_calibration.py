"""Temperature, threshold, calibration error and AUROC, compared with their definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fewmore.classifier.calibration import (
    Calibration,
    acceptance_threshold,
    auroc,
    expected_calibration_error,
    fit_temperature,
)
from fewmore.classifier.fitting.calibrate import threshold_growth


def test_calibration_error_by_hand():
    confidences = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.3, 0.3])
    correct = torch.tensor([True, True, True, False, False, False])
    assert expected_calibration_error(confidences, correct) == pytest.approx(
        (4 * abs(0.9 - 0.75) + 2 * 0.3) / 6
    )
    assert expected_calibration_error(torch.ones(3), torch.ones(3, dtype=torch.bool)) == 0
    assert expected_calibration_error(torch.zeros(3), torch.zeros(3, dtype=torch.bool)) == 0
    assert math.isnan(expected_calibration_error(torch.empty(0), torch.empty(0)))


def test_calibration_error_is_the_weighted_mean_over_bins():
    generator = np.random.default_rng(0)
    confidences, correct = generator.random(1000), generator.random(1000) < 0.6
    expected = 0.0
    for low in range(15):
        inside = (confidences > low / 15) & (confidences <= (low + 1) / 15)
        expected += abs(confidences[inside].mean() - correct[inside].mean()) * inside.mean()
    assert expected_calibration_error(
        torch.from_numpy(confidences), torch.from_numpy(correct)
    ) == pytest.approx(expected)


def test_a_confidence_on_the_edge_of_two_bins_is_in_the_lower_one():
    edge = 6 / 15  # the end of the sixth bin, in which 0.35 lies too
    confidences = torch.tensor([edge, 0.35], dtype=torch.float64)
    correct = torch.tensor([False, True])
    assert expected_calibration_error(confidences, correct) == pytest.approx((1 - edge - 0.35) / 2)
    confidences[1] = 0.42  # in the seventh bin
    assert expected_calibration_error(confidences, correct) == pytest.approx((edge + 0.58) / 2)


@pytest.mark.parametrize("true", [0.2, 1.0, 5.0])
def test_the_temperature_that_made_the_labels_is_found(true: float):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(20_000, 5, generator=generator, dtype=torch.float64) * true * 2
    labels = torch.multinomial((scores / true).softmax(1), 1, generator=generator).squeeze(1)
    fitted = fit_temperature(scores, labels)
    assert fitted == pytest.approx(true, rel=0.05)
    after = (scores / fitted).softmax(1)
    confidences, predicted = after.max(1)
    assert expected_calibration_error(confidences, predicted == labels) < 0.02


def test_few_images_without_a_mistake_do_not_make_certain():
    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    fitted = fit_temperature(scores, torch.tensor([0, 1, 0]))
    assert 0.7 < float((scores / fitted).softmax(1).amax()) < 0.95
    many = scores.repeat(100, 1)
    assert fit_temperature(many, torch.tensor([0, 1, 0]).repeat(100)) < fitted


def test_the_temperature_of_few_scores():
    assert fit_temperature(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)) == 1
    assert fit_temperature(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)) == 1
    assert math.isfinite(fit_temperature(torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])))


def test_the_threshold_accepts_95_percent():
    values = torch.randperm(1999, generator=torch.Generator().manual_seed(0)).double()
    assert float((values >= acceptance_threshold(values)).double().mean()) == pytest.approx(
        0.95, abs=0.001
    )
    few = torch.tensor([0.5, 0.3, 0.9])
    assert acceptance_threshold(few) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("images", "rejected"), [(1, 0), (18, 0), (19, 0), (39, 1), (40, 1), (59, 2), (99, 4), (100, 4)]
)
def test_how_many_held_out_images_lie_below_the_threshold(images: int, rejected: int):
    """Of n images, the ⌊(n + 1) / 20⌋-th from below is the threshold, and is accepted itself."""
    values = torch.randperm(images, generator=torch.Generator().manual_seed(0)).double()
    assert acceptance_threshold(values) == rejected


@settings(max_examples=50, deadline=None)
@given(
    known=st.lists(st.integers(0, 5), min_size=1, max_size=20),
    unknown=st.lists(st.integers(0, 5), min_size=1, max_size=20),
)
def test_auroc_is_scikit_learns(known: list[int], unknown: list[int]):
    ours = auroc(torch.tensor(known), torch.tensor(unknown))
    assert ours == pytest.approx(
        roc_auc_score([1] * len(known) + [0] * len(unknown), [*known, *unknown])
    )


def test_auroc_of_nothing():
    assert math.isnan(auroc(torch.empty(0), torch.ones(2)))


def test_the_threshold_grows_with_the_classes():
    ten = Calibration(threshold=0.5, classes=10, growth=0.1)
    assert ten.for_classes(10) == ten
    assert ten.for_classes(20).threshold == pytest.approx(0.5 + 0.1 * math.log(2))
    assert ten.for_classes(40).for_classes(10).threshold == pytest.approx(0.5)
    assert ten.for_classes(0) == ten
    older = Calibration(threshold=0.5)  # of a file without growth
    assert older.for_classes(20) == older
    nothing = Calibration(classes=10, growth=0.1)
    assert nothing.for_classes(20).threshold is None


def test_the_share_of_known_images_that_is_accepted_holds_as_classes_are_added():
    """With a fixed threshold nearly all unknown images pass in the end, and known ones too."""
    generator = torch.Generator().manual_seed(0)
    similarity = 0.2 * torch.randn(4000, 80, generator=generator)
    labels = torch.arange(4000) % 20
    similarity[torch.arange(4000), labels] += 0.6
    few = similarity[:, :20]
    threshold = acceptance_threshold(few.amax(1))
    calibration = Calibration(threshold=threshold, classes=20, growth=threshold_growth(few, labels))
    familiarity = similarity.amax(1)
    fixed = float((familiarity >= threshold).double().mean())
    grown = float((familiarity >= calibration.for_classes(80).threshold).double().mean())
    assert fixed > 0.98
    assert abs(grown - 0.95) < (fixed - 0.95) / 2
