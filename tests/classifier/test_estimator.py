"""IncrementalClassifier: what a person does with it, and everything that can go wrong on the way."""

import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from PIL import Image
from torch import Tensor

from fewmore import IncrementalClassifier
from fewmore.classifier import embedding, estimator
from fewmore.classifier.class_set import MAX_UNDO_STEPS
from fewmore.classifier.fitting import adapter as adapter_fitting
from fewmore.classifier.fitting import from_scratch, frozen
from fewmore.classifier.fitting.transform import transform_for
from fewmore.classifier.inputs import collect_images
from fewmore.data.images import ImageSet
from fewmore.errors import (
    ConfigError,
    DataError,
    DownloadError,
    FewmoreError,
    ImageError,
    MissingData,
    ModelFileError,
    NotFittedError,
    UnknownName,
)
from fewmore.methods.base import Recipe
from fewmore.methods.cec import Config
from fewmore.nn.adapter import AdapterConfig
from fewmore.nn.backbones import build
from fewmore.training.pseudo_incremental import PseudoConfig

MakeImages = Callable[..., ImageSet]


@pytest.fixture(scope="module", autouse=True)
def quick_adapter() -> Iterator[None]:
    """Two episodes for the adapter: what it learns is not looked at here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fewmore.training.pseudo_incremental.ROUND", 2)
        patch.setattr(adapter_fitting, "CONFIG", replace(adapter_fitting.CONFIG, episodes=2))
        yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that was never trained: its features tell colours apart all the same."""
    path = tmp_path_factory.mktemp("weights") / "resnet8.pth"
    torch.save(build("resnet8", seed=1).state_dict(), path)
    return path


@pytest.fixture(scope="module")
def trained(
    weights: Path, tiny_images: MakeImages, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A model file: six classes of eight images."""
    path = tmp_path_factory.mktemp("trained") / "tiny.fewmore"
    IncrementalClassifier("resnet8", weights).fit(tiny_images(6, 8)).save(path)
    return path


@pytest.fixture
def clf(trained: Path) -> IncrementalClassifier:
    return IncrementalClassifier.load(trained)


@pytest.fixture
def adapted(
    trained: Path, weights: Path, tiny_images: MakeImages, monkeypatch: pytest.MonkeyPatch
) -> IncrementalClassifier:
    """One whose adapter won, by decree."""
    monkeypatch.setattr(
        frozen, "compare_heads", lambda *_: torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    )
    return IncrementalClassifier("resnet8", weights).fit(tiny_images(6, 8))


@pytest.fixture(scope="module")
def unseen(tiny_images: MakeImages) -> dict[str, list[Tensor]]:
    """Eight classes, the last two of them new; other images than those of the training."""
    images = tiny_images(8, 5, seed=7)
    return {
        name: [images.image(5 * label + i) for i in range(5)]
        for label, name in enumerate(images.class_names)
    }


def told(clf: IncrementalClassifier, images: Any) -> list[tuple[str, ...]]:
    return [one.names for one in clf.predict(images)]


def same(
    one: IncrementalClassifier, other: IncrementalClassifier, features: Tensor, **noise: float
) -> None:
    """Both know the same and say the same, to the bit where no noise is allowed."""
    assert one.classes_ == other.classes_
    for a, b in zip(one.model.class_set.classes, other.model.class_set.classes, strict=True):
        assert torch.equal(a.feature_sum, b.feature_sum)
        assert (a.count, a.hashes) == (b.count, b.hashes)
    for a, b in zip(
        one.predict_features(features, 99), other.predict_features(features, 99), strict=True
    ):
        if noise:
            assert dict(zip(a.names, a.confidences, strict=True)) == pytest.approx(
                dict(zip(b.names, b.confidences, strict=True)), **noise
            )
        else:
            assert a == b


# Training


def test_the_constructor_only_stores():
    made = IncrementalClassifier(
        "no such backbone", "no such file", device="no such device", seed=3
    )
    assert (made.backbone, made.weights, made.device, made.seed) == (
        "no such backbone",
        "no such file",
        "no such device",
        3,
    )
    for use in (
        lambda: made.predict("a.jpg"),
        lambda: made.learn({"a": ["a.jpg"]}),
        lambda: made.classes_,
        lambda: made.save("x"),
        made.info,
        made.undo,
    ):
        with pytest.raises(
            NotFittedError, match="call fit with images of the first classes, or load a model file"
        ):
            use()


def test_it_is_trained_on_a_folder(tiny_folder: Path, weights: Path):
    seen = []
    made = IncrementalClassifier("resnet8", weights)
    assert (
        made.fit(str(tiny_folder), lambda stage, done, total: seen.append((stage, done, total)))
        is made
    )
    assert made.classes_ == [f"class {i}" for i in range(6)]
    assert ("embedding images", 36, 36) in seen
    assert any(stage == "training the adapter" for stage, _, _ in seen)
    images = sorted(tiny_folder.glob("*/*.png"))
    assert [one.names[0] for one in made.predict(images)] == [path.parent.name for path in images]
    assert made.history_[0].kind == "fit"
    assert made.history_[0].images == 36


def test_the_same_seed_gives_the_same_classifier(
    tiny_images: MakeImages, weights: Path, tmp_path: Path
):
    blobs = []
    for seed in (0, 0, 1):
        made = IncrementalClassifier("resnet8", weights, seed=seed).fit(tiny_images(4, 6))
        made._state = replace(
            made._state, model=replace(made._state.model, origin={})
        )  # it holds the time
        made.save(tmp_path / "a.fewmore")
        blobs.append(
            (made.calibration, [known.feature_sum.tolist() for known in made.model.class_set.classes])
        )
    assert blobs[0] == blobs[1]
    assert blobs[0][1] == blobs[2][1]  # the means do not depend on it


def test_a_folder_a_set_and_a_table_are_the_same(tiny_folder: Path, weights: Path):
    table = {own.name: sorted(own.iterdir()) for own in sorted(tiny_folder.iterdir())}
    turned = dict(reversed([(name, list(reversed(paths))) for name, paths in table.items()]))
    one, other, third = (
        IncrementalClassifier("resnet8", weights).fit(images)
        for images in (tiny_folder, table, turned)
    )
    assert [a.feature_sum.tolist() for a in one.model.class_set.classes] == [
        b.feature_sum.tolist() for b in other.model.class_set.classes
    ]
    assert third.classes_ == list(reversed(one.classes_))
    torch.testing.assert_close(
        third.model.class_set.classes[-1].total, one.model.class_set.classes[0].total
    )


def test_what_was_measured_is_told(clf: IncrementalClassifier):
    calibration = clf.calibration
    assert calibration.held_out == 48
    assert calibration.accuracy is not None
    assert calibration.accuracy > 0.9
    assert calibration.ece_before is not None
    assert calibration.ece_after is not None
    assert calibration.ece_after <= calibration.ece_before
    assert calibration.auroc is not None
    assert 0.5 < calibration.auroc <= 1
    assert 0 <= calibration.sessions_plain <= 1
    assert "resnet8 with" in clf.notes_[0]
    assert any(
        note.startswith("the adapter is ") and "by the plain cosine" in note for note in clf.notes_
    )
    info = json.loads(json.dumps(clf.info()))
    assert info["classes"] == {f"class {i}": 8 for i in range(6)}
    assert info["images"] == 48
    assert info["sessions"] == 1
    assert info["classifier"] in ("adapter", "plain cosine")
    assert info["bytes"]["backbone"] > 100_000


def test_copies_do_not_make_a_class_large_enough_to_hold_out(
    tiny_images: MakeImages, weights: Path
):
    images = tiny_images(4, 6)
    copies = images.select(torch.tensor([0, 0, 0, 0, 0, *range(6, 24)]))
    made = IncrementalClassifier("resnet8", weights).fit(copies)
    assert any(
        "class 'class 0' has 1 image, fewer than 4: nothing is held out" in note
        for note in made.notes_
    )
    assert any(note.startswith("4 duplicates of images in the same class") for note in made.notes_)
    assert made.info()["classes"]["class 0"] == 1


def test_with_three_images_in_a_class_nothing_is_held_out(tiny_images: MakeImages, weights: Path):
    images = tiny_images(4, 6)
    few = images.select(torch.tensor([i for i in range(24) if i not in (3, 4, 5)]))
    made = IncrementalClassifier("resnet8", weights).fit(few)
    assert any(
        "class 'class 0' has 3 images, fewer than 4: nothing is held out" in note
        for note in made.notes_
    )
    assert made.calibration.threshold is None
    assert made.calibration.held_out == 0
    assert made.info()["classifier"] == "plain cosine"
    assert told(made, images) == [(images.class_names[label],) for label in images.labels]
    assert all(one.known for one in made.predict(np.zeros((8, 8), np.uint8)))


@pytest.mark.parametrize("per_class", [1, 2, 4])
def test_small_folders_train(tiny_images: MakeImages, weights: Path, per_class: int):
    made = IncrementalClassifier("resnet8", weights).fit(tiny_images(3, per_class))
    assert made.info()["images"] == 3 * per_class
    assert made.calibration.held_out == (12 if per_class == 4 else 0)


def test_a_hundred_classes_train(weights: Path):
    noise = np.random.default_rng(0)
    images = {
        f"class {i}": list(noise.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)) for i in range(100)
    }
    made = IncrementalClassifier("resnet8", weights).fit(images)
    assert len(made.classes_) == 100


def test_duplicates_in_training_count_once(tiny_images: MakeImages, weights: Path):
    images = tiny_images(3, 4)
    counted = {
        name: [images.image(4 * label + i) for i in range(4)]
        for label, name in enumerate(images.class_names)
    }
    plain = IncrementalClassifier("resnet8", weights).fit(counted)
    counted["class 0"].append(counted["class 0"][1])
    counted["class 1"].append(counted["class 0"][2])
    made = IncrementalClassifier("resnet8", weights).fit(counted)
    assert made.info()["classes"] == {"class 0": 4, "class 1": 5, "class 2": 4}
    assert any(
        note.startswith(
            "1 duplicate of images in the same class, not counted again: image 5 of class 0"
        )
        for note in made.notes_
    )
    assert any(
        "1 image in two classes: image 5 of class 1, also in class 0" in note
        for note in made.notes_
    )
    torch.testing.assert_close(
        made.model.class_set.classes[0].total, plain.model.class_set.classes[0].total
    )


def test_training_input_that_cannot_be(tmp_path: Path, tiny_images: MakeImages, weights: Path):
    made = IncrementalClassifier("resnet8", weights)
    with pytest.raises(DataError, match="one class was given, a, and at least 2 are needed"):
        made.fit({"a": [np.zeros((8, 8), np.uint8)]})
    with pytest.raises(MissingData, match="nowhere is not there"):
        made.fit(tmp_path / "nowhere")
    with pytest.raises(DataError, match="class 'b' has no images"):
        made.fit({"a": [np.zeros((8, 8), np.uint8)], "b": []})
    with pytest.raises(
        DataError, match="images must come as a folder of class folders, or as a table"
    ):
        made.fit([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="device 'abacus' cannot be used"):
        IncrementalClassifier("resnet8", weights, device="abacus").fit(tiny_images(2, 2))
    with pytest.raises(MissingData, match="there is no weight file"):
        IncrementalClassifier("resnet8", tmp_path / "none.pth").fit(tiny_images(2, 2))
    with pytest.raises(UnknownName, match="no backbone is named 'resnet9': did you mean"):
        IncrementalClassifier("resnet9", weights).fit(tiny_images(2, 2))


def test_all_broken_images_are_named_at_once(tiny_folder: Path, tmp_path: Path, weights: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(20):
            content = (
                b"no image"
                if i % 8 == 1
                else next((tiny_folder / "class 1").iterdir()).read_bytes()
            )
            (tmp_path / name / f"{i:02}.png").write_bytes(content)
    with pytest.raises(
        ImageError, match=r"6 images cannot be used: .*a/01.png .*; .*a/09.png .*; .*and 1 more"
    ):
        IncrementalClassifier("resnet8", weights).fit(tmp_path)


def test_only_a_few_images_are_in_memory(weights: Path):
    """However many there are: those that are decoded ahead, and the batch at hand."""
    alive, most = 0, 0
    lock = threading.Lock()

    class Counted:
        def __init__(self) -> None:
            nonlocal alive, most
            with lock:
                alive += 1
                most = max(most, alive)

    def images() -> Any:
        class Lazy(list[Any]):
            def __len__(self) -> int:
                return 2000

            def __getitem__(self, index: Any) -> Any:
                Counted()
                return np.full((4, 4), index % 256, np.uint8)

        return Lazy()

    transform = transform_for("resnet8", pretrained=True)
    for batch in embedding.decode_batches(images(), [""] * 2000, transform, 8):
        alive -= len(batch)
    assert alive == 0
    assert most <= 8 * (2 * (os.cpu_count() or 1) + 4)


# From scratch


def test_from_scratch_by_a_recipe(tiny_images: MakeImages, tiny_recipe: Recipe, tmp_path: Path):
    pseudo = PseudoConfig(
        episodes=2, base_way=2, new_way=2, base_query=2, new_query=2, milestones=()
    )
    seen = []
    made = IncrementalClassifier(
        weights=None, recipe=replace(tiny_recipe, method=Config(pseudo, AdapterConfig(heads=2)))
    )
    made.fit(tiny_images(4, 12), lambda stage, done, total: seen.append(stage))
    assert dict.fromkeys(seen).keys() == {
        "decoding images",
        "pretrain",
        "pseudo-incremental",
        "embedding images",
    }
    assert made.info()["classifier"] == "adapter"
    assert made.calibration.held_out == 4  # a tenth, at least one a class
    assert made.info()["images"] == 48  # in the end, all of them count
    assert "resnet8 was trained from scratch" in made.notes_
    assert made.evaluate(tiny_images(4, 6, seed=3)).accuracy > 0.8
    made.learn({"new": list(tiny_images(5, 3, seed=2).select_classes([4]).storage[-3:])})
    made.save(tmp_path / "a.fewmore")
    features = torch.rand(5, 64)
    same(made, IncrementalClassifier.load(tmp_path / "a.fewmore"), features, abs=1e-5)


@pytest.mark.parametrize(("size", "backbone"), [(32, "resnet20"), (64, "resnet18")])
def test_from_scratch_by_the_size_of_images(
    tiny_images: MakeImages, monkeypatch: pytest.MonkeyPatch, size: int, backbone: str
):
    chosen = []

    def stop(recipe: Recipe, *_: Any) -> None:
        chosen.append(recipe)
        raise ConfigError("far enough")

    monkeypatch.setattr(from_scratch, "CEC", stop)
    with pytest.raises(ConfigError, match="far enough"):
        IncrementalClassifier(weights=None).fit(tiny_images(3, 5, size=size))
    (recipe,) = chosen
    assert recipe.backbone == backbone
    assert (recipe.method.pseudo.base_way, recipe.method.pseudo.base_query) == (
        3,
        3,
    )  # of five images one is held out and one is the shot
    assert recipe.pretrain.batch <= 12


def test_the_small_folder_recipe():
    recipe = from_scratch.recipe_for("resnet20", [500] * 60)
    assert (recipe.method.pseudo.base_way, recipe.method.pseudo.base_query, recipe.pretrain.batch) == (
        15,
        15,
        128,
    )
    assert 2000 < recipe.method.pseudo.episodes <= 5000
    small = from_scratch.recipe_for("resnet20", [2, 5, 9])
    assert (small.method.pseudo.base_way, small.method.pseudo.base_query, small.pretrain.batch) == (3, 1, 16)


def test_from_scratch_takes_two_images(tiny_images: MakeImages):
    with pytest.raises(
        DataError, match="has one image, and training from scratch takes at least 2 a class"
    ):
        IncrementalClassifier(weights=None).fit(tiny_images(3, 1))


def test_without_weights_it_falls_back_and_says_so(
    tiny_images: MakeImages, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any, **__: Any) -> Path:
        raise DownloadError("no route to host")

    pseudo = PseudoConfig(
        episodes=2, base_way=2, new_way=2, base_query=2, new_query=2, milestones=()
    )
    monkeypatch.setattr(estimator, "pretrained_weights", fail)
    monkeypatch.setattr(
        from_scratch, "recipe_for", lambda name, counts: replace(tiny_recipe, method=Config(pseudo))
    )
    made = IncrementalClassifier().fit(tiny_images(3, 5))
    assert (
        "no ImageNet weights for mobilenet_v2 could be had, so a network is trained from scratch (no route to host)"
        in made.notes_
    )
    assert made.classes_ == ["class 0", "class 1", "class 2"]


# Learning


def test_new_classes_are_learnt_and_old_ones_kept(
    clf: IncrementalClassifier, unseen: dict[str, list[Tensor]]
):
    learned = clf.learn({name: unseen[name][:3] for name in ("class 6", "class 7")})
    assert (learned.added, learned.refined, learned.version) == (["class 6", "class 7"], [], 2)
    assert clf.version == 2
    right = [told(clf, images) == [(name,)] * 5 for name, images in unseen.items()]
    assert sum(right) >= 7


@pytest.mark.parametrize("kind", ["path", "bytes", "pillow", "array", "tensor", "text"])
def test_images_of_any_kind_are_the_same(
    clf: IncrementalClassifier, unseen: dict[str, list[Tensor]], tmp_path: Path, kind: str
):
    tensor = unseen["class 6"][0]
    image = Image.fromarray(tensor.permute(1, 2, 0).numpy())
    image.save(tmp_path / "a.png")
    buffer = io.BytesIO()
    image.save(buffer, "png")
    given: dict[str, Any] = {
        "path": tmp_path / "a.png",
        "text": str(tmp_path / "a.png"),
        "bytes": buffer.getvalue(),
        "pillow": image,
        "array": np.asarray(image),
        "tensor": tensor,
    }
    assert torch.equal(clf.embed(given[kind]), clf.embed([tensor]))
    clf.learn({"x": [tensor]})
    warnings = clf.learn({"x": given[kind]}).warnings
    assert len(warnings) == 1
    assert "is a duplicate: x has that image already" in warnings[0]


def test_more_images_refine_as_if_all_had_come_at_once(clf: IncrementalClassifier, trained: Path):
    other = IncrementalClassifier.load(trained)
    features = torch.randn(9, 64, generator=torch.Generator().manual_seed(0)).abs()
    clf.learn_features({"a": features[:2]})
    clf.learn_features({"b": features[5:]})
    learned = clf.learn_features({"a": features[2:5]})
    assert (learned.added, learned.refined) == ([], ["a"])
    other.learn_features({"a": features[:5], "b": features[5:]})
    same(clf, other, features)


def test_a_class_of_the_training_can_be_refined(
    clf: IncrementalClassifier, unseen: dict[str, list[Tensor]]
):
    before = clf.model.class_set.classes[2]
    assert clf.learn({"class 2": unseen["class 2"]}).refined == ["class 2"]
    after = clf.model.class_set.classes[2]
    assert (before.count, after.count) == (8, 13)
    torch.testing.assert_close(
        after.feature_sum - before.feature_sum, clf.embed(unseen["class 2"]).double().sum(0)
    )


@pytest.mark.parametrize("grouping", [[1] * 12, [3, 4, 5], [12], [1, 11]])
def test_grouping_into_sessions_leaves_no_trace(
    clf: IncrementalClassifier, trained: Path, grouping: list[int]
):
    whole = IncrementalClassifier.load(trained)
    features = torch.randn(12, 3, 64, generator=torch.Generator().manual_seed(1)).abs()
    lessons = {f"new {i}": rows for i, rows in enumerate(features)}
    names = iter(lessons)
    for size in grouping:
        clf.learn_features({name: lessons[name] for name in [next(names) for _ in range(size)]})
    whole.learn_features(lessons)
    same(clf, whole, features.flatten(0, 1))


def test_learning_is_all_or_nothing(
    clf: IncrementalClassifier, unseen: dict[str, list[Tensor]], tmp_path: Path
):
    (tmp_path / "bad.jpg").write_bytes(b"not an image")
    before = clf._state
    for bad in (
        tmp_path / "bad.jpg",
        tmp_path / "none.jpg",
        b"",
        np.full((4, 4), np.nan),
        object(),
    ):
        with pytest.raises(ImageError) as caught:
            clf.learn(
                {
                    "class 6": unseen["class 6"],
                    "okapi": [unseen["class 7"][0], bad, unseen["class 7"][1]],
                }
            )
        assert (str(bad) if isinstance(bad, Path) else "image 2 of okapi") in str(caught.value)
        assert clf._state is before
    for wrong in (
        {"a": []},
        {"": [unseen["class 6"][0]]},
        {"okapi": [unseen["class 6"][0]], " okapi ": [unseen["class 6"][1]]},
    ):
        with pytest.raises(DataError):
            clf.learn(wrong)
        assert clf._state is before
    with pytest.raises(DataError):
        clf.learn_features({"a": torch.zeros(2, 64), "b": torch.zeros(2, 63)})
    with pytest.raises(DataError, match="not finite"):
        clf.learn_features({"a": torch.full((1, 64), float("nan"))})
    assert clf._state is before


def test_duplicates_are_not_counted(clf: IncrementalClassifier, unseen: dict[str, list[Tensor]]):
    one, two, three, *_ = unseen["class 6"]
    learned = clf.learn({"okapi": [one, two, one]})
    assert learned.warnings == [
        "image 3 of okapi is a duplicate: okapi has that image already, and it is not counted again"
    ]
    assert clf.info()["classes"]["okapi"] == 2
    learned = clf.learn({"okapi": [two, three], "zebra": [three, three]})
    assert learned.warnings[:3] == [
        "image 1 of okapi is a duplicate: okapi has that image already, and it is not counted again",
        "image 1 of zebra is an image of okapi too: it now counts for both",
        "image 2 of zebra is a duplicate: zebra has that image already, and it is not counted again",
    ]
    assert clf.info()["classes"]["okapi"] == 3
    version = clf.version
    learned = clf.learn({"okapi": [one]})
    assert (learned.added, learned.refined, learned.version, clf.version) == (
        [],
        [],
        version,
        version,
    )
    learned = clf.learn({"gnu": [one]})
    assert any(
        warning == "image 1 of gnu is an image of okapi too: it now counts for both"
        for warning in learned.warnings
    )


def test_duplicates_are_known_from_the_file(
    clf: IncrementalClassifier, unseen: dict[str, list[Tensor]], tmp_path: Path
):
    clf.learn({"okapi": unseen["class 6"]})
    clf.save(tmp_path / "a.fewmore")
    assert (
        len(
            IncrementalClassifier.load(tmp_path / "a.fewmore")
            .learn({"okapi": unseen["class 6"]})
            .warnings
        )
        == 5
    )


def test_a_close_class_is_named(clf: IncrementalClassifier, unseen: dict[str, list[Tensor]]):
    warnings = clf.learn({"class 3 again": unseen["class 3"]}).warnings
    assert warnings == ["class 3 again is close to class 3: they may be taken for one another"]
    assert clf.learn_features({"far": -torch.ones(1, 64)}).warnings == []


def test_names(clf: IncrementalClassifier):
    rows = torch.ones(1, 64)
    clf.learn_features({"  Großer Panda\u0308 ": rows})
    assert clf.classes_[-1] == "Großer Pand\u00e4"
    assert clf.learn_features({"Großer Pand\u00e4": rows}).refined == ["Großer Pand\u00e4"]
    for name in ("", "   ", "a\nb", "a\x00", "x" * 201, "a\x7f"):
        with pytest.raises(DataError, match="a class's name must"):
            clf.learn_features({name: rows})
    with pytest.raises(DataError, match="must be a text, not 3"):
        clf.learn_features({3: rows})  # type: ignore[dict-item]
    clf.learn_features({"x" * 200: rows})
    with pytest.raises(UnknownName, match="no class is named 'clas 1': did you mean class 1"):
        clf.forget("clas 1")


def test_another_one_shares_what_is_known_and_goes_its_own_way(
    clf: IncrementalClassifier, unseen: dict[str, list[Tensor]]
):
    before = clf.model.class_set
    other = clf.with_class_set(before)
    given = collect_images({"class 6": unseen["class 6"]})
    features, hashes = clf.embedder.embed(given.images, given.titles, hashes=True)
    assert other.learn_embedded(given, features, hashes).added == ["class 6"]
    assert clf.model.class_set.classes == before.classes
    clf.learn({"class 6": unseen["class 6"]})
    same(clf, other, features)
    assert clf.with_class_set(before).classes_ == [known.name for known in before.classes]


# Forgetting, renaming, undoing


def test_forgetting_leaves_no_trace(clf: IncrementalClassifier, trained: Path):
    features = torch.randn(4, 64, generator=torch.Generator().manual_seed(2)).abs()
    clf.learn_features({"a": features[:2], "b": features[2:]})
    clf.forget("a")
    clf.forget(["b"])
    same(clf, IncrementalClassifier.load(trained), features)
    with pytest.raises(ConfigError, match="no class was named"):
        clf.forget([])


def test_renaming_keeps_the_place(clf: IncrementalClassifier):
    clf.rename("class 2", "okapi")
    assert clf.classes_ == ["class 0", "class 1", "okapi", "class 3", "class 4", "class 5"]
    with pytest.raises(ConfigError, match="'class 1' is the name of a class already"):
        clf.rename("okapi", "class 1")
    with pytest.raises(UnknownName):
        clf.rename("class 2", "x")
    with pytest.raises(DataError, match="must not be empty"):
        clf.rename("okapi", " ")


def test_every_change_can_be_undone(clf: IncrementalClassifier, trained: Path, tmp_path: Path):
    features = torch.randn(6, 64, generator=torch.Generator().manual_seed(3)).abs()
    states = [clf.model]
    for change in (
        lambda: clf.learn_features({"a": features[:2], "class 1": features[2:3]}),
        lambda: clf.rename("a", "b"),
        lambda: clf.forget(["class 0", "b", "class 3"]),
        lambda: clf.learn_features({"class 0": features[3:]}),
    ):
        change()
        states.append(clf.model)
    for number, said in enumerate(
        (
            "learn of class 0",
            "forget of class 0, b, class 3",
            "rename of a to b",
            "learn of a, class 1",
        )
    ):
        clf.save(tmp_path / "a.fewmore")
        clf = IncrementalClassifier.load(tmp_path / "a.fewmore")
        assert said in clf.undo()
        expected = states[3 - number].class_set
        assert clf.classes_ == list(expected.names)
        assert all(
            torch.equal(a.feature_sum, b.feature_sum)
            for a, b in zip(clf.model.class_set.classes, expected.classes, strict=True)
        )
        assert clf.history_ == list(expected.history)
    assert clf.version == 9
    same(clf, IncrementalClassifier.load(trained), features)
    with pytest.raises(
        ConfigError, match="there is nothing to undo: no change was made since training"
    ):
        clf.undo()


def test_only_the_last_changes_can_be_undone(clf: IncrementalClassifier):
    for number in range(MAX_UNDO_STEPS + 2):
        clf.rename(clf.classes_[0], f"name {number}")
    for _ in range(MAX_UNDO_STEPS):
        clf.undo()
    with pytest.raises(
        ConfigError,
        match=r"the rename of name 0 to name 1 cannot be undone: only the last 20 changes can",
    ):
        clf.undo()
    assert clf.classes_[0] == "name 1"
    assert len(clf.history_) == 3


def test_everything_can_be_forgotten_and_learnt_anew(
    clf: IncrementalClassifier, unseen: dict[str, list[Tensor]], tmp_path: Path
):
    clf.forget(clf.classes_)
    assert clf.classes_ == []
    clf.save(tmp_path / "a.fewmore")
    clf = IncrementalClassifier.load(tmp_path / "a.fewmore")
    for use in (
        lambda: clf.predict(unseen["class 1"]),
        lambda: clf.predict_features(torch.ones(1, 64)),
        lambda: clf.evaluate(unseen),
    ):
        with pytest.raises(
            ConfigError, match="no class is known, all were forgotten: learn some, or undo"
        ):
            use()
    with pytest.raises(ConfigError, match="no class is named 'a': no class is known at all"):
        clf.forget("a")
    clf.learn({"only": unseen["class 1"]})
    (one,) = clf.predict(unseen["class 1"][0], top=5)
    assert one.names == ("only",)
    assert one.confidences == pytest.approx((1.0,))
    assert one.known
    clf.undo()
    clf.undo()
    assert len(clf.classes_) == 6


# Asking


def test_a_prediction(clf: IncrementalClassifier, unseen: dict[str, list[Tensor]]):
    (one,) = clf.predict(unseen["class 4"][0], top=4)
    assert one.names[0] == "class 4"
    assert len(one.names) == len(one.confidences) == 4
    assert list(one.confidences) == sorted(one.confidences, reverse=True)
    (whole,) = clf.predict(unseen["class 4"][0], top=100)
    assert len(whole.names) == 6
    assert sum(whole.confidences) == pytest.approx(1)
    assert whole.names[:4] == one.names
    assert clf.predict([]) == []
    with pytest.raises(ConfigError, match="top must be at least 1, not 0"):
        clf.predict(unseen["class 4"], top=0)
    with pytest.raises(
        DataError, match=r"features must have the shape \(images, 64\), and have \(3, 5\)"
    ):
        clf.predict_features(torch.zeros(3, 5))
    with pytest.raises(ImageError, match="image 2"):
        clf.predict([unseen["class 4"][0], b"nothing"])


def test_none_of_these(clf: IncrementalClassifier, tiny_images: MakeImages):
    assert sum(one.known for one in clf.predict(tiny_images(6, 20, seed=5))) >= 0.85 * 120
    strange = clf.predict_features(-torch.ones(1, 64))
    assert not strange[0].known
    assert strange[0].familiarity < clf.calibration.threshold


def test_known_images_stay_known(clf: IncrementalClassifier, unseen: dict[str, list[Tensor]]):
    """Familiarity is a maximum: classes that come later can only raise it."""
    features = clf.embed([image for images in unseen.values() for image in images])
    before = [one.familiarity for one in clf.predict_features(features)]
    clf.learn({"class 6": unseen["class 6"]})
    after = [one.familiarity for one in clf.predict_features(features)]
    assert all(b >= a - 1e-6 for a, b in zip(before, after, strict=True))


def test_evaluation(clf: IncrementalClassifier, unseen: dict[str, list[Tensor]]):
    seen = []
    given = {name: unseen[name] for name in ("class 5", "class 0", "class 2")}
    found = clf.evaluate(given, lambda *report: seen.append(report))
    assert seen[-1] == ("evaluating", 15, 15)
    answers = {name: [names[0] for names in told(clf, images)] for name, images in given.items()}
    assert found.by_class == {name: pytest.approx(answers[name].count(name) / 5) for name in given}
    assert found.accuracy == pytest.approx(sum(answers[name].count(name) for name in given) / 15)
    assert found.confusion.shape == (6, 6)
    assert found.confusion.sum(1).tolist() == [5, 0, 5, 0, 0, 5]
    assert int(found.confusion[5, 5]) == answers["class 5"].count("class 5")
    assert 0 <= found.ece <= 1
    assert 0 <= found.rejected <= 1
    assert found.images == 15
    with pytest.raises(UnknownName, match="no class is named 'class 7'"):
        clf.evaluate({"class 7": unseen["class 7"]})


# With an adapter


def test_the_adapter_follows_every_change(adapted: IncrementalClassifier, tmp_path: Path):
    assert adapted.info()["classifier"] == "adapter"
    assert any("the adapter is used" in note for note in adapted.notes_)
    features = torch.randn(60, 64, generator=torch.Generator().manual_seed(4)).abs()
    changes: list[Callable[[], Any]] = [
        *(
            lambda i=i: adapted.learn_features({f"new {i}": features[3 * i : 3 * i + 3]})
            for i in range(12)
        ),
        lambda: adapted.learn_features({"class 1": features[40:42]}),
        lambda: adapted.forget("class 2"),
        lambda: adapted.rename("class 3", "three"),
        adapted.undo,
        adapted.undo,
        adapted.undo,
        lambda: adapted.forget(adapted.classes_[1:]),
        adapted.undo,
    ]
    for number, change in enumerate(changes):
        change()
        if number in (0, 5) or number > 10:
            adapted.save(tmp_path / "a.fewmore")
            same(adapted, IncrementalClassifier.load(tmp_path / "a.fewmore"), features, abs=2e-5)


def test_an_adapter_of_many_features_works_on_fewer(
    weights: Path,
    tiny_images: MakeImages,
    unseen: dict[str, list[Tensor]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    monkeypatch.setattr(
        frozen, "compare_heads", lambda *_: torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    )
    monkeypatch.setattr(adapter_fitting, "ADAPTER_DIM", 8)
    made = IncrementalClassifier("resnet8", weights).fit(tiny_images(4, 6))
    assert made.scorer.head.projection.shape == (64, 8)
    assert made.scorer.head.adapter.dim == 8
    made.learn({"class 6": unseen["class 6"]})
    made.save(tmp_path / "a.fewmore")
    same(made, IncrementalClassifier.load(tmp_path / "a.fewmore"), torch.rand(6, 64), abs=2e-5)
    gram = made.scorer.head.projection.T @ made.scorer.head.projection
    torch.testing.assert_close(gram, gram[0, 0] * torch.eye(8), atol=1e-5, rtol=1e-4)


def test_fewer_images_than_directions(
    weights: Path, tiny_images: MakeImages, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        frozen, "compare_heads", lambda *_: torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    )
    monkeypatch.setattr(adapter_fitting, "ADAPTER_DIM", 60)
    head = IncrementalClassifier("resnet8", weights).fit(tiny_images(4, 6)).scorer.head
    assert head.projection.shape[1] == head.adapter.dim < 24


def test_an_adapter_that_does_not_win_is_not_shipped(
    weights: Path, tiny_images: MakeImages, monkeypatch: pytest.MonkeyPatch
):
    even = torch.tensor(
        [[0.5, 0.5, 0.0], [0.4, 0.5, 0.2]], dtype=torch.float64
    )  # better, but by no more than chance
    monkeypatch.setattr(frozen, "compare_heads", lambda *_: even)
    made = IncrementalClassifier("resnet8", weights).fit(tiny_images(4, 6))
    assert made.info()["classifier"] == "plain cosine"
    assert any(
        "the adapter is not used: on pseudo-sessions of held-out images 36.7 % are right with it, 33.3 %"
        in n
        for n in made.notes_
    )
    assert made.calibration.sessions_adapted == pytest.approx(0.3667, abs=1e-4)


# Many at once, and files


def test_others_predict_while_one_learns(clf: IncrementalClassifier):
    features = torch.rand(20, 64)
    errors: list[BaseException] = []
    done = threading.Event()

    def ask() -> None:
        try:
            while not done.is_set():
                names = {frozenset(one.names) for one in clf.predict_features(features, 1000)}
                assert len(names) == 1  # all by the classes of one moment
                assert all(
                    f"new {i}" in next(iter(names)) for i in range(len(next(iter(names))) - 6)
                )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(60):
        clf.learn_features({f"new {number}": torch.rand(2, 64)})
    done.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_threads_that_learn_take_turns(clf: IncrementalClassifier):
    rows = torch.rand(8, 20, 64)
    threads = [
        threading.Thread(
            target=lambda n=n: [
                clf.learn_features({f"{n} {i}": row[None]}) for i, row in enumerate(rows[n])
            ]
        )
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(clf.classes_) == 6 + 160
    assert clf.version == 161


def test_a_loaded_classifier_says_the_same_to_the_bit(
    clf: IncrementalClassifier, unseen: dict[str, list[Tensor]], tmp_path: Path
):
    clf.learn({"class 6": unseen["class 6"]})
    clf.save(tmp_path / "a.fewmore")
    other = IncrementalClassifier.load(tmp_path / "a.fewmore", device="cpu")
    images = [image for own in unseen.values() for image in own]
    assert other.predict(images, top=3) == clf.predict(images, top=3)
    assert other.info() == clf.info()
    other.save(tmp_path / "b.fewmore")
    assert (tmp_path / "a.fewmore").read_bytes() == (tmp_path / "b.fewmore").read_bytes()
    with pytest.raises(ModelFileError, match="there is no model file"):
        IncrementalClassifier.load(tmp_path / "c.fewmore")


# A naive model of it all


class Naive(RuleBasedStateMachine):
    """The classifier beside a plain list of (name, list of features), and a stack of its copies."""

    trained: Path
    folder: Path
    names = st.sampled_from(["a", "b", "c", "class 0", "class 1", " a", "é", "e\u0301"])

    def __init__(self) -> None:
        super().__init__()
        self.clf = IncrementalClassifier.load(self.trained)
        self.known: list[tuple[str, Any, int]] = [
            (k.name, k.feature_sum.numpy().copy(), k.count) for k in self.clf.model.class_set.classes
        ]
        self.past: list[list[tuple[str, Any, int]]] = []
        self.version = 1
        self.draw = np.random.default_rng(0)

    def changed(self, known: list[tuple[str, Any, int]]) -> None:
        self.past = [*self.past, self.known][-MAX_UNDO_STEPS:]
        self.known = known
        self.version += 1

    def place(self, name: str) -> int | None:
        return next((i for i, one in enumerate(self.known) if one[0] == name), None)

    @rule(lessons=st.dictionaries(names, st.integers(1, 3), min_size=1, max_size=3))
    def learn(self, lessons: dict[str, int]) -> None:
        rows = {
            name: np.abs(self.draw.normal(size=(count, 64))).astype(np.float32)
            for name, count in lessons.items()
        }
        clean = [name.strip().replace("e\u0301", "é") for name in lessons]
        if len(set(clean)) < len(clean):
            with pytest.raises(DataError):
                self.clf.learn_features({name: torch.from_numpy(row) for name, row in rows.items()})
            return
        learned = self.clf.learn_features(
            {name: torch.from_numpy(row) for name, row in rows.items()}
        )
        known, added = list(self.known), []
        for name, row in zip(clean, rows.values(), strict=True):
            place = self.place(name)
            total, count = (
                (np.zeros(64), 0) if place is None else (known[place][1].copy(), known[place][2])
            )
            for one in row.astype(np.float64):
                total = total + one
            entry = (name, total, count + len(row))
            if place is None:
                known.append(entry)
                added.append(name)
            else:
                known[place] = entry
        self.changed(known)
        assert learned.added == added
        assert learned.version == self.version

    @rule(wanted=st.lists(names, min_size=1, max_size=3))
    def forget(self, wanted: list[str]) -> None:
        clean = {name.strip().replace("e\u0301", "é") for name in wanted}
        if any(self.place(name) is None for name in clean):
            with pytest.raises(ConfigError):
                self.clf.forget(wanted)
            return
        self.clf.forget(wanted)
        self.changed([one for one in self.known if one[0] not in clean])

    @rule(old=names, new=names)
    def rename(self, old: str, new: str) -> None:
        first, second = (name.strip().replace("e\u0301", "é") for name in (old, new))
        place = self.place(first)
        if place is None or self.place(second) is not None:
            with pytest.raises(FewmoreError):
                self.clf.rename(old, new)
            return
        self.clf.rename(old, new)
        self.changed(
            [(second, *one[1:]) if i == place else one for i, one in enumerate(self.known)]
        )

    @rule()
    def undo(self) -> None:
        if not self.past:
            with pytest.raises(ConfigError):
                self.clf.undo()
            return
        self.clf.undo()
        self.known = self.past.pop()
        self.version += 1

    @rule()
    def save_and_load(self) -> None:
        path = self.folder / "machine.fewmore"
        self.clf.save(path)
        self.clf = IncrementalClassifier.load(path)

    @precondition(lambda self: self.known)
    @rule()
    def predict(self) -> None:
        features = np.abs(self.draw.normal(size=(3, 64))).astype(np.float32)
        spread = self.clf.model.variance
        likeness = np.empty((3, len(self.known)))
        for column, (_, total, count) in enumerate(self.known):
            mean = total / count
            square = float(mean @ mean)
            true = max(square - spread / count, square / 4)
            likeness[:, column] = features @ mean / np.linalg.norm(features, axis=1) / np.sqrt(true)
        scores = 16 * likeness / self.clf.calibration.temperature
        sure = np.exp(scores - scores.max(1, keepdims=True))
        sure /= sure.sum(1, keepdims=True)
        for row, one in enumerate(self.clf.predict_features(torch.from_numpy(features), 1000)):
            expected = {known[0]: sure[row, place] for place, known in enumerate(self.known)}
            assert dict(zip(one.names, one.confidences, strict=True)) == pytest.approx(
                expected, abs=1e-4
            )
            assert one.familiarity == pytest.approx(likeness[row].max(), abs=1e-5)

    @invariant()
    def knows_the_same(self) -> None:
        classes = self.clf.model.class_set.classes
        assert self.clf.classes_ == [one[0] for one in self.known]
        assert all(
            (a.feature_sum.numpy() == b[1]).all() and a.count == b[2]
            for a, b in zip(classes, self.known, strict=True)
        )
        assert self.clf.version == self.version


def run_machine(trained: Path, folder: Path, examples: int, steps: int) -> None:
    machine = type("Machine", (Naive,), {"trained": trained, "folder": folder})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(scope="module")
def without_adapter(
    weights: Path, tiny_images: MakeImages, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("plain") / "plain.fewmore"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            frozen, "compare_heads", lambda *_: torch.tensor([[1.0], [0.0]], dtype=torch.float64)
        )
        IncrementalClassifier("resnet8", weights).fit(tiny_images(3, 5)).save(path)
    return path


def test_it_does_as_a_naive_model_does(without_adapter: Path, tmp_path: Path):
    run_machine(without_adapter, tmp_path, 15, 15)


@pytest.mark.soak
def test_it_does_as_a_naive_model_does_for_long(without_adapter: Path, tmp_path: Path):
    run_machine(without_adapter, tmp_path, 300, 60)
