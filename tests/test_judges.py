"""Let other people's programs judge what fewmore computes and how it is packed: docs/quality.md."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, roc_auc_score
from sklearn.neighbors import NearestCentroid

from fewmore.classifier.calibration import BINS, auroc, expected_calibration_error
from fewmore.nn.prototypes import class_means
from fewmore.nn.similarity import negative_l2
from fewmore.research import metrics

ROOT = Path(__file__).resolve().parent.parent
SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_torchmetrics_finds_the_same_calibration_error(seed: int) -> None:
    functional = pytest.importorskip("torchmetrics.functional.classification")
    generator = torch.Generator().manual_seed(seed)
    probabilities = (4 * torch.randn(500, 7, generator=generator)).softmax(1)
    labels = torch.randint(0, 7, (500,), generator=generator)
    confidences, predicted = probabilities.max(1)
    judged = functional.multiclass_calibration_error(
        probabilities, labels, num_classes=7, n_bins=BINS, norm="l1"
    )
    ours = expected_calibration_error(confidences, predicted == labels)
    assert ours == pytest.approx(float(judged), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_scikit_learn_finds_the_same_auroc(seed: int) -> None:
    chance = np.random.default_rng(seed)
    known, unknown = chance.normal(0.4, 1, 300).round(1), chance.normal(0, 1, 200).round(1)
    labels = np.repeat([1, 0], [300, 200])  # rounded: with many ties
    judged = roc_auc_score(labels, np.concatenate([known, unknown]))
    assert auroc(torch.tensor(known), torch.tensor(unknown)) == pytest.approx(judged, abs=1e-12)


def test_scikit_learn_finds_the_same_nearest_class_means() -> None:
    """Compare with means of all digits, after eight of them and after two more."""
    X, y = load_digits(return_X_y=True)
    X = X + np.random.default_rng(0).normal(0, 0.1, X.shape)  # no gray value is constant
    features, labels = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
    for classes in (8, 10):
        seen = labels < classes
        prototypes = class_means(features[seen], labels[seen], classes)
        judge = NearestCentroid().fit(X[seen], y[seen])
        np.testing.assert_allclose(prototypes, judge.centroids_, rtol=1e-6)
        predicted = negative_l2(features, prototypes).argmax(1)
        assert (predicted.numpy() == judge.predict(X)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_scikit_learn_finds_the_same_confusion_and_class_accuracy(seed: int) -> None:
    chance = np.random.default_rng(seed)
    labels, predicted = chance.integers(0, 9, 400), chance.integers(0, 9, 400)
    confusion = metrics.confusion_matrix(labels, predicted, 9)
    assert (confusion == confusion_matrix(labels, predicted, labels=range(9))).all()
    mean = metrics.class_accuracy(confusion).mean()
    assert mean == pytest.approx(100 * balanced_accuracy_score(labels, predicted))


def test_pyproject_is_valid() -> None:
    pytest.importorskip("validate_pyproject")
    command = [sys.executable, "-m", "validate_pyproject", str(ROOT / "pyproject.toml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Valid" in done.stdout + done.stderr
