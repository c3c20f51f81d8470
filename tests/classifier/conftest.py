"""Provide trained classifiers, small enough to be trained in every module that needs one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fewmore import IncrementalClassifier
from fewmore.classifier import model_file
from fewmore.data.images import ImageSet
from fewmore.nn.adapter import Adapter
from fewmore.nn.backbones import build


@pytest.fixture(scope="module", autouse=True)
def quick_adapter() -> Iterator[None]:
    """Train adapters in rounds of two episodes: what they learn does not matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fewmore.training.pseudo_incremental.ROUND", 2)
        yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the weights of an untrained network, whose features tell colors apart all the same."""
    path = tmp_path_factory.mktemp("weights") / "resnet8.pth"
    torch.save(build("resnet8", seed=1).state_dict(), path)
    return path


@pytest.fixture(scope="module")
def trained(
    weights: Path, tiny_images: Callable[..., ImageSet], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Train a model file: six classes of eight images."""
    path = tmp_path_factory.mktemp("trained") / "tiny.fewmore"
    IncrementalClassifier("resnet8", weights).fit(tiny_images(6, 8)).save(path)
    return path


@pytest.fixture(scope="module")
def small_trained(
    weights: Path, tiny_images: Callable[..., ImageSet], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Train a model file of three classes of five images."""
    path = tmp_path_factory.mktemp("small") / "small.fewmore"
    IncrementalClassifier("resnet8", weights).fit(tiny_images(3, 5)).save(path)
    return path


@pytest.fixture
def clf(trained: Path) -> IncrementalClassifier:
    """Load the classifier of six classes."""
    return IncrementalClassifier.load(trained)


@pytest.fixture
def adapted(trained: Path, tmp_path: Path) -> IncrementalClassifier:
    """Return the classifier of six classes with an adapter on fewer dimensions than features."""
    generator = torch.Generator().manual_seed(0)
    model = model_file.read(trained)
    adapter = Adapter(16, generator=generator).state_dict()
    projection = torch.randn(model.dim, 16, generator=generator)
    path = tmp_path / "adapted.fewmore"
    model_file.write(path, replace(model, adapter=dict(adapter), projection=projection))
    return IncrementalClassifier.load(path)


@pytest.fixture(scope="module")
def queries(tiny_images: Callable[..., ImageSet]) -> dict[str, list[Tensor]]:
    """Draw images of eight classes, the last two of them new; none is in the training."""
    images = tiny_images(8, 5, seed=7)
    return {
        name: [images.image(5 * label + i) for i in range(5)]
        for label, name in enumerate(images.class_names)
    }


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    """Return assert_same(one, other, features), exact unless a tolerance such as abs=… is given."""

    def check(
        one: IncrementalClassifier,
        other: IncrementalClassifier,
        features: Tensor,
        **tolerance: float,
    ) -> None:
        assert one.classes_ == other.classes_
        for a, b in zip(one.model.class_set.classes, other.model.class_set.classes, strict=True):
            assert torch.equal(a.feature_sum, b.feature_sum)
            assert (a.count, a.hashes) == (b.count, b.hashes)
        for a, b in zip(
            one.predict_features(features, 99), other.predict_features(features, 99), strict=True
        ):
            if tolerance:
                assert dict(zip(a.names, a.confidences, strict=True)) == pytest.approx(
                    dict(zip(b.names, b.confidences, strict=True)), **tolerance
                )
            else:
                assert a == b

    return check


@pytest.fixture(scope="session")
def mirrored_model(
    small_weights: Path, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Write a model file of the same photos, whose features are averaged over mirror images."""
    path = tmp_path_factory.mktemp("mirrored") / "birds.fewmore"
    classifier = IncrementalClassifier("mirrored:resnet8", small_weights, device="cpu")
    classifier.fit(small_model.parent / "photos").save(path)
    return path


@pytest.fixture
def mirrored(mirrored_model: Path) -> IncrementalClassifier:
    """Load a small model of features averaged over mirror images, to be changed at will."""
    return IncrementalClassifier.load(mirrored_model, "cpu")


@pytest.fixture
def classifier(small_model: Path) -> IncrementalClassifier:
    """Load a small model, to be changed at will."""
    return IncrementalClassifier.load(small_model, "cpu")
