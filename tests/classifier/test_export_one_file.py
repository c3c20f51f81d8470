"""One ONNX file: it answers photos of any size as the classifier does."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewmore import IncrementalClassifier
from fewmore.classifier import one_file
from fewmore.classifier.embedding import center_square
from fewmore.classifier.export import to_onnx
from fewmore.classifier.int8 import quantize
from fewmore.classifier.one_file import OUTPUTS, PREPARE, to_onnx_file
from fewmore.classifier.text import NONE_OF_THESE
from fewmore.data.transform import Transform
from fewmore.errors import DataError, ExportError
from fewmore.nn.adapter import Adapter

onnx = pytest.importorskip("onnx", reason="the packages of fewmore[export] are not installed")
onnxruntime = pytest.importorskip(
    "onnxruntime", reason="the packages of fewmore[export] are not installed"
)
pytest.importorskip("onnxscript", reason="the packages of fewmore[export] are not installed")

Photos = Callable[..., Path]


def read(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def assert_agree(classifier: IncrementalClassifier, file: Path, paths: list[Path]) -> None:
    session = onnxruntime.InferenceSession(file)
    assert [output.name for output in session.get_outputs()] == list(OUTPUTS)
    predictions = classifier.predict(paths, top=len(classifier))
    for path, prediction in zip(paths, predictions, strict=True):
        outputs = session.run(None, {"image": read(path)})
        label, names, probabilities, known, familiarity, features = outputs
        assert label[0] == (prediction.names[0] if prediction.known else NONE_OF_THESE)
        assert names.tolist() == classifier.names
        assert known[0] == prediction.known
        expected = dict(zip(prediction.names, prediction.confidences, strict=True))
        # Pixels may differ by one level of 255, and a low temperature amplifies that.
        assert probabilities[0] == pytest.approx([expected[name] for name in names], abs=0.02)
        assert familiarity[0] == pytest.approx(prediction.familiarity, abs=2e-3)
        ours = classifier.embed([path])[0].numpy()
        assert np.linalg.norm(features[0] - ours) < 0.02 * np.linalg.norm(ours)


def test_photos_of_any_size_get_the_answers_of_the_classifier(
    classifier: IncrementalClassifier, photos: Photos, tmp_path: Path
) -> None:
    file = to_onnx_file(classifier, tmp_path / "birds.onnx").path
    large = sorted(photos("large", {"robin": 3, "wren": 2, "jay": 1, "owl": 2}, 97).rglob("*.png"))
    small = sorted(photos("small", {"robin": 2, "jay": 2}, 21).rglob("*.png"))
    assert_agree(classifier, file, large + small)
    about = onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == classifier.names
    assert json.loads(about["threshold"]) == classifier.calibration.threshold


def test_mirror_images_are_averaged_in_the_graph(
    mirrored: IncrementalClassifier, photos: Photos, tmp_path: Path
) -> None:
    folder = photos("some", {"robin": 4, "wren": 4, "owl": 2}, 97)
    file = to_onnx_file(mirrored, tmp_path / "birds.onnx").path
    assert_agree(mirrored, file, sorted(folder.rglob("*.png")))
    int8 = to_onnx_file(mirrored, tmp_path / "int8.onnx", int8=folder)
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(int8.path).graph.node}
    session = onnxruntime.InferenceSession(int8.path)
    image = read(next(folder.rglob("*.png")))
    one, other = (
        session.run(["features"], {"image": np.ascontiguousarray(view)})[0]
        for view in (image, image[:, ::-1])
    )
    assert one == pytest.approx(other, abs=1e-4)
    cosine = torch.cosine_similarity(torch.from_numpy(one), mirrored.embed([image]))
    assert float(cosine) > 0.9


def test_an_adapter_and_no_threshold(
    classifier: IncrementalClassifier, photos: Photos, tmp_path: Path
) -> None:
    model = classifier.model
    adapter = Adapter(model.dim, generator=torch.Generator().manual_seed(0)).requires_grad_(False)
    model = replace(
        model,
        adapter=adapter.state_dict(),
        calibration=replace(model.calibration, threshold=None, temperature=5.0),
    )
    head = replace(classifier.scorer.head, adapter=adapter)
    classifier._set_model(model, classifier.embedder.backbone, head)
    file = to_onnx_file(classifier, tmp_path / "birds.onnx").path
    assert_agree(classifier, file, sorted(photos("some", {"wren": 2, "owl": 1}).rglob("*.png")))


@pytest.mark.parametrize("shape", [(500, 375), (60, 80), (33, 90), (64, 64), (65, 64), (7, 300)])
def test_pixels_differ_from_pillows_by_one_level_at_most(shape: tuple[int, int]) -> None:
    transform = Transform(64, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    model = onnx.parser.parse_model(PREPARE.format(side=64, ir_version=9, opset=18))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (square,) = session.run(None, {"image": image})
    theirs = center_square(image, "noise", transform).numpy()
    difference = np.abs(square[0].astype(int) - theirs)
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.05  # most where sums end in one half


def test_int8_is_compared_on_photos_that_it_was_not_calibrated_with(
    classifier: IncrementalClassifier, photos: Photos, tmp_path: Path
) -> None:
    folder = photos("photos", {"robin": 4, "wren": 4})
    result = to_onnx_file(classifier, tmp_path / "int8.onnx", int8=folder)
    assert result.compared == 4
    assert 2 <= result.agreeing <= 4
    nodes = {node.op_type for node in onnx.load(result.path).graph.node}
    assert "QuantizeLinear" in nodes
    session = onnxruntime.InferenceSession(result.path)
    image = read(next(folder.rglob("*.png")))
    (features,) = session.run(["features"], {"image": image})
    cosine = torch.cosine_similarity(torch.from_numpy(features), classifier.embed([image]))
    assert float(cosine) > 0.9


def test_int8_refuses_a_network_without_convolutions(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
    backbone (uint8[n, 3, 8, 8] images) => (float[n, 3, 8, 8] features)
    { features = Cast <to = 1> (images) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "backbone.onnx")
    squares = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(ExportError, match="networks of convolutions"):
        quantize(tmp_path / "backbone.onnx", tmp_path / "int8.onnx", squares)


def test_what_cannot_be_exported(
    classifier: IncrementalClassifier,
    photos: Photos,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ExportError, match="is no folder"):
        to_onnx_file(classifier, tmp_path / "nowhere" / "birds.onnx")
    with pytest.raises(DataError, match="at least 2 photos"):
        to_onnx_file(classifier, tmp_path / "a.onnx", int8=photos("one", {"robin": 1}))
    monkeypatch.setattr(one_file, "write_graph", lambda graph, path: None)
    monkeypatch.setattr(one_file, "check_graph", lambda graph, path: None)
    monkeypatch.setattr(one_file, "_join", lambda *parts: b"no graph")
    with pytest.raises(ExportError, match="onnxruntime cannot run the file"):
        to_onnx_file(classifier, tmp_path / "birds.onnx")
    assert not list(tmp_path.glob("*.onnx"))
    monkeypatch.setattr(one_file, "_check", lambda classifier, model: None)
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ExportError, match=r"folder.onnx cannot be written"):
        to_onnx_file(classifier, tmp_path / "folder.onnx")


def test_a_full_disk_is_not_taken_for_a_graph_that_cannot_be_exported(
    classifier: IncrementalClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RuntimeError("pages of text") from error

    monkeypatch.setattr(torch.onnx, "export", full)
    for place, write in (("a.onnx", to_onnx_file), ("folder", to_onnx)):
        with pytest.raises(ExportError, match=rf"{place} cannot be written \(No space left"):
            write(classifier, tmp_path / place)
