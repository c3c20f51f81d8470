"""PrototypeClassifier: scikit-learn's own checks, and what they do not ask."""

import pickle

import numpy as np
import pytest
import sklearn.exceptions
from sklearn.datasets import make_blobs
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator

import fewmore
from fewmore import PrototypeClassifier
from fewmore.errors import DataError


def test_all_checks_of_scikit_learn_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fewmore.classifier.fitting.sessions.MAX_REPEATS", 1)  # it fits 70 times
    checks = check_estimator(PrototypeClassifier(), on_skip=None)
    statuses = {check["check_name"]: check["status"] for check in checks}
    assert len(statuses) > 40
    assert {name for name, status in statuses.items() if status != "passed"} <= {
        "check_array_api_input"  # skipped: it needs SCIPY_ARRAY_API to be set
    }
    assert not any(check["expected_to_fail"] for check in checks)


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(240, 16, centers=12, cluster_std=2.0, random_state=0)


def test_new_classes_come_with_partial_fit(blobs: tuple[np.ndarray, np.ndarray]):
    X, y = blobs
    old = y < 8
    few = np.concatenate([np.flatnonzero(y == label)[:5] for label in range(8, 12)])
    clf = PrototypeClassifier().fit(X[old], y[old])
    before = clf.decision_function(X[old])
    clf.partial_fit(X[few], y[few])
    assert clf.classes_.tolist() == list(range(12))
    assert clf.decision_function(X[old])[:, :8] == pytest.approx(before, abs=1e-12)
    assert clf.score(X, y) > 0.9
    one_by_one = PrototypeClassifier().fit(X[old], y[old])
    for i in few:
        one_by_one.partial_fit(X[[i]], y[[i]])
    assert one_by_one.decision_function(X) == pytest.approx(clf.decision_function(X), abs=1e-6)


def test_labels_stay_sorted_and_keep_their_type(blobs: tuple[np.ndarray, np.ndarray]):
    X, y = blobs
    names = np.array(["wren", "robin", "jay"])[y % 3]
    clf = PrototypeClassifier().fit(X[names != "jay"], names[names != "jay"])
    clf.partial_fit(X[names == "jay"], names[names == "jay"])
    assert clf.classes_.tolist() == ["jay", "robin", "wren"]
    assert set(clf.predict(X)) == {"jay", "robin", "wren"}
    before = clf.predict_proba(X)
    with pytest.raises(DataError, match="labels must be like those of before"):
        clf.partial_fit(X[:2], [1, 2])
    assert np.array_equal(clf.predict_proba(X), before)


def test_confidences_and_none_of_these(blobs: tuple[np.ndarray, np.ndarray]):
    X, y = blobs
    clf = PrototypeClassifier().fit(X, y)
    assert clf.calibration_.held_out == 240
    assert clf.predict_proba(X).sum(1) == pytest.approx(np.ones(240))
    assert clf.is_known(X).mean() > 0.9
    center = X.mean(0, keepdims=True)
    assert not clf.is_known(center)[0]
    assert cross_val_score(PrototypeClassifier(), X, y, cv=3).min() > 0.9
    again = pickle.loads(pickle.dumps(clf))
    assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))


def test_sentences(blobs: tuple[np.ndarray, np.ndarray]):
    X, y = blobs
    for error in (sklearn.exceptions.NotFittedError, fewmore.NotFittedError):
        with pytest.raises(error, match="nothing is learnt yet"):
            PrototypeClassifier().predict(X)
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="too large for dtype"):
        PrototypeClassifier().fit(X * 1e39, y)
