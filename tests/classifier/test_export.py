"""ONNX: onnxruntime gives what the classifier gives, and learning a class exports no graph anew."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fewmore import IncrementalClassifier
from fewmore.classifier import export, onnx_graphs
from fewmore.classifier.export import to_onnx
from fewmore.classifier.whitening import Whitening
from fewmore.errors import ConfigError, ExportError, NotFittedError, StateError
from fewmore.io import file_hash
from fewmore.nn.adapter import Adapter

onnxruntime = pytest.importorskip(
    "onnxruntime", reason="the packages of fewmore[export] are not installed"
)
pytest.importorskip("onnxscript", reason="the packages of fewmore[export] are not installed")

Photos = Callable[..., Path]


def run_onnx(folder: Path, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Predict images as a program without PyTorch does."""
    backbone = onnxruntime.InferenceSession(folder / "backbone.onnx")
    scorer = onnxruntime.InferenceSession(folder / "scorer.onnx")
    (features,) = backbone.run(None, {"images": squares})
    confidences, familiarity = scorer.run(
        None, {"features": features, **np.load(folder / "classes.npz")}
    )
    return (
        confidences,
        familiarity,
        json.loads((folder / "classes.json").read_text(encoding="utf-8")),
    )


def assert_agree(classifier: IncrementalClassifier, folder: Path, count: int) -> None:
    side = json.loads((folder / "classes.json").read_text())["side"]
    squares = np.random.default_rng(0).integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    confidences, familiarity, about = run_onnx(folder, squares)
    assert about["classes"] == classifier.classes_
    assert about["threshold"] == classifier.info()["calibration"]["threshold"]
    predictions = classifier.predict(list(squares), top=len(classifier.classes_))
    # A low temperature amplifies the differences of features.
    tolerance = 1e-4 / min(1.0, classifier.calibration.temperature)
    for row, prediction in enumerate(predictions):
        order = [about["classes"].index(name) for name in prediction.names]
        assert confidences[row, order] == pytest.approx(prediction.confidences, abs=tolerance)
        assert familiarity[row] == pytest.approx(prediction.familiarity, abs=1e-4)


def add_adapter(classifier: IncrementalClassifier) -> None:
    model, head = classifier.model, classifier.scorer.head
    adapter = Adapter(model.dim, generator=torch.Generator().manual_seed(0)).requires_grad_(False)
    classifier._set_model(
        replace(model, adapter=adapter.state_dict()),
        classifier.embedder.backbone,
        replace(head, adapter=adapter),
    )


def test_onnxruntime_gives_what_the_classifier_gives_and_only_what_changed_is_written(
    classifier: IncrementalClassifier, photos: Photos, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "out"
    files = to_onnx(classifier, folder)
    assert [file.path.name for file in files] == [
        "backbone.onnx",
        "scorer.onnx",
        "classes.npz",
        "classes.json",
    ]
    assert all(file.written for file in files)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        file.path.name for file in files
    )
    assert_agree(classifier, folder, 1)
    assert_agree(classifier, folder, 5)
    classifier.learn(photos("more", {"owl": 2, "tern [x]": 1}))
    assert [file.written for file in to_onnx(classifier, folder)] == [False, False, True, True]
    assert_agree(classifier, folder, 3)
    add_adapter(classifier)
    assert [file.written for file in to_onnx(classifier, folder)] == [False, True, True, True]
    assert_agree(classifier, folder, 4)
    classifier.forget(classifier.classes_[1:])
    assert [file.written for file in to_onnx(classifier, folder)] == [False, False, True, True]
    assert_agree(classifier, folder, 1)


def test_the_number_of_features_is_part_of_the_scorer(classifier: IncrementalClassifier) -> None:
    scorer = classifier.scorer
    wider = replace(scorer, head=replace(scorer.head, dim=scorer.head.dim + 1))
    graphs = [onnx_graphs.ScorerGraph(one, 1.0) for one in (scorer, wider)]
    assert export._graph_hash(graphs[0]) != export._graph_hash(graphs[1])


@pytest.mark.skipif(
    torch.__version__.startswith("2.6."), reason="PyTorch 2.6 cannot export it, and says so"
)
def test_whitening_is_part_of_the_backbone(
    classifier: IncrementalClassifier, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(classifier.model.dim, 5, generator=generator)).Q
    given = classifier.model.dim
    whitening = Whitening(
        torch.rand(given, generator=generator),
        0.9 * directions,
        classifier=torch.randn(7, given + 1, generator=generator),
        share=0.25,
    )
    model = replace(classifier.model, whitening=whitening, dim=whitening.dim)
    classes = [
        replace(known, feature_sum=torch.cat([known.feature_sum, torch.rand(7)]))
        for known in model.class_set.classes
    ]
    classifier._set_model(
        replace(model, class_set=replace(model.class_set, classes=tuple(classes))),
        classifier.embedder.backbone,
        replace(classifier.scorer.head, dim=whitening.dim),
    )
    to_onnx(classifier, tmp_path)
    assert_agree(classifier, tmp_path, 3)


def test_mirror_images_are_averaged_in_the_graph(
    mirrored: IncrementalClassifier, classifier: IncrementalClassifier, tmp_path: Path
) -> None:
    shown = []
    report = lambda stage, done, total: shown.append((stage, done, total))  # noqa: E731
    assert [file.written for file in to_onnx(classifier, tmp_path, report)] == [True] * 4
    assert shown == [("exporting", 0, 2), ("exporting", 1, 2)]
    assert next(file.written for file in to_onnx(mirrored, tmp_path)), "it is another graph"
    assert_agree(mirrored, tmp_path, 3)
    assert_agree(mirrored, tmp_path, 1)


def test_a_damaged_file_is_not_kept(
    classifier: IncrementalClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "write_graph", lambda graph, path: path.write_bytes(b"a graph"))
    monkeypatch.setattr(export, "check_graph", lambda graph, path: None)
    assert all(file.written for file in to_onnx(classifier, tmp_path))
    (tmp_path / "scorer.onnx").write_bytes(b"damaged")
    assert [file.written for file in to_onnx(classifier, tmp_path)] == [False, True, True, True]
    for nonsense in ("", "[]", '{"format": 9}', '{"format": 1, "scorer.onnx": 7}'):
        (tmp_path / "classes.json").write_text(nonsense)
        assert all(file.written for file in to_onnx(classifier, tmp_path)), nonsense


def test_a_folder_of_the_user_stays_as_it_is(
    classifier: IncrementalClassifier, tmp_path: Path
) -> None:
    (tmp_path / "classes.json").write_text('["mine"]')
    with pytest.raises(ExportError, match="has files that fewmore did not export: give a new"):
        to_onnx(classifier, tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ['["mine"]']


def test_an_export_that_was_stopped_is_gone_on_with(
    classifier: IncrementalClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "write_graph", lambda graph, path: path.write_bytes(b"a graph"))
    monkeypatch.setattr(export, "check_graph", lambda graph, path: None)
    for count in (1, 2, 3):
        for name in export.FILES[:count]:
            (tmp_path / name).touch()
        assert len(to_onnx(classifier, tmp_path)) == 4
        for path in tmp_path.iterdir():
            path.unlink()


def test_classes_of_another_export_than_their_names_are_noticed(
    classifier: IncrementalClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "write_graph", lambda graph, path: path.write_bytes(b"a graph"))
    monkeypatch.setattr(export, "check_graph", lambda graph, path: None)
    to_onnx(classifier, tmp_path)
    names = (tmp_path / "classes.json").read_bytes()
    about = json.loads(names)
    assert all(about[name]["sha256"] == file_hash(tmp_path / name) for name in export.FILES[:3])
    classifier.forget(classifier.names[0])
    to_onnx(classifier, tmp_path)
    (tmp_path / "classes.json").write_bytes(names)  # not replaced yet
    assert about["classes.npz"]["sha256"] != file_hash(tmp_path / "classes.npz")


def test_what_does_not_agree_is_refused_and_not_written(
    classifier: IncrementalClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        def __init__(self, path: str, providers: list[str]) -> None:
            pass

        def run(self, outputs: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [
                classifier.embedder.features(torch.from_numpy(inputs["images"])).numpy() * 1.001
            ]

    monkeypatch.setattr(export, "write_graph", lambda graph, path: path.write_bytes(b"a graph"))
    monkeypatch.setattr(
        export, "import_onnxruntime", lambda: SimpleNamespace(InferenceSession=Wrong)
    )
    with pytest.raises(ExportError, match=r"features are .* apart .* nothing was written"):
        to_onnx(classifier, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_what_cannot_be_exported(
    classifier: IncrementalClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFittedError):
        to_onnx(IncrementalClassifier(), tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="give a folder that you may write to"):
        to_onnx(classifier, tmp_path / "file")

    def fail(self: object, images: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("an operation that ONNX does not have\nand pages more")

    monkeypatch.setattr(onnx_graphs.BackboneGraph, "forward", fail)
    with pytest.raises(ExportError, match=r"\(an operation that ONNX does not have\)"):
        to_onnx(classifier, tmp_path / "out")
    classifier.forget(classifier.classes_)
    with pytest.raises(StateError, match="nothing to export"):
        to_onnx(classifier, tmp_path / "out")


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_a_sentence(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"fewmore\[export\]"):
        to_onnx(IncrementalClassifier(), tmp_path)


def test_nothing_of_onnx_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, fewmore.classifier.export\n"
        "packages = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not packages & {'onnx', 'onnxruntime'}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_exporting_is_the_first_thing_that_a_process_does(
    small_model: Path, tmp_path: Path
) -> None:
    """Constants that are first made while a graph is traced must not stay as those of the trace."""
    code = (
        "import numpy, fewmore\n"
        "from fewmore.classifier.export import to_onnx\n"
        f"classifier = fewmore.load({str(small_model)!r}, 'cpu')\n"
        f"to_onnx(classifier, {str(tmp_path)!r})\n"
        "assert len(classifier.predict(numpy.zeros((40, 40, 3), numpy.uint8))) == 1"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
