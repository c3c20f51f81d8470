"""Compare the classifier with a naive model of it, over random sequences of changes."""

import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fewmore import IncrementalClassifier
from fewmore.classifier.class_set import MAX_UNDO_STEPS
from fewmore.errors import DataError, FewmoreError, StateError, UnknownName


class NaiveClass(NamedTuple):
    name: str
    feature_sum: Any
    count: int


def clean(name: str) -> str:
    return unicodedata.normalize("NFC", name.strip())


class NaiveModel(RuleBasedStateMachine):
    """Run a classifier beside a plain list of classes and a stack of earlier lists."""

    trained: Path
    folder: Path
    names = st.sampled_from(["a", "b", "c", "class 0", "class 1", " a", "é", "e\u0301"])

    def __init__(self) -> None:
        super().__init__()
        self.clf = IncrementalClassifier.load(self.trained)
        self.known = [
            NaiveClass(known.name, known.feature_sum.numpy().copy(), known.count)
            for known in self.clf.model.class_set.classes
        ]
        self.past: list[list[NaiveClass]] = []
        self.version = 1
        self.random = np.random.default_rng(0)

    def change(self, known: list[NaiveClass]) -> None:
        self.past = [*self.past, self.known][-MAX_UNDO_STEPS:]
        self.known = known
        self.version += 1

    def position(self, name: str) -> int | None:
        return next((i for i, known in enumerate(self.known) if known.name == name), None)

    def random_features(self, count: int) -> Any:
        return np.abs(self.random.normal(size=(count, 64))).astype(np.float32)

    @rule(shots=st.dictionaries(names, st.integers(1, 3), min_size=1, max_size=3))
    def learn(self, shots: dict[str, int]) -> None:
        features = {name: self.random_features(count) for name, count in shots.items()}
        tensors = {name: torch.from_numpy(of_class) for name, of_class in features.items()}
        names = [clean(name) for name in shots]
        if len(set(names)) < len(names):
            with pytest.raises(DataError):
                self.clf.learn_features(tensors)
            return
        result = self.clf.learn_features(tensors)
        known = list(self.known)
        added = []
        for name, of_class in zip(names, features.values(), strict=True):
            position = self.position(name)
            if position is None:
                added.append(name)
                known.append(self.refined(NaiveClass(name, np.zeros(64), 0), of_class))
            else:
                known[position] = self.refined(known[position], of_class)
        self.change(known)
        assert result.added == added
        assert result.version == self.version

    def refined(self, known: NaiveClass, features: Any) -> NaiveClass:
        feature_sum = known.feature_sum.copy()
        for feature in features.astype(np.float64):
            feature_sum = feature_sum + feature
        return NaiveClass(known.name, feature_sum, known.count + len(features))

    @rule(forgotten=st.lists(names, min_size=1, max_size=3))
    def forget(self, forgotten: list[str]) -> None:
        names = {clean(name) for name in forgotten}
        if any(self.position(name) is None for name in names):
            with pytest.raises((UnknownName, StateError)):
                self.clf.forget(forgotten)
            return
        self.clf.forget(forgotten)
        self.change([known for known in self.known if known.name not in names])

    @rule(old=names, new=names)
    def rename(self, old: str, new: str) -> None:
        position = self.position(clean(old))
        if position is None or self.position(clean(new)) is not None:
            with pytest.raises(FewmoreError):
                self.clf.rename(old, new)
            return
        self.clf.rename(old, new)
        known = list(self.known)
        known[position] = known[position]._replace(name=clean(new))
        self.change(known)

    @rule()
    def undo(self) -> None:
        if not self.past:
            with pytest.raises(StateError):
                self.clf.undo()
            return
        self.clf.undo()
        self.known = self.past.pop()
        self.version += 1

    @rule()
    def save_and_load(self) -> None:
        path = self.folder / "machine.fewmore"
        self.clf.save(path)
        self.clf = IncrementalClassifier.load(path)

    @precondition(lambda self: self.known)
    @rule()
    def predict(self) -> None:
        features = self.random_features(3)
        variance = self.clf.model.variance
        similarity = np.empty((3, len(self.known)))
        for column, (_, feature_sum, count) in enumerate(self.known):
            mean = feature_sum / count
            squared = float(mean @ mean)
            true = max(squared - variance / count, squared / 4)
            cosine = features @ mean / np.linalg.norm(features, axis=1) / np.sqrt(true)
            similarity[:, column] = cosine
        scores = 16 * similarity / self.clf.calibration.temperature
        confidences = np.exp(scores - scores.max(1, keepdims=True))
        confidences /= confidences.sum(1, keepdims=True)
        predictions = self.clf.predict_features(torch.from_numpy(features), 1000)
        for query, prediction in enumerate(predictions):
            expected = {
                known.name: confidences[query, position]
                for position, known in enumerate(self.known)
            }
            actual = dict(zip(prediction.names, prediction.confidences, strict=True))
            assert actual == pytest.approx(expected, abs=1e-4)
            assert prediction.familiarity == pytest.approx(similarity[query].max(), abs=1e-5)

    @invariant()
    def knows_the_same(self) -> None:
        classes = self.clf.model.class_set.classes
        assert self.clf.classes_ == [known.name for known in self.known]
        assert all(
            (a.feature_sum.numpy() == b.feature_sum).all() and a.count == b.count
            for a, b in zip(classes, self.known, strict=True)
        )
        assert self.clf.version == self.version


def run_machine(trained: Path, folder: Path, examples: int, steps: int) -> None:
    machine = type("Machine", (NaiveModel,), {"trained": trained, "folder": folder})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_it_does_as_a_naive_model_does(small_trained: Path, tmp_path: Path):
    run_machine(small_trained, tmp_path, 15, 15)


@pytest.mark.soak
def test_it_does_as_a_naive_model_does_for_long(small_trained: Path, tmp_path: Path):
    run_machine(small_trained, tmp_path, 300, 60)
