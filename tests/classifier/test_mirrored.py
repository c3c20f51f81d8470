"""Test classifiers whose features are averaged over an image and its mirror image."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone

from fewmore import IncrementalClassifier
from fewmore.classifier import model_file
from fewmore.classifier.card import model_card
from fewmore.classifier.fitting.contest import Choice
from fewmore.classifier.fitting.from_scratch import recipe_for
from fewmore.classifier.fitting.transform import transform_for
from fewmore.nn.backbones import build

Photos = Callable[..., Path]
NAME = "mirrored:resnet8"


def noise(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return list(rng.integers(0, 256, (count, 40, 40, 3), dtype=np.uint8))


def test_a_photo_and_its_mirror_image_get_the_same_answer(
    mirrored: IncrementalClassifier, classifier: IncrementalClassifier
) -> None:
    flipped = [np.ascontiguousarray(image[:, ::-1]) for image in noise(4)]
    assert torch.allclose(mirrored.embed(noise(4)), mirrored.embed(flipped), atol=1e-5)
    assert not torch.allclose(classifier.embed(noise(4)), classifier.embed(flipped), atol=1e-3)


def test_the_model_file_is_read_back(
    mirrored: IncrementalClassifier, mirrored_model: Path, photos: Photos, tmp_path: Path
) -> None:
    assert mirrored.info()["backbone"] == NAME
    assert f"are computed by {NAME} " in model_card(mirrored.info(), "me/birds")
    mirrored.learn(photos("more", {"owl": 3}))
    mirrored.save(tmp_path / "again.fewmore")
    again = IncrementalClassifier.load(tmp_path / "again.fewmore", "cpu")
    assert again.backbone == NAME
    assert again.predict(noise(3), top=4) == mirrored.predict(noise(3), top=4)
    again.undo()
    before = IncrementalClassifier.load(mirrored_model, "cpu")
    assert again.predict(noise(3), top=3) == before.predict(noise(3), top=3)


def test_weights_and_size_are_those_of_the_plain_backbone(
    mirrored_model: Path, small_model: Path
) -> None:
    mirrored, plain = map(model_file.read, (mirrored_model, small_model))
    assert mirrored.sizes()["backbone"] == plain.sizes()["backbone"]
    weights = {name.removeprefix("body."): tensor for name, tensor in mirrored.weights.items()}
    assert weights.keys() == plain.weights.keys()
    assert all(torch.equal(weights[name], plain.weights[name]) for name in weights)
    assert mirrored.transform == plain.transform
    assert not mirrored.has_backbone_of(plain)


def test_sizes_of_images_are_those_of_the_plain_backbone() -> None:
    for name in ("resnet20", "resnet18", "mobilenet_v2", "timm:tiny_net"):
        for pretrained in (True, False):
            mirrored = transform_for(f"mirrored:{name}", pretrained)
            assert mirrored == transform_for(name, pretrained)
    mirrored, plain = (
        recipe_for(name, [9, 9]).method for name in ("mirrored:resnet20", "resnet20")
    )
    assert mirrored == plain


@pytest.mark.usefixtures("small_pretrained")
def test_imagenet_weights_are_found_and_estimators_are_cloned(photos: Photos) -> None:
    folder = photos("photos", {"robin": 5, "wren": 5, "jay": 4})
    paths = sorted(folder.rglob("*.png"))
    labels = [path.parent.name for path in paths]
    classifier = clone(IncrementalClassifier(NAME, device="cpu")).fit(paths, labels)
    assert classifier.get_params()["backbone"] == NAME
    assert classifier.notes_[0] == f"{NAME} with ImageNet weights, not trained further"
    assert classifier.score(paths, labels) > 0.9


def test_the_backbones_own_classes_have_their_share(
    photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the classifier in a weight file is applied to averaged features."""
    folder = photos("photos", {"robin": 8, "wren": 8, "jay": 8})
    generator = torch.Generator().manual_seed(0)
    head = {
        "fc.weight": torch.randn(9, 64, generator=generator),
        "fc.bias": torch.randn(9, generator=generator),
    }
    path = tmp_path / "weights.pth"
    torch.save(build("resnet8", 3).state_dict() | head, path)
    choice = Choice(shrinkage=0.9, share=0.25)
    monkeypatch.setattr("fewmore.classifier.fitting.frozen.choose", lambda *_: choice)
    classifier = IncrementalClassifier(NAME, path, device="cpu").fit(folder)
    whitening = classifier.model.whitening
    assert whitening is not None
    assert whitening.share == 0.25
    assert whitening.classifier is not None
    assert torch.equal(whitening.classifier[:, :-1], head["fc.weight"])
    assert classifier.embed(noise(2)).shape == (2, 64 + 9)
    assert "own classes" in classifier.info()["classifier"]
