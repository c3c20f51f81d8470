"""Define the two graphs of an ONNX export: images to features, and features to confidences.

What is known of the classes is in neither graph: it is in arrays that are inputs of the scorer.

n: images   s: side of an image, in pixels   N: classes
"""

import hashlib
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmore.classifier.embedding import Embedder, square_size
from fewmore.classifier.engines.pytorch import TorchEngine
from fewmore.classifier.heads import Scorer
from fewmore.nn.adapter import Adapter
from fewmore.nn.closed_form import CLASS_AXIS, Context
from fewmore.nn.similarity import TEMPERATURE

MOST = 2**31 - 1  # images or classes; without a limit PyTorch 2.6 refuses to export
CONTEXT_PREFIX = "context_"  # of the names of the adapter's arrays
# The fields of an adapter's context that are inputs of the scorer, and the axis of their classes.
CONTEXT_AXIS = {name: axis for name, axis in CLASS_AXIS.items() if name != "retained"}
ARRAY_AXIS = {"prototypes": 0} | {
    f"{CONTEXT_PREFIX}{name}": axis for name, axis in CONTEXT_AXIS.items()
}

Tensors = tuple[Tensor, ...]


def class_arrays(scorer: Scorer) -> dict[str, np.ndarray]:
    """Return what the scorer's graph needs of the classes, by the names of its inputs."""
    tensors = {"prototypes": scorer.unit_prototypes * scorer.norm_correction[:, None]}
    if scorer.head.adapter is not None:
        tensors |= {
            f"{CONTEXT_PREFIX}{name}": getattr(scorer.context, name) for name in CONTEXT_AXIS
        }
    return {
        name: tensor.detach().cpu().numpy()
        for name, tensor in tensors.items()
        if tensor is not None
    }


class Graph(nn.Module):
    """Describe a module that becomes an ONNX file."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def example(self) -> tuple[Tensors, tuple[Any, ...]]:
        """Return inputs to trace the graph with, and which of their axes have any length."""
        raise NotImplementedError

    def test_case(self) -> tuple[Tensors, Tensors]:
        """Return inputs, and the outputs that the classifier gives for them."""
        raise NotImplementedError

    def settings(self) -> object:
        """Return what decides the graph besides its tensors."""
        raise NotImplementedError


class BackboneGraph(Graph):
    """Map center squares (n, 3, s, s) uint8 to features (n, d)."""

    inputs = ("images",)
    outputs = ("features",)

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.embedder = embedder
        self.engine = TorchEngine(embedder.backbone, embedder.transform)  # which can be traced
        self.size = square_size(embedder.transform)

    def forward(self, images: Tensor) -> Tensor:
        return self.embedder.features_by(self.engine, images)

    def example(self) -> tuple[Tensors, tuple[Any, ...]]:
        return (self._noise(2),), ({0: torch.export.Dim("images")},)

    def test_case(self) -> tuple[Tensors, Tensors]:
        images = self._noise(3)
        return (images,), (self(images),)

    def settings(self) -> object:
        whitening = self.embedder.whitening
        if whitening is None:
            return self.embedder.transform, _content_hash()
        digest = _content_hash(*whitening.tensors().values())
        return self.embedder.transform, digest, whitening.power, whitening.share

    def _noise(self, count: int) -> Tensor:
        shape = (count, 3, self.size, self.size)
        generator = torch.Generator().manual_seed(count)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


class ScorerGraph(Graph):
    """Map features (n, d) and class arrays to confidences (n, N) and familiarity (n,)."""

    outputs = ("confidences", "familiarity")

    def __init__(self, scorer: Scorer, temperature: float) -> None:
        super().__init__()
        self.scorer = scorer
        self.temperature = temperature
        self.adapter = scorer.head.adapter
        self.projection = scorer.head.projection
        self.classes = {
            name: torch.from_numpy(array) for name, array in class_arrays(scorer).items()
        }
        self.inputs = ("features", *self.classes)

    def forward(self, features: Tensor, *arrays: Tensor) -> tuple[Tensor, Tensor]:
        classes = dict(zip(self.inputs[1:], arrays, strict=True))
        similarity = F.normalize(features, dim=1) @ classes["prototypes"].T
        if self.adapter is None:
            scores = TEMPERATURE * similarity
        else:
            scores = self._adapted_scores(self.adapter, features, classes)
        return (scores / self.temperature).softmax(1), similarity.amax(1)

    def _adapted_scores(
        self, adapter: Adapter, features: Tensor, classes: dict[str, Tensor]
    ) -> Tensor:
        fields = {name: classes.get(f"{CONTEXT_PREFIX}{name}") for name in CONTEXT_AXIS}
        maps = {"similarity_map": adapter.similarity_map(), "value_map": adapter.value_map()}
        # Scoring does not read `retained`.
        context = Context(**fields, **maps, retained=features)  # type: ignore[arg-type]
        features = features if self.projection is None else features @ self.projection
        return adapter.scores(features, context, tiled=False)

    def example(self) -> tuple[Tensors, tuple[Any, ...]]:
        # An axis of length 1 would be taken for a constant, so the first class is repeated.
        classes = [
            tensor.narrow(ARRAY_AXIS[name], 0, 1).repeat_interleave(4, ARRAY_AXIS[name])
            for name, tensor in self.classes.items()
        ]
        any_number = torch.export.Dim("classes", max=MOST)
        axes = tuple({ARRAY_AXIS[name]: any_number} for name in self.classes)
        return (self._noise(3), *classes), ({0: torch.export.Dim("images", max=MOST)}, axes)

    def test_case(self) -> tuple[Tensors, Tensors]:
        features = torch.cat([self._noise(5), self.classes["prototypes"][:5]])
        confidences = (self.scorer.scores(features) / self.temperature).softmax(1)
        outputs = (confidences, self.scorer.familiarity(features))
        return (features, *self.classes.values()), outputs

    def settings(self) -> object:
        config = None if self.adapter is None else self.adapter.config
        projection = () if self.projection is None else (self.projection,)
        return self.temperature, self.scorer.head.dim, config, _content_hash(*projection)

    def _noise(self, count: int) -> Tensor:
        generator = torch.Generator().manual_seed(count)
        return torch.rand(count, self.classes["prototypes"].shape[1], generator=generator)


def _content_hash(*tensors: Tensor) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()
