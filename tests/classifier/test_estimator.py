"""IncrementalClassifier: what a person does with it, and what can go wrong on the way."""

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fewmore import IncrementalClassifier, load
from fewmore.classifier.class_set import MAX_UNDO_STEPS
from fewmore.classifier.inputs import collect_images
from fewmore.data.images import ImageSet
from fewmore.errors import (
    ConfigError,
    DataError,
    ImageError,
    ModelFileError,
    NotFittedError,
    StateError,
    UnknownName,
)

Queries = dict[str, list[Tensor]]
AssertSame = Callable[..., None]


def random_features(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, 64, generator=torch.Generator().manual_seed(seed)).abs()


def predicted(clf: IncrementalClassifier, images: Any) -> list[str]:
    return [prediction.names[0] for prediction in clf.predict(images)]


def test_the_constructor_only_stores():
    clf = IncrementalClassifier("no such backbone", "no such file", device="no such device", seed=3)
    assert (clf.backbone, clf.weights) == ("no such backbone", "no such file")
    assert (clf.device, clf.seed) == ("no such device", 3)
    for use in (
        lambda: clf.predict("a.jpg"),
        lambda: clf.learn({"a": ["a.jpg"]}),
        lambda: clf.classes_,
        lambda: clf.save("x"),
        clf.info,
        clf.undo,
    ):
        with pytest.raises(NotFittedError, match="call fit"):
            use()


# Learning


def test_new_classes_are_learnt_and_old_ones_kept(clf: IncrementalClassifier, queries: Queries):
    result = clf.learn({name: queries[name][:3] for name in ("class 6", "class 7")})
    assert (result.added, result.refined, result.version) == (["class 6", "class 7"], [], 2)
    assert clf.version == 2
    correct = [predicted(clf, images) == [name] * 5 for name, images in queries.items()]
    assert sum(correct) >= 7


@pytest.mark.parametrize("kind", ["path", "bytes", "pillow", "array", "tensor", "text"])
def test_images_of_any_kind_are_the_same(
    clf: IncrementalClassifier, queries: Queries, tmp_path: Path, kind: str
):
    tensor = queries["class 6"][0]
    image = Image.fromarray(tensor.permute(1, 2, 0).numpy())
    image.save(tmp_path / "a.png")
    buffer = io.BytesIO()
    image.save(buffer, "png")
    forms: dict[str, Any] = {
        "path": tmp_path / "a.png",
        "text": str(tmp_path / "a.png"),
        "bytes": buffer.getvalue(),
        "pillow": image,
        "array": np.asarray(image),
        "tensor": tensor,
    }
    assert torch.equal(clf.embed(forms[kind]), clf.embed([tensor]))
    clf.learn({"x": [tensor]})
    (warning,) = clf.learn({"x": forms[kind]}).warnings
    assert "duplicate" in warning


def test_more_images_refine_as_if_all_had_come_at_once(
    clf: IncrementalClassifier, trained: Path, assert_same: AssertSame
):
    other = IncrementalClassifier.load(trained)
    features = random_features(9, seed=0)
    clf.learn_features({"a": features[:2]})
    clf.learn_features({"b": features[5:]})
    result = clf.learn_features({"a": features[2:5]})
    assert (result.added, result.refined) == ([], ["a"])
    other.learn_features({"a": features[:5], "b": features[5:]})
    assert_same(clf, other, features)


def test_a_base_class_can_be_refined(clf: IncrementalClassifier, queries: Queries):
    before = clf.model.class_set.classes[2]
    assert clf.learn({"class 2": queries["class 2"]}).refined == ["class 2"]
    after = clf.model.class_set.classes[2]
    assert (before.count, after.count) == (8, 13)
    torch.testing.assert_close(
        after.feature_sum - before.feature_sum, clf.embed(queries["class 2"]).double().sum(0)
    )


@pytest.mark.parametrize("grouping", [[1] * 12, [3, 4, 5], [12], [1, 11]])
def test_grouping_into_sessions_does_not_matter(
    clf: IncrementalClassifier, trained: Path, assert_same: AssertSame, grouping: list[int]
):
    whole = IncrementalClassifier.load(trained)
    features = random_features(12, 3, seed=1)
    support = {f"new {i}": of_class for i, of_class in enumerate(features)}
    names = iter(support)
    for size in grouping:
        clf.learn_features({name: support[name] for name in [next(names) for _ in range(size)]})
    whole.learn_features(support)
    assert_same(clf, whole, features.flatten(0, 1))


def test_learning_is_all_or_nothing(clf: IncrementalClassifier, queries: Queries, tmp_path: Path):
    (tmp_path / "bad.jpg").write_bytes(b"not an image")
    before = clf._state
    for bad in (
        tmp_path / "bad.jpg",
        tmp_path / "none.jpg",
        b"",
        np.full((4, 4), np.nan),
        object(),
    ):
        okapi = [queries["class 7"][0], bad, queries["class 7"][1]]
        name = str(bad) if isinstance(bad, Path) else "image 2 of okapi"
        with pytest.raises(ImageError, match=name):
            clf.learn({"class 6": queries["class 6"], "okapi": okapi})
        assert clf._state is before
    image, other = queries["class 6"][:2]
    for wrong in ({"a": []}, {"": [image]}, {"okapi": [image], " okapi ": [other]}):
        with pytest.raises(DataError):
            clf.learn(wrong)
        assert clf._state is before
    with pytest.raises(DataError):
        clf.learn_features({"a": torch.zeros(2, 64), "b": torch.zeros(2, 63)})
    with pytest.raises(DataError, match="not finite"):
        clf.learn_features({"a": torch.full((1, 64), float("nan"))})
    assert clf._state is before


def test_duplicates_are_not_counted(clf: IncrementalClassifier, queries: Queries):
    one, two, three, *_ = queries["class 6"]
    (warning,) = clf.learn({"okapi": [one, two, one]}).warnings
    assert warning.startswith("image 3 of okapi is a duplicate")
    assert clf.info()["classes"]["okapi"] == 2
    warnings = clf.learn({"okapi": [two, three], "zebra": [three, three]}).warnings
    assert warnings[0].startswith("image 1 of okapi is a duplicate")
    assert warnings[1].startswith("image 1 of zebra is an image of okapi too")
    assert warnings[2].startswith("image 2 of zebra is a duplicate")
    assert clf.info()["classes"]["okapi"] == 3
    version = clf.version
    result = clf.learn({"okapi": [one]})
    assert (result.added, result.refined, result.version) == ([], [], version)
    assert clf.version == version
    warnings = clf.learn({"gnu": [one]}).warnings
    assert any(
        warning.startswith("image 1 of gnu is an image of okapi too") for warning in warnings
    )


def test_duplicates_are_known_from_the_file(
    clf: IncrementalClassifier, queries: Queries, tmp_path: Path
):
    clf.learn({"okapi": queries["class 6"]})
    clf.save(tmp_path / "a.fewmore")
    loaded = IncrementalClassifier.load(tmp_path / "a.fewmore")
    assert len(loaded.learn({"okapi": queries["class 6"]}).warnings) == 5


def test_a_close_class_is_named(clf: IncrementalClassifier, queries: Queries):
    (warning,) = clf.learn({"class 3 again": queries["class 3"]}).warnings
    assert warning.startswith("class 3 again is close to class 3")
    far = torch.linalg.svd(clf.scorer.unit_prototypes).Vh[-1:]  # orthogonal to all classes
    assert clf.learn_features({"far": far}).warnings == []


def test_names(clf: IncrementalClassifier):
    features = torch.ones(1, 64)
    clf.learn_features({"  Großer Panda\u0308 ": features})
    assert clf.classes_[-1] == "Großer Pand\u00e4"
    assert clf.learn_features({"Großer Pand\u00e4": features}).refined == ["Großer Pand\u00e4"]
    for name in ("", "   ", "a\nb", "a\x00", "x" * 201, "a\x7f"):
        with pytest.raises(DataError, match="a class's name must"):
            clf.learn_features({name: features})
    with pytest.raises(DataError, match=r"not 3\.5"):
        clf.learn_features({3.5: features})  # type: ignore[dict-item]
    clf.learn_features({"x" * 200: features})
    with pytest.raises(UnknownName, match="'clas 1': did you mean class 1"):
        clf.forget("clas 1")


def test_removing_nothing_is_a_sentence(clf: IncrementalClassifier):
    with pytest.raises(ConfigError, match="no image was named: say which ones to remove from 'cl"):
        clf.remove_images("class 1", [])
    assert clf.info()["undoable"] == 0


def test_a_copy_with_the_same_classes_changes_on_its_own(
    clf: IncrementalClassifier, queries: Queries, assert_same: AssertSame
):
    before = clf.model.class_set
    other = clf.with_class_set(before)
    support = collect_images({"class 6": queries["class 6"]})
    features, hashes = clf.embedder.embed(support.images, support.titles, hashes=True)
    assert other.learn_embedded(support, features, hashes).added == ["class 6"]
    assert clf.model.class_set.classes == before.classes
    clf.learn({"class 6": queries["class 6"]})
    assert_same(clf, other, features)
    assert clf.with_class_set(before).classes_ == [known.name for known in before.classes]


# Forgetting, renaming, undoing


def test_forgetting_leaves_no_trace(
    clf: IncrementalClassifier, trained: Path, assert_same: AssertSame
):
    features = random_features(4, seed=2)
    clf.learn_features({"a": features[:2], "b": features[2:]})
    clf.forget("a")
    clf.forget(["b"])
    assert_same(clf, IncrementalClassifier.load(trained), features)
    with pytest.raises(ConfigError, match="no class was named"):
        clf.forget([])


def test_renaming_keeps_the_position(clf: IncrementalClassifier):
    clf.rename("class 2", "okapi")
    assert clf.classes_ == ["class 0", "class 1", "okapi", "class 3", "class 4", "class 5"]
    with pytest.raises(StateError, match="'class 1' is the name of a class already"):
        clf.rename("okapi", "class 1")
    with pytest.raises(UnknownName):
        clf.rename("class 2", "x")
    with pytest.raises(DataError, match="empty"):
        clf.rename("okapi", " ")


def test_every_change_can_be_undone(
    clf: IncrementalClassifier, trained: Path, tmp_path: Path, assert_same: AssertSame
):
    features = random_features(6, seed=3)
    before = []
    changes: dict[str, Callable[[], object]] = {
        "learning of a, class 1": lambda: clf.learn_features(
            {"a": features[:2], "class 1": features[2:3]}
        ),
        "renaming of a to b": lambda: clf.rename("a", "b"),
        "forgetting of class 0, b, class 3": lambda: clf.forget(["class 0", "b", "class 3"]),
        "learning of class 0": lambda: clf.learn_features({"class 0": features[3:]}),
    }
    for change in changes.values():
        before.append(clf.model.class_set)
        change()
    for description, expected in zip(reversed(changes), reversed(before), strict=True):
        clf.save(tmp_path / "a.fewmore")
        clf = IncrementalClassifier.load(tmp_path / "a.fewmore")
        assert description in clf.undo()
        assert clf.classes_ == list(expected.names)
        assert all(
            torch.equal(a.feature_sum, b.feature_sum)
            for a, b in zip(clf.model.class_set.classes, expected.classes, strict=True)
        )
        assert clf.history_ == list(expected.history)
    assert clf.version == 9
    assert_same(clf, IncrementalClassifier.load(trained), features)
    with pytest.raises(StateError, match="nothing to undo"):
        clf.undo()


def test_only_the_last_changes_can_be_undone(clf: IncrementalClassifier):
    for number in range(MAX_UNDO_STEPS + 2):
        clf.rename(clf.classes_[0], f"name {number}")
    for _ in range(MAX_UNDO_STEPS):
        clf.undo()
    with pytest.raises(StateError, match=r"the renaming of name 0 to name 1 cannot be undone"):
        clf.undo()
    assert clf.classes_[0] == "name 1"
    assert len(clf.history_) == 3


def test_everything_can_be_forgotten_and_learnt_anew(
    clf: IncrementalClassifier, queries: Queries, tmp_path: Path
):
    clf.forget(clf.classes_)
    assert clf.classes_ == []
    clf.save(tmp_path / "a.fewmore")
    clf = IncrementalClassifier.load(tmp_path / "a.fewmore")
    for use in (
        lambda: clf.predict(queries["class 1"]),
        lambda: clf.predict_features(torch.ones(1, 64)),
        lambda: clf.evaluate(queries),
    ):
        with pytest.raises(StateError, match="no class is known, all were forgotten"):
            use()
    with pytest.raises(StateError, match="no class is named 'a': no class is known at all"):
        clf.forget("a")
    clf.learn({"only": queries["class 1"]})
    (prediction,) = clf.predict(queries["class 1"][0], top=5)
    assert prediction.names == ("only",)
    assert prediction.confidences == pytest.approx((1.0,))
    assert prediction.known
    clf.undo()
    clf.undo()
    assert len(clf.classes_) == 6


# Prediction


def test_a_prediction(clf: IncrementalClassifier, queries: Queries):
    (prediction,) = clf.predict(queries["class 4"][0], top=4)
    assert prediction.names[0] == "class 4"
    assert len(prediction.names) == len(prediction.confidences) == 4
    assert list(prediction.confidences) == sorted(prediction.confidences, reverse=True)
    (whole,) = clf.predict(queries["class 4"][0], top=100)
    assert len(whole.names) == 6
    assert sum(whole.confidences) == pytest.approx(1)
    assert whole.names[:4] == prediction.names
    assert clf.predict([]) == []
    with pytest.raises(ConfigError, match="top must be at least 1, not 0"):
        clf.predict(queries["class 4"], top=0)
    with pytest.raises(DataError, match=r"\(images, 64\), and have \(3, 5\)"):
        clf.predict_features(torch.zeros(3, 5))
    with pytest.raises(DataError, match="some features are not finite numbers"):
        clf.predict_features(torch.full((1, 64), torch.nan))
    with pytest.raises(ImageError, match="image 2"):
        clf.predict([queries["class 4"][0], b"nothing"])


def test_none_of_these(clf: IncrementalClassifier, tiny_images: Callable[..., ImageSet]):
    known = [prediction.known for prediction in clf.predict(tiny_images(6, 20, seed=5))]
    assert sum(known) >= 0.85 * 120
    (unknown,) = clf.predict_features(-torch.ones(1, 64))
    assert not unknown.known
    assert unknown.familiarity < clf.calibration.threshold


def test_known_images_stay_known(clf: IncrementalClassifier, queries: Queries):
    """Familiarity is a maximum: classes that come later can only raise it."""
    features = clf.embed([image for images in queries.values() for image in images])
    before = [prediction.familiarity for prediction in clf.predict_features(features)]
    clf.learn({"class 6": queries["class 6"]})
    after = [prediction.familiarity for prediction in clf.predict_features(features)]
    assert all(b >= a - 1e-6 for a, b in zip(before, after, strict=True))


def test_the_threshold_follows_the_classes(clf: IncrementalClassifier, queries: Queries):
    trained = clf.calibration.threshold
    clf.learn({"class 6": queries["class 6"]})
    assert clf.calibration.threshold > trained
    assert clf.info()["calibration"]["threshold"] == clf.calibration.threshold
    clf.undo()
    assert clf.calibration.threshold == trained


@pytest.mark.parametrize("batches", [1, 3, 256])
def test_evaluation(
    clf: IncrementalClassifier,
    queries: Queries,
    batches: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """However many batches of two images are predicted at a time."""
    monkeypatch.setattr(clf.embedder, "batch_size", 2)
    monkeypatch.setattr("fewmore.classifier.estimator.PREDICTED", batches)
    reports = []
    images = {name: queries[name] for name in ("class 5", "class 0", "class 2")}
    evaluation = clf.evaluate(images, lambda *report: reports.append(report))
    assert reports[-1] == ("evaluating", 15, 15)
    correct = {name: predicted(clf, of_class).count(name) for name, of_class in images.items()}
    assert evaluation.by_class == {name: pytest.approx(correct[name] / 5) for name in images}
    assert evaluation.accuracy == pytest.approx(sum(correct.values()) / 15)
    assert evaluation.confusion.shape == (6, 6)
    assert evaluation.confusion.sum(1).tolist() == [5, 0, 5, 0, 0, 5]
    assert int(evaluation.confusion[5, 5]) == correct["class 5"]
    assert 0 <= evaluation.ece <= 1
    assert 0 <= evaluation.rejected <= 1
    assert evaluation.images == 15
    with pytest.raises(UnknownName, match="'class 7'"):
        clf.evaluate({"class 7": queries["class 7"]})


def test_the_adapter_follows_every_change(
    adapted: IncrementalClassifier, tmp_path: Path, assert_same: AssertSame
):
    assert adapted.info()["classifier"] == "adapter"
    features = random_features(60, seed=4)
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
            loaded = IncrementalClassifier.load(tmp_path / "a.fewmore")
            assert_same(adapted, loaded, features, abs=2e-5)


# Threads and files


def test_others_predict_while_one_learns(clf: IncrementalClassifier):
    features = torch.rand(20, 64)
    errors: list[BaseException] = []
    done = threading.Event()

    def predict_until_done() -> None:
        try:
            while not done.is_set():
                predictions = clf.predict_features(features, 1000)
                (names,) = {frozenset(prediction.names) for prediction in predictions}
                assert all(f"new {i}" in names for i in range(len(names) - 6))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=predict_until_done) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(60):
        clf.learn_features({f"new {number}": torch.rand(2, 64)})
    done.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_threads_that_learn_take_turns(clf: IncrementalClassifier):
    features = torch.rand(8, 20, 64)

    def learn_all(thread: int) -> None:
        for i, feature in enumerate(features[thread]):
            clf.learn_features({f"{thread} {i}": feature[None]})

    threads = [threading.Thread(target=learn_all, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(clf.classes_) == 6 + 160
    assert clf.version == 161


def test_a_loaded_classifier_is_the_same_bit_for_bit(
    clf: IncrementalClassifier, queries: Queries, tmp_path: Path
):
    clf.learn({"class 6": queries["class 6"]})
    clf.save(tmp_path / "a.fewmore")
    other = load(tmp_path / "a.fewmore", device="cpu")
    images = [image for of_class in queries.values() for image in of_class]
    assert other.predict(images, top=3) == clf.predict(images, top=3)
    assert other.info() == clf.info()
    other.save(tmp_path / "b.fewmore")
    assert (tmp_path / "a.fewmore").read_bytes() == (tmp_path / "b.fewmore").read_bytes()
    with pytest.raises(ModelFileError, match="there is no model file"):
        load(tmp_path / "c.fewmore")


def test_a_weight_file_of_timms_model_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(
        "fewmore.classifier.estimator.build",
        lambda name, weights=None: built.append((name, weights)),
    )
    for weights in ("mine.pth", "imagenet"):
        clf = IncrementalClassifier(backbone="timm:tiny_net", weights=weights)
        clf._pretrained_backbone([], lambda *_: None)
    assert built == [("timm:tiny_net", Path("mine.pth")), ("timm:tiny_net:pretrained", None)]
