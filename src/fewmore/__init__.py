"""fewmore: teach an image classifier new classes from a handful of images, without forgetting the old ones."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fewmore.classifier.estimator import IncrementalClassifier

__version__ = "0.1.0"
__all__ = ["IncrementalClassifier", "__version__"]


def __getattr__(name: str) -> Any:
    """Found when first asked for: it brings PyTorch along, and the command line's help should not wait for that."""
    if name == "IncrementalClassifier":
        from fewmore.classifier.estimator import IncrementalClassifier

        return IncrementalClassifier
    raise AttributeError(f"module 'fewmore' has no attribute '{name}'")
