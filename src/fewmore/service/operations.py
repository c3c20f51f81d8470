"""Describe a change of the classifier as data that a journal can hold, and apply it.

An operation is applied to a copy, so that predictions go on with the classifier of before until
the change is on the disk.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.inputs import LabeledImages
from fewmore.classifier.results import LearnResult
from fewmore.errors import ConfigError, ModelFileError, StateError
from fewmore.service.journal import Record

log = logging.getLogger("fewmore.service")

Result = LearnResult | str | None  # of learn, of undo, and of the others


@dataclass(frozen=True, eq=False)
class Operation:
    """Describe a change: "learn" or "forget" a class, "rename" it from … to …, or "undo"."""

    kind: str
    names: tuple[str, ...] = ()
    hashes: tuple[int, ...] = ()  # of the images to learn
    features: Tensor | None = None  # of the same images, (k, d) float32

    def to_record(self, when: str, **more: Any) -> Record:
        """Convert to a journal record."""
        head = {"kind": self.kind, "names": self.names, "hashes": self.hashes, "when": when}
        if self.features is None:
            return Record({**head, **more})
        features = self.features.detach().cpu().float().contiguous()
        return Record({**head, **more}, features.numpy().tobytes())

    @classmethod
    def from_record(cls, record: Record, dim: int) -> "Operation":
        """Convert back from a journal record."""
        head = record.head
        features = None
        try:
            if record.body:
                values = torch.frombuffer(bytearray(record.body), dtype=torch.float32)
                features = values.view(-1, dim)
            # "prints": the name from before the first release
            hashes = head["hashes"] if "hashes" in head else head["prints"]
            return cls(head["kind"], tuple(head["names"]), tuple(hashes), features)
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise ModelFileError(
                f"a journal's record does not fit its model file ({error}): "
                "was that replaced by another one?"
            ) from error


def apply(
    operation: Operation, classifier: IncrementalClassifier
) -> tuple[IncrementalClassifier, Result]:
    """Return a changed copy of the classifier, and what the operation returned."""
    changed = classifier.with_class_set(classifier.model.class_set)
    if operation.kind == "learn" and operation.features is not None:
        return changed, _learn(changed, operation, operation.features)
    if operation.kind == "forget":
        changed.forget(operation.names)
        return changed, None
    if operation.kind == "rename":
        changed.rename(*operation.names)
        return changed, None
    if operation.kind == "undo":
        return changed, changed.undo()
    raise ModelFileError(
        f"a journal's record is of the kind {operation.kind!r}, which this version of fewmore "
        "does not know: update it"
    )


def _learn(
    classifier: IncrementalClassifier, operation: Operation, features: Tensor
) -> LearnResult:
    (name,) = operation.names
    count = len(operation.hashes)
    titles = tuple(f"image {number} of {name}" for number in range(1, count + 1))
    images = LabeledImages((name,), (0,) * count, (), titles)
    features = features.to(classifier.embedder.device)
    return classifier.learn_embedded(images, features, operation.hashes)


def replay(records: Sequence[Record], classifier: IncrementalClassifier) -> IncrementalClassifier:
    """Apply the operations of a journal to the state that they were first applied to."""
    for record in records:
        operation = Operation.from_record(record, classifier.embedder.dim)
        classifier, _ = apply(operation, classifier)
        classifier = _with_time_of(record, classifier)
    return classifier


def rebase(records: Sequence[Record], classifier: IncrementalClassifier) -> IncrementalClassifier:
    """Apply the operations of a journal to another state than the one they were made for.

    Learning always works. Forgetting or renaming a class that is gone is left out. An undo reverts
    only an operation of this journal, never somebody else's change.
    """
    applied: list[bool] = []  # for each operation that is not undone: did it change anything?
    for record in records:
        operation = Operation.from_record(record, classifier.embedder.dim)
        if operation.kind == "undo" and not (applied and applied.pop()):
            continue
        version = classifier.version
        try:
            classifier, _ = apply(operation, classifier)
        except (ConfigError, StateError) as error:  # a class to be forgotten or renamed is gone
            log.warning("left out: %s", error)
        if operation.kind != "undo":
            applied.append(classifier.version != version)
            if applied[-1]:
                classifier = _with_time_of(record, classifier)
    return classifier


def _with_time_of(record: Record, classifier: IncrementalClassifier) -> IncrementalClassifier:
    """Give the last change the time at which it was first made."""
    class_set = classifier.model.class_set
    if record.head["kind"] == "undo" or not record.head["when"]:
        return classifier
    last = replace(class_set.history[-1], when=record.head["when"])
    return classifier.with_class_set(replace(class_set, history=(*class_set.history[:-1], last)))
