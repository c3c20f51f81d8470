"""Describe a change of the classifier as data that can be stored, and apply it.

An operation is applied to a copy, so that predictions go on with the classifier of before until
the change is on the disk.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.inputs import LabeledImages
from fewmore.classifier.results import LearnResult
from fewmore.errors import ConfigError, ModelFileError, StateError

log = logging.getLogger("fewmore.service")

Result = LearnResult | str | None  # of learn, of undo, and of the others


@dataclass(frozen=True, eq=False)
class Operation:
    """Describe a change: "learn" images, "remove" some, "forget" or "rename" a class, or "undo"."""

    kind: str
    names: tuple[str, ...] = ()
    hashes: tuple[int, ...] = ()  # of the images to learn or to remove
    features: bytes = b""  # of the same images, (k, d) float32
    when: str = ""  # UTC, once it was made

    @classmethod
    def learn(cls, name: str, hashes: tuple[int, ...], features: Tensor) -> "Operation":
        """Describe the learning of images from their features (k, d)."""
        rows = features.detach().cpu().float().contiguous().numpy()
        return cls("learn", (name,), hashes, rows.tobytes())

    @property
    def digest(self) -> bytes:
        """Hash all of it, so that damage can be told from what was written."""
        head = json.dumps([self.kind, self.names, self.hashes, self.when]).encode()
        return hashlib.blake2b(head + self.features, digest_size=16).digest()

    def __str__(self) -> str:
        return " ".join((self.kind, " to ".join(self.names))).strip()


def apply(
    operation: Operation, classifier: IncrementalClassifier
) -> tuple[IncrementalClassifier, Result]:
    """Return a changed copy of the classifier, and what the operation returned."""
    changed = classifier.with_class_set(classifier.model.class_set)
    if operation.kind == "learn":
        return changed, _learn(changed, operation)
    if operation.kind == "remove":
        (name,) = operation.names
        changed.remove_embedded(name, _features(changed, operation), operation.hashes)
        return changed, None
    if operation.kind == "forget":
        changed.forget(operation.names)
        return changed, None
    if operation.kind == "rename":
        # Stored changes of before may have names that are refused by now.
        return changed.with_class_set(changed.model.class_set.rename(*operation.names)), None
    if operation.kind == "undo":
        return changed, changed.undo()
    raise ModelFileError(
        f"a stored change is of the kind {operation.kind!r}, which this version of fewmore "
        "does not know: update it"
    )


def _learn(classifier: IncrementalClassifier, operation: Operation) -> LearnResult:
    (name,) = operation.names
    count = len(operation.hashes)
    titles = tuple(f"image {number} of {name}" for number in range(1, count + 1))
    images = LabeledImages((name,), (0,) * count, (), titles)
    return classifier.learn_embedded(images, _features(classifier, operation), operation.hashes)


def _features(classifier: IncrementalClassifier, operation: Operation) -> Tensor:
    """Return the features of an operation's images, (k, d)."""
    try:
        values = torch.frombuffer(bytearray(operation.features), dtype=torch.float32)
        features = values.view(len(operation.hashes), classifier.embedder.dim)
        return features.to(classifier.embedder.device)
    except (RuntimeError, ValueError) as error:
        raise ModelFileError(
            f"a stored change does not fit its model file ({error}): "
            "was that replaced by another one?"
        ) from error


def replay(
    operations: Sequence[Operation], classifier: IncrementalClassifier
) -> IncrementalClassifier:
    """Apply operations to the state that they were first applied to."""
    for operation in operations:
        classifier, _ = apply(operation, classifier)
        classifier = _with_time_of(operation, classifier)
    return classifier


def rebase(
    operations: Sequence[Operation | None], classifier: IncrementalClassifier
) -> IncrementalClassifier:
    """Apply operations to another state than the one they were made for; None is a lost one.

    Learning always works. What was to be changed and is gone is left out. An undo reverts
    only one of these operations, never somebody else's change.
    """
    applied: list[bool] = []  # for each operation that is not undone: did it change anything?
    for operation in operations:
        if operation is None:
            applied.append(False)
            continue
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
                classifier = _with_time_of(operation, classifier)
    return classifier


def _with_time_of(operation: Operation, classifier: IncrementalClassifier) -> IncrementalClassifier:
    """Give the last change the time at which it was first made."""
    class_set = classifier.model.class_set
    if operation.kind == "undo" or not operation.when:
        return classifier
    last = replace(class_set.history[-1], when=operation.when)
    return classifier.with_class_set(replace(class_set, history=(*class_set.history[:-1], last)))
