"""Export a classifier to ONNX in two graphs, for programs without PyTorch that go on learning.

`backbone.onnx` turns images into features, and `scorer.onnx` turns features into confidences. What
is known of the classes is in `classes.npz`, whose arrays are inputs of the scorer, and
`classes.json` has the names. So learning, renaming or forgetting a class changes these two small
files alone. No file gets to its place before onnxruntime ran it and gave what PyTorch gives. The
files are replaced one after another, so `classes.json` has the checksums of the others.
"""

import hashlib
import importlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewmore import __version__
from fewmore.classifier.embedding import Progress, square_size
from fewmore.classifier.engines.graph import without_warnings
from fewmore.classifier.engines.onnx_runtime import import_silent
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.onnx_graphs import BackboneGraph, Graph, ScorerGraph, class_arrays
from fewmore.errors import ConfigError, ExportError, StateError, first_line
from fewmore.io import file_hash

FORMAT = 1  # of classes.json
FILES = ("backbone.onnx", "scorer.onnx", "classes.npz", "classes.json")  # as they get there
TOLERANCE = 1e-4  # between onnxruntime and PyTorch; relative to the largest number above 1


@dataclass(frozen=True)
class ExportedFile:
    """Name a file of an export, and say whether it was written or reused."""

    path: Path
    written: bool


def to_onnx(
    classifier: IncrementalClassifier, folder: str | Path, progress: Progress | None = None
) -> list[ExportedFile]:
    """Write a classifier into a folder; graphs that are there and still fit are reused."""
    import_onnxruntime()
    folder = Path(folder).expanduser()
    check_folder(folder, FILES)
    graphs = make_graphs(classifier)
    embedder = classifier.embedder
    scorer = classifier.scorer
    calibration = classifier.calibration
    description = {
        "format": FORMAT,
        "fewmore": __version__,
        "classes": [known.name for known in scorer.classes],
        "threshold": calibration.threshold,
        "side": square_size(embedder.transform),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as temporary:
            arrays = class_arrays(scorer)
            return _export(graphs, arrays, description, folder, Path(temporary), progress)
    except OSError as error:
        raise ExportError(
            f"{folder} cannot be written ({error.strerror or error}): "
            "give a folder that you may write to"
        ) from error


def check_folder(folder: Path, files: Sequence[str]) -> None:
    """Refuse a folder that has files, but not these, which an earlier export wrote.

    An export of two graphs that was stopped leaves the first of its files.
    """
    try:
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    except OSError:  # it is made, or writing into it reports what is wrong
        return
    if not names.issuperset(files) and names != set(FILES[: len(names)]):
        raise ExportError(
            f"{folder} has files that fewmore did not export: give a new or an empty folder, "
            f"such as {folder / 'export'}"
        )


def make_graphs(classifier: IncrementalClassifier) -> dict[str, Graph]:
    """Return the graphs of a classifier by the names of their files, or refuse to export it."""
    embedder = classifier.embedder
    scorer = classifier.scorer
    if embedder.device.type != "cpu":
        raise ConfigError(
            f"the classifier is on {embedder.device}, and export works on the CPU: "
            "load it with device='cpu'"
        )
    if not len(scorer):
        raise StateError(
            "the classifier knows no class, so there is nothing to export: learn some first"
        )
    return {
        "backbone.onnx": BackboneGraph(embedder),
        "scorer.onnx": ScorerGraph(scorer, classifier.calibration.temperature),
    }


def import_onnxruntime() -> Any:
    """Return onnxruntime, after checking that all packages of an export are installed."""
    try:
        for name in ("onnx", "onnxscript"):
            importlib.import_module(name)
        return import_silent()
    except ImportError as error:
        raise ConfigError(
            f"export takes packages that are not installed ({error}): pip install 'fewmore[export]'"
        ) from error


def _export(
    graphs: Mapping[str, Graph],
    arrays: dict[str, np.ndarray],
    description: dict[str, Any],
    folder: Path,
    temporary: Path,
    progress: Progress | None,
) -> list[ExportedFile]:
    previous = _read_description(folder)
    files = []
    for step, (name, graph) in enumerate(graphs.items()):
        if progress:
            progress("exporting", step, len(graphs))
        digest = _graph_hash(graph)
        is_reused = _is_reusable(previous.get(name), digest, folder / name)
        path = (folder if is_reused else temporary) / name
        if not is_reused:
            write_graph(graph, path)
        check_graph(graph, path)
        description[name] = {"origin": digest, "sha256": file_hash(path)}
        files.append(ExportedFile(folder / name, not is_reused))
    # numpy's stubs take any keyword for one of savez's own switches.
    np.savez(temporary / "classes.npz", **arrays)  # type: ignore[arg-type]
    description["classes.npz"] = {"sha256": file_hash(temporary / "classes.npz")}
    (temporary / "classes.json").write_text(
        json.dumps(description, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    # The description comes last, because it vouches for the other files.
    files += [ExportedFile(folder / name, True) for name in ("classes.npz", "classes.json")]
    for file in files:
        if file.written:
            os.replace(temporary / file.path.name, file.path)
    return files


# Writing and checking a graph


def write_graph(graph: Graph, path: Path) -> None:
    """Trace a graph and write it as an ONNX file."""
    inputs, axes = graph.example()
    with without_warnings():
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
        # The exporter raises errors of many kinds, pages long, with the cause at the bottom.
        except Exception as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            if isinstance(cause, OSError):  # of the disk
                raise cause from None
            reason = first_line(cause)
            raise ExportError(
                f"PyTorch {torch.__version__} cannot turn the {path.stem} into ONNX ({reason}): "
                "try another version"
            ) from error


def check_graph(graph: Graph, path: Path) -> None:
    """Refuse a file that does not give what the classifier gives."""
    inputs, expected = graph.test_case()
    arrays = {name: tensor.numpy() for name, tensor in zip(graph.inputs, inputs, strict=True)}
    try:
        session = import_onnxruntime().InferenceSession(
            str(path), providers=["CPUExecutionProvider"]
        )
        outputs = session.run(list(graph.outputs), arrays)
    except Exception as error:  # the error classes of onnxruntime have no common base class
        reason = first_line(error)
        raise ExportError(
            f"onnxruntime cannot run the {path.stem} ({reason}): try another version"
        ) from error
    for name, theirs, ours in zip(graph.outputs, outputs, expected, strict=True):
        scale = max(1.0, float(ours.abs().max()))
        difference = float(np.abs(theirs - ours.numpy()).max()) / scale
        if not difference <= TOLERANCE:
            raise ExportError(
                f"onnxruntime's {name} are {difference:.1e} apart from PyTorch's, and "
                f"{TOLERANCE:.0e} is allowed: nothing was written; "
                "try other versions of torch and onnxruntime"
            )


# Reusing a graph


def _read_description(folder: Path) -> dict[str, Any]:
    """Read classes.json of an earlier export; an empty dict if there is none of this format."""
    try:
        description = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        return {}
    return description


def _is_reusable(claim: object, digest: str, path: Path) -> bool:
    return (
        isinstance(claim, dict)
        and claim.get("origin") == digest
        and path.exists()
        and claim.get("sha256") == file_hash(path)
    )


def _graph_hash(graph: Graph) -> str:
    """Hash everything that decides a graph."""
    versions = (__version__, torch.__version__)
    digest = hashlib.sha256(repr((*versions, graph.inputs, graph.settings())).encode())
    for name, tensor in graph.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:32]
