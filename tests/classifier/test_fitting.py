"""Training: from a pretrained backbone and from scratch, and what it decides."""

import errno
import json
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewmore import IncrementalClassifier
from fewmore.classifier import estimator
from fewmore.classifier.embedding import no_progress, square_size
from fewmore.classifier.fitting import base as base_module
from fewmore.classifier.fitting import from_scratch
from fewmore.classifier.fitting.base import (
    MIN_SAMPLE,
    NEVER,
    BaseFeatures,
    draw_folds,
    held_out_counts,
)
from fewmore.classifier.fitting.frozen import fit_features
from fewmore.classifier.fitting.transform import pretrained_transform, transform_for
from fewmore.classifier.inputs import LabeledImages, collect_images
from fewmore.classifier.model_file.format import MAX_IMAGE_SIZE
from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet
from fewmore.errors import (
    ConfigError,
    DataError,
    DownloadError,
    MissingData,
    UnknownName,
)
from fewmore.methods.base import Recipe
from fewmore.methods.cec import Config as CECConfig
from fewmore.nn.adapter import AdapterConfig
from fewmore.nn.backbones import build
from fewmore.training.pseudo_incremental import PseudoConfig

MakeImages = Callable[..., ImageSet]

TWO_EPISODES = PseudoConfig(
    episodes=2, base_way=2, new_way=2, base_query=2, new_query=2, milestones=()
)


# With a pretrained backbone


def test_it_is_trained_on_a_folder(tiny_folder: Path, weights: Path):
    reports = []
    clf = IncrementalClassifier("resnet8", weights)
    returned = clf.fit(
        str(tiny_folder), progress=lambda stage, done, total: reports.append((stage, done, total))
    )
    assert returned is clf
    assert clf.classes_ == [f"class {i}" for i in range(6)]
    assert ("embedding images", 36, 36) in reports
    images = sorted(tiny_folder.glob("*/*.png"))
    predicted = [prediction.names[0] for prediction in clf.predict(images)]
    assert predicted == [path.parent.name for path in images]
    assert clf.history_[0].kind == "fit"
    assert clf.history_[0].images == 36


def test_the_same_seed_gives_the_same_classifier(tiny_images: MakeImages, weights: Path):
    results = []
    for seed in (0, 0, 1):
        clf = IncrementalClassifier("resnet8", weights, seed=seed).fit(tiny_images(4, 6))
        sums = [known.feature_sum.tolist() for known in clf.model.class_set.classes]
        results.append((clf.calibration, sums))
    assert results[0] == results[1]
    assert results[0][1] == results[2][1], "the means do not depend on the seed"


def test_a_folder_and_a_dict_are_the_same(tiny_folder: Path, weights: Path):
    by_class = {folder.name: sorted(folder.iterdir()) for folder in sorted(tiny_folder.iterdir())}
    backwards = dict(reversed([(name, paths[::-1]) for name, paths in by_class.items()]))
    one, other, third = (
        IncrementalClassifier("resnet8", weights).fit(images)
        for images in (tiny_folder, by_class, backwards)
    )
    assert [a.feature_sum.tolist() for a in one.model.class_set.classes] == [
        b.feature_sum.tolist() for b in other.model.class_set.classes
    ]
    assert third.classes_ == list(reversed(one.classes_))
    torch.testing.assert_close(
        third.model.class_set.classes[-1].feature_sum, one.model.class_set.classes[0].feature_sum
    )


def test_measurements_are_reported(clf: IncrementalClassifier):
    calibration = clf.calibration
    assert calibration.held_out == 48
    assert calibration.accuracy is not None
    assert calibration.accuracy > 0.9
    assert calibration.ece_before is not None
    assert calibration.ece_after is not None
    # Every image is right, so that a temperature has nothing to mend.
    assert calibration.ece_after <= max(calibration.ece_before, 0.02)
    assert calibration.auroc is not None
    assert 0.5 < calibration.auroc <= 1
    assert 0 <= calibration.sessions_plain <= 1
    assert "resnet8 with" in clf.notes_[0]
    assert calibration.sessions_chosen >= calibration.sessions_plain
    assert any(note.startswith("classes are compared by ") for note in clf.notes_)
    info = json.loads(json.dumps(clf.info()))
    assert info["classes"] == {f"class {i}": 8 for i in range(6)}
    assert info["images"] == 48
    assert [change["kind"] for change in info["history"]] == ["fit"]
    assert info["history"][0]["classes"] == clf.classes_
    assert info["classifier"] in ("whitened cosine", "plain cosine")
    assert info["bytes"]["backbone"] > 100_000


def test_copies_do_not_make_a_class_large_enough_to_hold_out(
    tiny_images: MakeImages, weights: Path
):
    images = tiny_images(4, 6)
    copies = images.select(torch.tensor([0, 0, 0, 0, 0, *range(6, 24)]))
    clf = IncrementalClassifier("resnet8", weights).fit(copies)
    notes = " ".join(clf.notes_)
    assert "these have fewer than 4 images: class 0 (1 image)" in notes
    assert clf.calibration.held_out == 18
    assert "4 duplicates of images in the same class" in notes
    assert clf.info()["classes"]["class 0"] == 1


def test_a_class_of_three_images_is_left_out_of_the_calibration_alone(
    tiny_images: MakeImages, weights: Path
):
    images = tiny_images(4, 6)
    few = images.select(torch.tensor([i for i in range(24) if i not in (3, 4, 5)]))
    clf = IncrementalClassifier("resnet8", weights).fit(few)
    notes = " ".join(clf.notes_)
    assert "these have fewer than 4 images: class 0 (3 images)" in notes
    assert clf.calibration.held_out == 18
    assert clf.calibration.threshold is not None
    assert clf.calibration.temperature != 1.0
    predicted = [prediction.names for prediction in clf.predict(images)]
    assert predicted == [(images.class_names[label],) for label in images.labels]


def test_with_one_class_of_four_images_nothing_is_held_out(tiny_images: MakeImages, weights: Path):
    images = tiny_images(3, 5)
    few = images.select(torch.tensor([0, 1, 2, 3, 4, 5, 6, 10]))
    clf = IncrementalClassifier("resnet8", weights).fit(few)
    assert "fewer than two classes have 4 images" in " ".join(clf.notes_)
    assert clf.calibration.threshold is None
    assert clf.calibration.held_out == 0
    assert clf.info()["classifier"] == "plain cosine"
    assert all(prediction.known for prediction in clf.predict(np.zeros((8, 8), np.uint8)))


@pytest.mark.parametrize("per_class", [1, 2, 4])
def test_small_folders_train(tiny_images: MakeImages, weights: Path, per_class: int):
    clf = IncrementalClassifier("resnet8", weights).fit(tiny_images(3, per_class))
    assert clf.info()["images"] == 3 * per_class
    assert clf.calibration.held_out == (12 if per_class == 4 else 0)


def test_a_hundred_classes_train(weights: Path):
    noise = np.random.default_rng(0)
    images = {
        f"class {i}": list(noise.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)) for i in range(100)
    }
    assert len(IncrementalClassifier("resnet8", weights).fit(images).classes_) == 100


@pytest.mark.parametrize("per_class", [4, 30])
def test_few_held_out_images_a_class_are_asked_of_means_of_more(
    monkeypatch: pytest.MonkeyPatch, per_class: int
):
    monkeypatch.setattr(base_module, "MAX_SAMPLE", 40)
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(40, 24, generator=generator).repeat_interleave(per_class, 0)
    features = centers + 0.8 * torch.randn(centers.shape, generator=generator)
    labels = torch.arange(40).repeat_interleave(per_class)
    names = tuple(map(str, range(40)))
    held_out = draw_folds(labels, held_out_counts([per_class] * 40), generator)
    base = BaseFeatures(names, features, labels, held_out)
    assert int((held_out != NEVER).sum()) == 40
    assert base.sample(generator).counts == [min(per_class, MIN_SAMPLE)] * 40
    *_, calibration = fit_features(base, 0)
    assert calibration.held_out == 40
    assert calibration.accuracy is not None
    assert calibration.accuracy > 0.8


def test_the_sample_of_few_classes_is_what_is_held_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(base_module, "MAX_SAMPLE", 50)
    labels = torch.tensor([0] * 40 + [1] * 30 + [2] * 3)
    counts = [40, 30, 3]
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(base_module, "MIN_SAMPLE", 16)
    held_out = draw_folds(labels, held_out_counts(counts), generator)
    base = BaseFeatures(("a", "b", "c"), torch.rand(73, 2), labels, held_out)
    before = generator.get_state()
    assert base.sample(generator).counts == [16, 16, 3]
    assert torch.equal(generator.get_state(), before), "the sessions are drawn as ever"


def test_duplicates_in_training_count_once(tiny_images: MakeImages, weights: Path):
    images = tiny_images(3, 4)
    by_class = {
        name: [images.image(4 * label + i) for i in range(4)]
        for label, name in enumerate(images.class_names)
    }
    by_class["class 1"].append(by_class["class 0"][2])
    plain = IncrementalClassifier("resnet8", weights).fit(by_class)
    by_class["class 0"].append(by_class["class 0"][1])
    clf = IncrementalClassifier("resnet8", weights).fit(by_class)
    assert clf.info()["classes"] == {"class 0": 4, "class 1": 5, "class 2": 4}
    notes = " ".join(clf.notes_)
    assert "1 duplicate of images in the same class, not counted again: image 5 of class 0" in notes
    assert "1 image in two classes: image 5 of class 1, also in class 0" in notes
    for one, other in zip(clf.model.class_set.classes, plain.model.class_set.classes, strict=True):
        assert torch.equal(one.feature_sum, other.feature_sum)


def test_training_input_that_cannot_be(tmp_path: Path, tiny_images: MakeImages, weights: Path):
    clf = IncrementalClassifier("resnet8", weights)
    image = np.zeros((8, 8), np.uint8)
    with pytest.raises(DataError, match="one class was given, a,"):
        clf.fit({"a": [image]})
    with pytest.raises(MissingData, match="nowhere"):
        clf.fit(tmp_path / "nowhere")
    with pytest.raises(DataError, match="'b' has no images"):
        clf.fit({"a": [image], "b": []})
    with pytest.raises(DataError, match="folder of class folders"):
        clf.fit([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="device 'abacus'"):
        IncrementalClassifier("resnet8", weights, device="abacus").fit(tiny_images(2, 2))
    with pytest.raises(MissingData, match="weight file"):
        IncrementalClassifier("resnet8", tmp_path / "none.pth").fit(tiny_images(2, 2))
    with pytest.raises(UnknownName, match="'resnet9': did you mean"):
        IncrementalClassifier("resnet9", weights).fit(tiny_images(2, 2))


# From scratch


@pytest.mark.parametrize("backbone", ["resnet8", "mirrored:resnet8"])
def test_from_scratch_by_a_recipe(
    backbone: str,
    tiny_images: MakeImages,
    tiny_recipe: Recipe,
    assert_same: Callable[..., None],
    tmp_path: Path,
):
    stages = []
    method = CECConfig(TWO_EPISODES, AdapterConfig(heads=2))
    recipe = replace(tiny_recipe, backbone=backbone, method=method)
    clf = IncrementalClassifier(weights=None, recipe=recipe)
    clf.fit(tiny_images(4, 12), progress=lambda stage, done, total: stages.append(stage))
    assert set(stages) == {
        "decoding images",
        "pretrain",
        "pseudo-incremental",
        "embedding images",
    }
    assert clf.info()["classifier"] == "adapter"
    assert clf.calibration.held_out == 4, "a tenth, at least one a class"
    assert clf.info()["images"] == 48, "in the end, all of them count"
    assert f"{backbone} was trained from scratch" in clf.notes_
    assert clf.evaluate(tiny_images(4, 6, seed=3)).accuracy > 0.8
    images = tiny_images(5, 3, seed=2)
    clf.learn({"new": [images.image(i) for i in range(12, 15)]})
    clf.save(tmp_path / "a.fewmore")
    loaded = IncrementalClassifier.load(tmp_path / "a.fewmore")
    assert_same(clf, loaded, torch.rand(5, 64), abs=1e-5)


@pytest.mark.parametrize(("size", "backbone"), [(32, "resnet20"), (64, "resnet18")])
def test_the_size_of_images_decides_on_the_network(
    tiny_images: MakeImages, monkeypatch: pytest.MonkeyPatch, size: int, backbone: str
):
    recipes = []

    def stop(recipe: Recipe, *_: Any) -> None:
        recipes.append(recipe)
        raise ConfigError("far enough")

    monkeypatch.setattr(from_scratch, "CEC", stop)
    with pytest.raises(ConfigError, match="far enough"):
        IncrementalClassifier(weights=None).fit(tiny_images(3, 5, size=size))
    (recipe,) = recipes
    assert recipe.backbone == backbone
    pseudo = recipe.method.pseudo
    # Of five images one is held out and one is the shot.
    assert (pseudo.base_way, pseudo.base_query) == (3, 3)
    assert recipe.pretrain.batch <= 12


def test_the_recipe_follows_the_number_of_images():
    recipe = from_scratch.recipe_for("resnet20", [500] * 60)
    pseudo = recipe.method.pseudo
    assert (pseudo.base_way, pseudo.base_query, recipe.pretrain.batch) == (15, 15, 128)
    assert 2000 < pseudo.episodes <= 5000
    small = from_scratch.recipe_for("resnet20", [2, 5, 9])
    pseudo = small.method.pseudo
    assert (pseudo.base_way, pseudo.base_query, small.pretrain.batch) == (3, 1, 16)


def test_a_class_of_copies_trains_from_scratch(tiny_images: MakeImages, tiny_recipe: Recipe):
    images = tiny_images(4, 6)
    copies = images.select(torch.tensor([*range(18), *[18] * 6]))
    method = CECConfig(TWO_EPISODES, AdapterConfig(heads=2))
    recipe = replace(tiny_recipe, method=method)
    held_out = set()
    for seed in (17, 18):  # with 17, the image that is held out is the one that is not dropped
        clf = IncrementalClassifier(weights=None, recipe=recipe, seed=seed).fit(copies)
        assert clf.info()["classes"]["class 3"] == 1
        assert math.isfinite(clf.scorer.head.variance)
        held_out.add(clf.calibration.held_out)
    assert held_out == {3}


def test_from_scratch_takes_two_images(tiny_images: MakeImages):
    with pytest.raises(DataError, match="at least 2 a class"):
        IncrementalClassifier(weights=None).fit(tiny_images(3, 1))


def test_without_weights_nothing_is_trained_instead(
    tiny_images: MakeImages, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any, **__: Any) -> Path:
        raise DownloadError("no route to host: save it as weights.pth")

    monkeypatch.setattr(estimator, "pretrained_weights", fail)
    monkeypatch.setattr(estimator, "fit_from_scratch", fail)
    classifier = IncrementalClassifier()
    with pytest.raises(DownloadError, match=r"^no route to host") as caught:
        classifier.fit(tiny_images(3, 5))
    assert "save it as weights.pth; or train from scratch" in str(caught.value)
    assert "--weights none (in Python: weights=None)" in str(caught.value)


def test_a_backbone_may_see_images_in_more_pixels(
    weights: Path, tiny_images: Callable[..., ImageSet], tmp_path: Path
) -> None:
    images = tiny_images(3, 5, size=48)
    usual = IncrementalClassifier("resnet8", weights).fit(images)
    large = IncrementalClassifier("resnet8", weights, image_size=40).fit(images)
    assert (usual.info()["image size"], large.info()["image size"]) == (32, 40)
    query = [images.image(2)]
    assert not torch.allclose(usual.embed(query), large.embed(query), atol=1e-3)
    large.save(tmp_path / "large.fewmore")
    again = IncrementalClassifier.load(tmp_path / "large.fewmore")
    assert again.info()["image size"] == 40
    assert torch.equal(again.embed(query), large.embed(query))


def test_photos_are_cropped_alike_at_any_size() -> None:
    backbone = build("mobilenet_v2")
    assert pretrained_transform("mobilenet_v2", backbone) == transform_for("mobilenet_v2", True)
    larger = pretrained_transform("mobilenet_v2", backbone, 280)
    assert (larger.size, larger.resize) == (280, 320)
    largest = pretrained_transform("mobilenet_v2", backbone, 3584)
    assert largest.resize == MAX_IMAGE_SIZE
    with pytest.raises(ConfigError, match="give 3584 pixels or less"):
        pretrained_transform("mobilenet_v2", backbone, 3585)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (8, "an image size of 8 is too small: give 16"),
        (-3, "too small"),
        (5000, "an image size of 5000 is too large: give 4096"),
    ],
)
def test_an_image_size_that_cannot_be(
    weights: Path, tiny_images: Callable[..., ImageSet], size: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        IncrementalClassifier("resnet8", weights, image_size=size).fit(tiny_images(3, 5))


def test_a_network_from_scratch_has_the_size_of_its_recipe(
    tiny_images: Callable[..., ImageSet],
) -> None:
    with pytest.raises(ConfigError, match="image_size is for pretrained weights"):
        IncrementalClassifier(weights=None, image_size=64).fit(tiny_images(3, 5))


def test_a_network_from_scratch_is_trained_by_its_recipe_alone(
    tiny_images: Callable[..., ImageSet], tiny_recipe: Recipe
) -> None:
    for recipe in (None, tiny_recipe):
        clf = IncrementalClassifier(weights=None, recipe=recipe, fine_tune="10m")
        with pytest.raises(ConfigError, match="fine_tune is for pretrained weights"):
            clf.fit(tiny_images(3, 5))


def test_a_disk_without_room_is_a_sentence_before_anything_is_decoded(
    tiny_images: Callable[..., ImageSet], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    images = collect_images(tiny_images(2, 3, 32))
    transform = transform_for("resnet8", pretrained=False)
    size = 6 * 3 * square_size(transform) ** 2
    refused = rf"the decoded images take {size:,} bytes, .* set FEWMORE_CACHE to another folder"
    (tmp_path / "file").touch()
    with monkeypatch.context() as patch:
        patch.setenv("FEWMORE_CACHE", str(tmp_path / "file"))
        with pytest.raises(ConfigError, match=refused), decode(images, transform):
            pass
    monkeypatch.setenv("FEWMORE_CACHE", str(tmp_path))
    with decode(images, transform) as decoded:
        assert torch.equal(decoded.image(4), images.images[4])
    if hasattr(os, "posix_fallocate"):
        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(ConfigError, match=refused), decode(images, transform):
            pass


def decode(images: LabeledImages, transform: Transform) -> AbstractContextManager[ImageSet]:
    return from_scratch.decoded_to_disk(images, transform, no_progress)
