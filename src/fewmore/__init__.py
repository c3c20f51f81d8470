"""Teach an image classifier new classes from a few images, without forgetting the old ones.

import fewmore

birds = fewmore.IncrementalClassifier().fit("photos")
birds.learn({"okapi": ["a.jpg", "b.jpg", "c.jpg"]})
birds.save("birds.fewmore")
fewmore.load("birds.fewmore").predict("unknown.jpg")
"""

import importlib
from typing import TYPE_CHECKING, Any

from fewmore.errors import (
    BenchmarkError,
    CheckpointError,
    ConfigError,
    DataError,
    DownloadError,
    ExportError,
    FewmoreError,
    ImageError,
    MethodError,
    MissingData,
    ModelFileError,
    NotFittedError,
    SplitError,
    StateError,
    UnknownName,
)

if TYPE_CHECKING:
    from fewmore.classifier.estimator import IncrementalClassifier, load
    from fewmore.classifier.prototype_classifier import PrototypeClassifier
    from fewmore.classifier.results import Prediction

__version__ = "0.1.0"
__all__ = [
    "BenchmarkError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DownloadError",
    "ExportError",
    "FewmoreError",
    "ImageError",
    "IncrementalClassifier",
    "MethodError",
    "MissingData",
    "ModelFileError",
    "NotFittedError",
    "Prediction",
    "PrototypeClassifier",
    "SplitError",
    "StateError",
    "UnknownName",
    "__version__",
    "load",
]

# These modules import PyTorch, which takes seconds; `fewmore --help` should not wait for that.
_LAZY = {
    "IncrementalClassifier": "fewmore.classifier.estimator",
    "Prediction": "fewmore.classifier.results",
    "PrototypeClassifier": "fewmore.classifier.prototype_classifier",
    "load": "fewmore.classifier.estimator",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module 'fewmore' has no attribute '{name}'")
    return getattr(importlib.import_module(_LAZY[name]), name)
