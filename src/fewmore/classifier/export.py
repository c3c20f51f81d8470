"""A classifier as ONNX, for programs without PyTorch.

`backbone.onnx` turns images into features, and `scorer.onnx` turns features into answers. What is known of the classes is in
neither: it lies in `classes.npz`, whose arrays are inputs of the scorer, and `classes.json` has their names. So a class that is
learnt, renamed or forgotten later changes these two small files alone. Nothing gets its place before onnxruntime ran it and gave
what PyTorch gives.

n: images   s: side of an image, in pixels   N: classes
"""

import hashlib
import importlib
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmore import __version__
from fewmore.classifier.embedding import Embedder, square_size
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.heads import Scorer
from fewmore.errors import ConfigError, ExportError
from fewmore.nn.adapter import Adapter
from fewmore.nn.closed_form import CLASS_AXIS, Context
from fewmore.nn.similarity import TEMPERATURE

FORMAT = 1  # of classes.json
TOLERANCE = (
    1e-4  # between onnxruntime and PyTorch; relative to the largest number, where that is above 1
)
CONTEXT = "context_"  # how the names of the adapter's arrays begin
# The fields of an adapter's context that are inputs of the scorer, and the axis of their classes.
ADAPTED = {name: axis for name, axis in CLASS_AXIS.items() if name != "retained"}
AXES = {"rows": 0} | {f"{CONTEXT}{name}": axis for name, axis in ADAPTED.items()}


@dataclass(frozen=True)
class Exported:
    """A file of an export, and whether it was written or found as it should be."""

    path: Path
    written: bool


def to_onnx(classifier: IncrementalClassifier, folder: str | Path) -> list[Exported]:
    """Write a classifier into a folder; a backbone and a scorer that are there already are kept."""
    packages()
    folder = Path(folder).expanduser()
    embedder, scorer, calibration = (
        classifier.embedder,
        classifier.scorer,
        classifier.model.calibration,
    )
    if embedder.device.type != "cpu":
        raise ConfigError(
            f"the classifier is on {embedder.device}, and export works on the CPU: load it with device='cpu'"
        )
    if not len(scorer):
        raise ConfigError(
            "the classifier knows no class, so there is nothing to export: learn some first"
        )
    graphs = {
        "backbone.onnx": _Backbone(embedder),
        "scorer.onnx": _Scorer(scorer, calibration.temperature),
    }
    about = {
        "format": FORMAT,
        "fewmore": __version__,
        "classes": [known.name for known in scorer.classes],
        "threshold": calibration.threshold,
        "side": square_size(embedder.transform),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as temporary:
            return _export(graphs, class_arrays(scorer), about, folder, Path(temporary))
    except OSError as error:
        raise ExportError(
            f"{folder} cannot be written ({error.strerror or error}): give a folder that you may write to"
        ) from error


def _export(
    graphs: "dict[str, _Graph]",
    arrays: dict[str, np.ndarray],
    about: dict[str, Any],
    folder: Path,
    temporary: Path,
) -> list[Exported]:
    there, done = _described(folder), []
    for name, graph in graphs.items():
        origin = _origin(graph)
        kept = _is_kept(there.get(name), origin, folder / name)
        path = (folder if kept else temporary) / name
        if not kept:
            _write(graph, path)
        _check(graph, path)
        about[name] = {"origin": origin, "sha256": _sha256(path)}
        done.append(Exported(folder / name, not kept))
    np.savez(temporary / "classes.npz", **arrays)  # type: ignore[arg-type]  # the stubs take any keyword for a switch
    (temporary / "classes.json").write_text(
        json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    done += [
        Exported(folder / name, True) for name in ("classes.npz", "classes.json")
    ]  # the description last: it vouches for the others
    for one in done:
        if one.written:
            os.replace(temporary / one.path.name, one.path)
    return done


def packages() -> Any:
    """onnxruntime, once it is sure that all that an export takes is installed."""
    try:
        for name in ("onnx", "onnxscript"):
            importlib.import_module(name)
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ConfigError(
            f"export takes packages that are not installed ({error}): pip install 'fewmore[export]'"
        ) from error


def class_arrays(scorer: Scorer) -> dict[str, np.ndarray]:
    """What the scorer's graph has to be told of the classes, by the names of its inputs."""
    tensors = {"rows": scorer.unit_prototypes * scorer.norm_correction[:, None]}
    if scorer.head.adapter is not None:
        tensors |= {f"{CONTEXT}{name}": getattr(scorer.context, name) for name in ADAPTED}
    return {
        name: tensor.detach().cpu().numpy()
        for name, tensor in tensors.items()
        if tensor is not None
    }


# The two graphs


class _Graph(nn.Module):
    """What becomes an ONNX file."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def example(self) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """Inputs to trace it with, and which of their axes are of any length."""
        raise NotImplementedError

    def trial(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Inputs, and what the classifier makes of them."""
        raise NotImplementedError

    def settings(self) -> object:
        """What decides the graph beside its tensors."""
        raise NotImplementedError


class _Backbone(_Graph):
    """Central squares (n, 3, s, s) uint8 to features (n, d)."""

    inputs, outputs = ("images",), ("features",)

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.embedder, self.backbone = embedder, embedder.backbone
        self.side = square_size(embedder.transform)

    def forward(self, images: Tensor) -> Tensor:
        return self.embedder.features(images)[0]

    def example(self) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        return (self._noise(2),), ({0: torch.export.Dim("images")},)

    def trial(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        images = self._noise(3)
        return (images,), (self.embedder.features(images)[0],)

    def settings(self) -> object:
        return self.embedder.transform

    def _noise(self, count: int) -> Tensor:
        shape = (count, 3, self.side, self.side)
        return torch.randint(
            0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(count)
        )


class _Scorer(_Graph):
    """Features (n, d) and arrays of the classes to confidences (n, N) and familiarity (n,)."""

    outputs = ("confidences", "familiarity")

    def __init__(self, scorer: Scorer, temperature: float) -> None:
        super().__init__()
        self.scorer, self.temperature = scorer, temperature
        self.adapter, self.projection = scorer.head.adapter, scorer.head.projection
        self.classes = {
            name: torch.from_numpy(array) for name, array in class_arrays(scorer).items()
        }
        self.inputs = ("features", *self.classes)

    def forward(self, features: Tensor, *arrays: Tensor) -> tuple[Tensor, Tensor]:
        classes = dict(zip(self.inputs[1:], arrays, strict=True))
        likeness = F.normalize(features, dim=1) @ classes["rows"].T
        scores = (
            TEMPERATURE * likeness
            if self.adapter is None
            else self._adapted(self.adapter, features, classes)
        )
        return (scores / self.temperature).softmax(1), likeness.amax(1)

    def _adapted(self, adapter: Adapter, features: Tensor, classes: dict[str, Tensor]) -> Tensor:
        known = {name: classes.get(f"{CONTEXT}{name}") for name in ADAPTED}
        maps = {"similarity_map": adapter.similarity_map(), "value_map": adapter.value_map()}
        # Scoring does not read `retained`.
        context = Context(**known, **maps, retained=features)  # type: ignore[arg-type]
        features = features if self.projection is None else features @ self.projection
        return adapter.scores(features, context, tiled=False)

    def example(self) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        # A length of 1 would be taken for a constant: the example has the first class several times.
        classes = [
            tensor.narrow(AXES[name], 0, 1).repeat_interleave(4, AXES[name])
            for name, tensor in self.classes.items()
        ]
        any_number = torch.export.Dim("classes")
        axes = tuple({AXES[name]: any_number} for name in self.classes)
        return (self._noise(3), *classes), ({0: torch.export.Dim("images")}, axes)

    def trial(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        features = torch.cat([self._noise(5), self.classes["rows"][:5]])
        confidences = (self.scorer.scores(features) / self.temperature).softmax(1)
        return (features, *self.classes.values()), (confidences, self.scorer.familiarity(features))

    def settings(self) -> object:
        projected = (
            None
            if self.projection is None
            else hashlib.sha256(self.projection.numpy().tobytes()).hexdigest()
        )
        return self.temperature, None if self.adapter is None else self.adapter.config, projected

    def _noise(self, count: int) -> Tensor:
        return torch.rand(
            count, self.classes["rows"].shape[1], generator=torch.Generator().manual_seed(count)
        )


# Written, and checked


def _write(graph: _Graph, path: Path) -> None:
    inputs, axes = graph.example()
    with _quietly():
        try:
            torch.onnx.export(
                graph.eval(),
                inputs,
                str(path),
                input_names=graph.inputs,
                output_names=graph.outputs,
                dynamic_shapes=axes,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # the exporter raises errors of many kinds, pages long, with the cause at their bottom
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            why = (str(cause) or type(cause).__name__).splitlines()[0][:200]
            raise ExportError(
                f"PyTorch {torch.__version__} cannot turn the {path.stem} into ONNX ({why}): try another version"
            ) from error


def _check(graph: _Graph, path: Path) -> None:
    """Refuse a file that does not give what the classifier gives."""
    inputs, wanted = graph.trial()
    try:
        session = packages().InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found = session.run(
            list(graph.outputs),
            {name: tensor.numpy() for name, tensor in zip(graph.inputs, inputs, strict=True)},
        )
    except Exception as error:  # onnxruntime's own kinds, which have no common name
        raise ExportError(
            f"onnxruntime cannot run the {path.stem} ({str(error).splitlines()[0][:200]}): try another version"
        ) from error
    for name, theirs, ours in zip(graph.outputs, found, wanted, strict=True):
        apart = float(np.abs(theirs - ours.numpy()).max()) / max(1.0, float(ours.abs().max()))
        if not apart <= TOLERANCE:
            raise ExportError(
                f"onnxruntime's {name} are {apart:.1e} apart from PyTorch's, and {TOLERANCE:.0e} is allowed: nothing was written; "
                f"try other versions of torch and onnxruntime"
            )


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporter tells of its inner life, by warnings and in its log."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


# What is there already


def _described(folder: Path) -> dict[str, Any]:
    """What classes.json in the folder says; nothing where it is not there, or not ours."""
    try:
        about = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) and about.get("format") == FORMAT else {}


def _is_kept(claim: object, origin: str, path: Path) -> bool:
    return (
        isinstance(claim, dict)
        and claim.get("origin") == origin
        and path.exists()
        and claim.get("sha256") == _sha256(path)
    )


def _origin(graph: _Graph) -> str:
    """A name of all that decides a graph."""
    digest = hashlib.sha256(
        repr((__version__, torch.__version__, graph.inputs, graph.settings())).encode()
    )
    for name, tensor in graph.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:32]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
