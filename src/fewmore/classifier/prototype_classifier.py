"""Classify feature vectors as `IncrementalClassifier` does images: for embeddings of your own.

    classifier = PrototypeClassifier().fit(X, y)
    classifier.partial_fit(X_new, y_new)  # new classes, or more of known ones
    classifier.predict(X_test)

n: vectors   d: features   N: classes
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from fewmore.classifier.classes import KnownClass, empty_class
from fewmore.classifier.fitting.base import NEVER, BaseFeatures
from fewmore.classifier.fitting.frozen import fit_features
from fewmore.classifier.heads import Scorer
from fewmore.classifier.not_fitted import NotFittedError
from fewmore.errors import DataError
from fewmore.nn.prototypes import GrowingBuffer


class PrototypeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify vectors by the nearest class mean, and learn new classes from a few vectors each.

    How vectors are whitened is chosen in `fit`, on some that are held out in turn, and confidences
    are calibrated on them. `partial_fit` adds to class means, and changes nothing else.

    Args:
        random_state: seed of what is held out.
    """

    def __init__(self, *, random_state: Any = 0) -> None:
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "PrototypeClassifier":
        """Learn classes from vectors (n, d) and their labels (n,)."""
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        positions = torch.tensor(labels)
        base = BaseFeatures(
            tuple(map(str, self.classes_)),
            torch.tensor(X),
            positions,
            torch.full_like(positions, NEVER),
        )
        seed = check_random_state(self.random_state).randint(2**31)
        base, whitening, self._head, self.calibration_ = fit_features(base, int(seed))
        self._whitening = whitening.to(torch.float64)
        self._set_classes(base.classes())
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "PrototypeClassifier":
        """Learn new classes, or more vectors of known ones; the first call is `fit`.

        Classes may be new in any call, so `classes` is not needed, and not used.
        """
        if not hasattr(self, "classes_"):
            return self.fit(X, y)
        X, y = validate_data(self, X, y, dtype=np.float32, reset=False)
        check_classification_targets(y)
        features = self._whitening(torch.tensor(X).double())
        known = dict(zip(self.classes_.tolist(), self._classes, strict=True))
        for label in np.unique(y).tolist():
            one = known.get(label) or empty_class(str(label), self.n_features_in_)
            known[label] = one.with_images(features[torch.tensor(y == label)])
        try:
            self.classes_ = np.array(sorted(known))
        except TypeError:
            raise DataError(f"labels must be like those of before, {self.classes_[:3]}") from None
        self._set_classes([known[label] for label in self.classes_.tolist()])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the label of each vector, (n,)."""
        best = self._scores(X).argmax(1)
        return self.classes_[best]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return calibrated confidences, (n, N), in the order of `classes_`."""
        scores = self._scores(X)
        return (scores / self.calibration_.temperature).softmax(1).numpy()

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the score of each class, (n, N); of two classes, by how much the second leads."""
        scores = self._scores(X).numpy()
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def is_known(self, X: Any) -> np.ndarray:
        """Return whether each vector is of any known class, (n,): 95 % of those held out are."""
        whitened = self._whitened(X)
        threshold = self.calibration_.for_classes(len(self.classes_)).threshold
        familiarity = self._scorer.familiarity(whitened)
        return (familiarity >= (-np.inf if threshold is None else threshold)).numpy()

    def _scores(self, X: Any) -> Tensor:
        whitened = self._whitened(X)
        return self._scorer.scores(whitened)

    def _whitened(self, X: Any) -> Tensor:
        if not hasattr(self, "classes_"):
            raise NotFittedError("nothing is learnt yet: call fit with vectors and their labels")
        X = validate_data(self, X, dtype=np.float32, reset=False)
        return self._whitening(torch.tensor(X).double())

    def _set_classes(self, classes: list[KnownClass]) -> None:
        """Score with 64 bits: rounding must not depend on how many vectors come together."""
        self._classes = classes
        scorer = Scorer.build(self._head, classes)
        self._scorer = replace(
            scorer,
            prototypes=GrowingBuffer(scorer.unit_prototypes.double()),
            norm_correction=scorer.norm_correction.double(),
        )
