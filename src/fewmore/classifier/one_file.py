"""Export a classifier as one ONNX file: a photo of any size in, the name of its class out.

The file joins four graphs: `prepare` resizes a photo and crops its center, the backbone and the
scorer are those of the export in two graphs, and `answer` picks a name. What is known of the
classes is stored in it, and its metadata say it once more as JSON.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fewmore import __version__
from fewmore.classifier.embedding import Progress, no_progress, square_size
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.export import (
    TOLERANCE,
    check_graph,
    import_onnxruntime,
    make_graphs,
    write_graph,
)
from fewmore.classifier.inputs import ImagesByClass, LabeledImages, collect_images
from fewmore.classifier.int8 import draw_squares, quantize
from fewmore.classifier.onnx_graphs import class_arrays
from fewmore.classifier.text import NONE_OF_THESE
from fewmore.errors import DataError, ExportError, first_line
from fewmore.io import write_bytes

OUTPUTS = ("label", "names", "probabilities", "known", "familiarity", "features")

# Sizes are rounded as in `data/decode.py`. Pillow, too, widens the triangle of linear interpolation
# where it shrinks an image, and leaves out what is beyond the border.
PREPARE = """
<ir_version: {ir_version}, opset_import: ["" : {opset}]>
prepare (uint8[height, width, 3] image) => (uint8[1, 3, {side}, {side}] images)
{{
    side = Constant <value_ints = [{side}]> ()
    channels = Constant <value_ints = [3]> ()
    two = Constant <value_ints = [2]> ()
    first = Constant <value_ints = [0]> ()
    axes = Constant <value_ints = [0, 1]> ()
    size = Shape <start = 0, end = 2> (image)
    shorter = ReduceMin (size, first)
    scaled = Mul (size, side)
    dividend = Cast <to = 11> (scaled)
    divisor = Cast <to = 11> (shorter)
    quotient = Div (dividend, divisor)
    rounded = Round (quotient)
    new_size = Cast <to = 7> (rounded)
    new_shape = Concat <axis = 0> (new_size, channels)
    resized = Resize <mode = "linear", antialias = 1, exclude_outside = 1> (image, , , new_shape)
    margin = Sub (new_size, side)
    start = Div (margin, two)
    end = Add (start, side)
    square = Slice (resized, start, end, axes)
    channels_first = Transpose <perm = [2, 0, 1]> (square)
    images = Unsqueeze (channels_first, first)
}}
"""

ANSWER = """
<ir_version: {ir_version}, opset_import: ["" : {opset}]>
answer (float[1, {classes}] confidences, float[1] familiarity)
    => (string[1] label, string[{classes}] names, float[1, {classes}] probabilities, bool[1] known)
{{
    best = ArgMax <axis = 1, keepdims = 0> (confidences)
    best_name = Gather (all_names, best)
    exact = Cast <to = 11> (familiarity)
    known = GreaterOrEqual (exact, threshold)
    label = Where (known, best_name, none)
    names = Identity (all_names)
    probabilities = Identity (confidences)
}}
"""


@dataclass(frozen=True)
class OneFile:
    """Describe an export: of int8, how many photos got the answer of the classifier."""

    path: Path
    compared: int = 0
    agreeing: int = 0


def to_onnx_file(
    classifier: IncrementalClassifier,
    path: str | Path,
    int8: ImagesByClass | None = None,
    progress: Progress | None = None,
) -> OneFile:
    """Write a classifier as one ONNX file, checked with onnxruntime.

    With photos as `int8`, by class as `fit` takes them, the convolutions of the backbone are
    computed with whole numbers of 8 bits. Half of the photos say which numbers occur, and the other
    half how many answers stay the same.
    """
    import_onnxruntime()
    path = Path(path).expanduser()
    photos = None if int8 is None else collect_images(int8)
    if photos is not None and len(photos) < 2:
        raise DataError("int8 takes at least 2 photos, one to calibrate with: give more")
    if not path.parent.is_dir():
        raise ExportError(f"{path.parent} is no folder: make it first")
    try:
        with tempfile.TemporaryDirectory() as temporary:
            model, compared, agreeing = _assemble(
                classifier, photos, Path(temporary), progress or no_progress
            )
        write_bytes(path, model)
    except OSError as error:
        raise ExportError(
            f"{path} cannot be written ({error.strerror or error}): "
            "give a file that you may write to"
        ) from error
    return OneFile(path, compared, agreeing)


def describe(classifier: IncrementalClassifier) -> dict[str, Any]:
    """Return what a program should know of the classes, as JSON values."""
    calibration = classifier.calibration
    return {
        "fewmore": __version__,
        "classes": classifier.names,
        "none": NONE_OF_THESE,
        "threshold": calibration.threshold,
        "temperature": calibration.temperature,
        "classifier": classifier.model.head_name,
        "side": square_size(classifier.embedder.transform),
    }


def _assemble(
    classifier: IncrementalClassifier,
    photos: LabeledImages | None,
    folder: Path,
    progress: Progress,
) -> tuple[bytes, int, int]:
    """Return the file's content, and how many photos were compared and agree."""
    graphs = make_graphs(classifier)
    steps = len(graphs) + 1
    for step, (name, graph) in enumerate(graphs.items()):
        progress("exporting", step, steps)
        write_graph(graph, folder / name)
        check_graph(graph, folder / name)
    progress("exporting", len(graphs), steps)
    backbone = folder / "backbone.onnx"
    if photos is None:
        model = _join(classifier, backbone, folder / "scorer.onnx")
        _check(classifier, model)
        return model, 0, 0
    squares = draw_squares(photos, classifier.embedder.transform)
    quantize(backbone, folder / "int8.onnx", squares[::2])
    model = _join(classifier, folder / "int8.onnx", folder / "scorer.onnx")
    return model, len(squares[1::2]), _count_agreeing(classifier, model, squares[1::2])


def _join(classifier: IncrementalClassifier, backbone: Path, scorer: Path) -> bytes:
    """Join the graphs of a classifier to one, which holds its classes."""
    import onnx

    about = describe(classifier)
    # The prefixes keep the inner names of the two apart.
    middle = [
        onnx.compose.add_prefix(
            onnx.load(path), f"{path.stem}/", rename_inputs=False, rename_outputs=False
        )
        for path in (backbone, scorer)
    ]
    newest = max(middle, key=lambda part: part.opset_import[0].version)
    numbers = {"ir_version": newest.ir_version, "opset": newest.opset_import[0].version}
    prepare = onnx.parser.parse_model(PREPARE.format(side=about["side"], **numbers))
    answer = onnx.parser.parse_model(ANSWER.format(classes=len(about["classes"]), **numbers))
    parts = [prepare, *middle, answer]
    threshold = about["threshold"]
    constants = {
        **class_arrays(classifier.scorer),
        "threshold": np.array(-np.inf if threshold is None else threshold, dtype=np.float64),
        "all_names": np.array(about["classes"], dtype=object),
        "none": np.array(NONE_OF_THESE, dtype=object),
    }
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    outputs = {value.name: value for part in parts for value in part.graph.output}
    graph = onnx.helper.make_graph(
        [node for part in parts for node in part.graph.node],
        "fewmore",
        list(prepare.graph.input),
        [outputs[name] for name in OUTPUTS],
        [*initializers, *(one for part in middle for one in part.graph.initializer)],
    )
    imports = {one.domain: one for part in parts for one in part.opset_import}
    model = onnx.helper.make_model(
        graph,
        opset_imports=list(imports.values()),
        functions=[function for part in middle for function in part.functions],
        ir_version=newest.ir_version,
        producer_name="fewmore",
        producer_version=__version__,
    )
    as_texts = {name: json.dumps(value, ensure_ascii=False) for name, value in about.items()}
    onnx.helper.set_model_props(model, as_texts)
    return bytes(model.SerializeToString())


def _open(model: bytes) -> Any:
    try:
        return import_onnxruntime().InferenceSession(model, providers=["CPUExecutionProvider"])
    except Exception as error:  # the error classes of onnxruntime have no common base class
        reason = first_line(error)
        raise ExportError(
            f"onnxruntime cannot run the file ({reason}): try another version"
        ) from error


def _check(classifier: IncrementalClassifier, model: bytes) -> None:
    """Refuse a file whose features or names are not those of the classifier."""
    session = _open(model)
    side = square_size(classifier.embedder.transform)
    generator = np.random.default_rng(0)
    for height, width in ((side, side), (side, side + 7)):  # which need no resizing
        image = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        names, theirs = session.run(["names", "features"], {"image": image})
        ours = classifier.embed([image]).numpy()
        difference = float(np.abs(theirs - ours).max()) / max(1.0, float(np.abs(ours).max()))
        if names.tolist() != classifier.names or not difference <= TOLERANCE:
            raise ExportError(
                f"the file's features are {difference:.1e} apart from PyTorch's, and "
                f"{TOLERANCE:.0e} is allowed: nothing was written; "
                "try other versions of torch and onnxruntime"
            )


def _count_agreeing(classifier: IncrementalClassifier, model: bytes, squares: Tensor) -> int:
    """Count the squares (n, 3, s, s) that the file answers as the classifier does."""
    session = _open(model)
    features = classifier.embedder.features(squares)
    agreeing = 0
    for square, prediction in zip(squares, classifier.predict_features(features), strict=True):
        image = np.ascontiguousarray(square.permute(1, 2, 0).numpy())
        (label,) = session.run(["label"], {"image": image})
        agreeing += label[0] == (prediction.names[0] if prediction.known else NONE_OF_THESE)
    return agreeing
