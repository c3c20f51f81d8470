"""Hold everything that a trained classifier consists of."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fewmore.classifier.calibration import Calibration
from fewmore.classifier.class_set import ClassSet
from fewmore.classifier.whitening import Whitening
from fewmore.data.augment import Transform
from fewmore.nn.adapter import AdapterConfig


@dataclass(frozen=True, eq=False)
class Model:
    """Hold a classifier as plain values and tensors: what a model file stores."""

    backbone: str
    transform: Transform
    weights: dict[str, Tensor]  # of the backbone
    dim: int  # features of an image
    class_set: ClassSet
    calibration: Calibration = field(default_factory=Calibration)
    variance: float = 0.0  # within classes; see `heads.Head`
    whitening: Whitening | None = None
    adapter: dict[str, Tensor] | None = None
    adapter_config: AdapterConfig = field(default_factory=AdapterConfig)
    projection: Tensor | None = None  # (d, r)
    notes: tuple[str, ...] = ()
    origin: dict[str, str | int] = field(default_factory=dict)  # version, weights, seed, date

    @property
    def head_name(self) -> str:
        """Return what features and classes are compared by."""
        if self.adapter is not None:
            return "adapter"
        whitening = self.whitening
        if whitening is None:
            return "plain cosine"
        kind = "centered cosine" if bool(whitening.center.any()) else "plain cosine"
        if whitening.damping.shape[1]:
            kind = "whitened cosine"
        return kind if whitening.classifier is None else f"{kind} and the backbone's own classes"

    def has_backbone_of(self, other: "Model") -> bool:
        """Return whether the features of both are computed alike, before any whitening."""
        if (self.backbone, self.transform) != (other.backbone, other.transform):
            return False
        return self.weights.keys() == other.weights.keys() and all(
            torch.equal(tensor, other.weights[name]) for name, tensor in self.weights.items()
        )

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each part."""
        return {
            "backbone": _size(self.weights),
            "adapter": _size(self.adapter or {}),
            "whitening": _size({} if self.whitening is None else self.whitening.tensors()),
            "projection": 0 if self.projection is None else 4 * self.projection.numel(),
            "classes": sum(
                8 * self.dim + 8 * len(known.hashes) for known in self.class_set.classes
            ),
        }


def _size(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
