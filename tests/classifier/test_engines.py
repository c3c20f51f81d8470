"""Test that all engines give the same features, and that what cannot be used is refused."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fewmore import IncrementalClassifier
from fewmore.classifier import engines
from fewmore.classifier.embedding import Embedder
from fewmore.classifier.engines import base, graph
from fewmore.classifier.engines.int8 import synthetic_images
from fewmore.classifier.engines.pytorch import TorchEngine
from fewmore.classifier.feature_cache import CachedEmbedder
from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, ExportError, UnknownName
from fewmore.nn.backbones import build

CPU = torch.device("cpu")
SMALL = Transform(32, (0.5, 0.4, 0.3), (0.2, 0.3, 0.25), resize=40)
MakeImages = Callable[..., ImageSet]


def squares(count: int, size: int = 40) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("engine", base.FAST)
@pytest.mark.parametrize("backbone", ["resnet8", "mobilenet_v2", "mirrored:mobilenet_v2"])
def test_features_are_those_of_pytorch(engine: str, backbone: str) -> None:
    pytest.importorskip(engine)
    network = build(backbone, seed=0)
    fast = Embedder(network, SMALL, CPU, engine=engine)
    plain = Embedder(network, SMALL, CPU, engine="torch")
    assert fast.engine.name.startswith(f"{engine} ")
    for count in (1, 2, 5):
        ours = plain.features(squares(count))
        theirs = fast.features(squares(count))
        assert theirs.dtype == torch.float32
        assert torch.allclose(theirs, ours, rtol=0, atol=1e-4 * max(1, float(ours.abs().max())))


@pytest.mark.parametrize("engine", base.FAST)
def test_predictions_are_those_of_pytorch(
    engine: str, trained: Path, tiny_images: MakeImages
) -> None:
    pytest.importorskip(engine)
    images = tiny_images(6, 8, seed=1)
    ours = IncrementalClassifier.load(trained, "cpu", engine="torch").predict(images, top=3)
    theirs = IncrementalClassifier.load(trained, "cpu", engine=engine).predict(images, top=3)
    for one, other in zip(ours, theirs, strict=True):
        assert one.names == other.names
        assert one.confidences == pytest.approx(other.confidences, abs=1e-4)


@pytest.mark.parametrize("backbone", ["resnet8", "mirrored:resnet8"])
def test_int8_is_close_to_pytorch(backbone: str) -> None:
    pytest.importorskip("onnxruntime")
    network = build(backbone, seed=0)
    int8 = Embedder(network, SMALL, CPU, engine="onnxruntime-int8")
    plain = Embedder(network, SMALL, CPU, engine="torch")
    assert int8.engine.name.endswith(" int8")
    images = synthetic_images(40)[:20]
    ours, theirs = (embedder.features(images) for embedder in (plain, int8))
    assert float(cosine_similarity(ours, theirs).min()) > 0.95
    assert not torch.allclose(ours, theirs, atol=1e-4)
    assert torch.equal(synthetic_images(40)[:20], images), "they are the same every time"


def test_auto_takes_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_engine = f"torch {torch.__version__}"
    network = build("resnet8", seed=0)
    monkeypatch.setattr(base, "_is_installed", lambda name: False)
    assert Embedder(network, SMALL, CPU).engine.name == torch_engine
    assert engines.check_name("auto", torch.device("cuda")) == "torch"
    with pytest.raises(ConfigError, match=r"pip install 'fewmore\[openvino\]'"):
        Embedder(network, SMALL, CPU, engine="openvino")


def test_the_environment_chooses_for_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWMORE_ENGINE", "torch")
    assert engines.check_name("auto", CPU) == "torch"
    monkeypatch.setenv("FEWMORE_ENGINE", "touch")
    with pytest.raises(UnknownName, match="did you mean torch"):
        engines.check_name("auto", CPU)


def test_an_engine_of_the_cpu_is_refused_elsewhere() -> None:
    with pytest.raises(ConfigError, match="onnxruntime computes on the CPU, and the device is cud"):
        engines.check_name("onnxruntime", torch.device("cuda"))


def test_auto_falls_back_to_pytorch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnxruntime")

    def fail(engine: TorchEngine) -> bytes:
        raise ExportError("no such operator")

    monkeypatch.setattr(graph, "onnx_graph", fail)
    network = build("resnet8", seed=0)
    with caplog.at_level(logging.WARNING):
        assert Embedder(network, SMALL, CPU).engine.name.startswith("torch ")
    assert "no such operator" in caplog.text
    with pytest.raises(ExportError, match="no such operator"):
        _ = Embedder(network, SMALL, CPU, engine="onnxruntime").engine


def test_a_graph_that_gives_other_features_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    other = TorchEngine(Embedder(build("resnet8", seed=1), SMALL, CPU).backbone, SMALL)
    wrong = graph.onnx_graph(other)
    monkeypatch.setattr(graph, "onnx_graph", lambda engine: wrong)
    with pytest.raises(ExportError, match="apart from PyTorch's"):
        _ = Embedder(build("resnet8", seed=0), SMALL, CPU, engine="onnxruntime").engine


def test_a_graph_is_traced_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(graph, "cache_folder", lambda: tmp_path)
    trace = graph._trace
    traced: list[TorchEngine] = []
    monkeypatch.setattr(graph, "_trace", lambda engine: [traced.append(engine), trace(engine)][1])
    for seed in (0, 0, 1):
        _ = Embedder(build("resnet8", seed=seed), SMALL, CPU, engine="onnxruntime").engine
    assert len(traced) == 2
    monkeypatch.setattr(graph, "MAX_FILES", 1)
    _ = Embedder(build("resnet8", seed=2), SMALL, CPU, engine="onnxruntime").engine
    assert len(list(tmp_path.glob("engines/*"))) == 1


def test_cached_features_know_their_engine() -> None:
    pytest.importorskip("onnxruntime")
    network = build("resnet8", seed=0)
    fast, again, plain = (
        CachedEmbedder(network, SMALL, CPU, engine)
        for engine in ("onnxruntime", "onnxruntime", "torch")
    )
    assert fast.key == again.key != plain.key


def test_classifiers_with_the_same_backbone_share_an_engine() -> None:
    pytest.importorskip("onnxruntime")

    def embedder(seed: int, name: str = "resnet8") -> Embedder:
        return Embedder(build(name, seed=seed), SMALL, CPU, engine="onnxruntime")

    one, same, other = embedder(0), embedder(0), embedder(1)
    assert one.engine is same.engine is not other.engine
    assert one.engine is not embedder(0, "mirrored:resnet8").engine
    images = squares(2)
    assert not torch.equal(one.features(images), other.features(images))


def test_cached_features_know_whether_mirror_images_are_averaged() -> None:
    plain, mirrored = (
        CachedEmbedder(build(name, seed=0), SMALL, CPU, "torch")
        for name in ("resnet8", "mirrored:resnet8")
    )
    assert plain.key != mirrored.key
    images = squares(3)
    expected = (plain.features(images) + plain.features(images.flip(3))) / 2
    assert torch.allclose(mirrored.features(images), expected, atol=1e-5)
    assert torch.equal(mirrored.features(images), mirrored.features(images))


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_nothing_is_reported_and_nothing_is_left_in_the_home(
    engine: str, small_model: Path, tmp_path: Path
) -> None:
    pytest.importorskip(engine)
    pytest.importorskip("onnx")
    code = (
        "import sys, numpy, fewmore\n"
        f"classifier = fewmore.load({str(small_model)!r}, 'cpu', {engine!r})\n"
        "classifier.predict([numpy.zeros((40, 40, 3), numpy.uint8)])\n"
        f"assert {engine!r} in sys.modules\n"
    )
    home = tmp_path / "home"
    home.mkdir()
    places = {"FEWMORE_CACHE": str(tmp_path / "cache"), "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **places},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(home.iterdir())
