"""IncrementalClassifier with the manners of scikit-learn, tried one by one."""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import sklearn.exceptions
import torch
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

import fewmore
from fewmore import IncrementalClassifier, Prediction
from fewmore.errors import DataError, StateError, UnknownName

COUNTS = {"jay": 6, "robin": 6, "wren": 6}
Paths = tuple[list[str], list[str]]


def list_photos(folder: Path) -> Paths:
    paths = sorted(folder.glob("*/*.png"))
    return [str(path) for path in paths], [path.parent.name for path in paths]


@pytest.fixture
def train(photos: Callable[..., Path]) -> Paths:
    return list_photos(photos("train", COUNTS))


@pytest.fixture
def test(photos: Callable[..., Path]) -> Paths:
    return list_photos(photos("test", COUNTS))


@pytest.fixture
def empty(weights: Path) -> IncrementalClassifier:
    return IncrementalClassifier("resnet8", weights, device="cpu")


# Labels


def test_lists_of_paths_and_labels(empty: IncrementalClassifier, train: Paths, test: Paths):
    assert empty.fit(*train) is empty
    names = empty.predict(test[0])
    assert isinstance(names, np.ndarray)
    assert names.dtype.kind == "U"
    assert names.tolist() == test[1]
    assert empty.classes_.tolist() == ["jay", "robin", "wren"]
    assert empty.score(*test) == 1.0
    assert empty.score(*test, sample_weight=np.ones(18)) == 1.0
    assert empty.score(test[0][:2], ["jay", "unheard of"]) == 0.5


def test_details_stay_available(empty: IncrementalClassifier, train: Paths):
    (detail,) = empty.fit(*train).predict(train[0][0], top=2)
    assert isinstance(detail, Prediction)
    assert len(detail.names) == 2


def test_a_folder_or_a_dict_gives_details(
    empty: IncrementalClassifier, photos: Callable[..., Path]
):
    folder = photos("more", COUNTS)
    (detail,) = empty.fit(folder).predict(folder / "jay" / "00.png")
    assert isinstance(detail, Prediction)
    assert empty.classes_ == ["jay", "robin", "wren"]
    assert empty.score(folder) == 1.0
    assert empty.score(*list_photos(folder)) == 1.0


@pytest.mark.parametrize("form", [list, np.array, torch.tensor, lambda y: np.array(y, np.int32)])
def test_labels_that_are_whole_numbers(
    empty: IncrementalClassifier, train: Paths, test: Paths, form: Callable[[Any], Any]
):
    numbers = {"jay": 7, "robin": -1, "wren": 30}
    empty.fit(train[0], form([numbers[name] for name in train[1]]))
    predicted = empty.predict(test[0])
    assert predicted.dtype.kind == "i"
    assert predicted.tolist() == [numbers[name] for name in test[1]]
    assert empty.classes_.tolist() == [-1, 7, 30]
    assert 7 in empty
    assert empty.score(test[0], predicted) == 1.0
    before = empty.names
    with pytest.raises(StateError, match="'okapi' is none: give a number"):
        empty.learn({"okapi": train[0][:1]})
    assert empty.names == before
    with pytest.raises(StateError, match="a label has at most 64 bits, and 1000"):
        empty.learn({10**30: train[0][:1]})
    assert empty.names == before
    for name in (7, empty.classes_[1], [7], empty.classes_[1:2]):
        empty.forget(name)
        assert empty.names == ["-1", "30"]
        empty.undo()
    assert empty.names == ["-1", "7", "30"]


def test_a_label_that_is_too_large_is_refused_before_training(
    empty: IncrementalClassifier, train: Paths
):
    numbers = {"jay": 2**63, "robin": 1, "wren": 2}
    labels = np.array([numbers[name] for name in train[1]], np.uint64)
    with pytest.raises(DataError, match="one of them its sign, and 9223372036854775808 has more"):
        empty.fit(train[0], labels)
    assert len(empty) == 0
    numbers["jay"] -= 1
    empty.fit(train[0], np.array([numbers[name] for name in train[1]], np.uint64))
    assert empty.classes_.tolist() == [1, 2, 2**63 - 1]


def test_labels_that_are_answered_otherwise_are_noted(empty: IncrementalClassifier, train: Paths):
    decomposed = "Ha\u0308her"
    of_class = {"jay": decomposed, "robin": "robin ", "wren": "wren"}
    empty.fit(train[0], [of_class[name] for name in train[1]])
    assert empty.classes_.tolist() == ["H\u00e4her", "robin", "wren"]
    (note,) = [note for note in empty.notes_ if note.startswith("labels are answered")]
    assert r"'Ha\u0308her' is 'H\xe4her', 'robin ' is 'robin'; give them so" in note
    empty.fit(*train)
    assert not [note for note in empty.notes_ if note.startswith("labels are answered")]


def test_labels_are_kept_by_the_model_file(
    empty: IncrementalClassifier, train: Paths, tmp_path: Path
):
    numbers = [len(name) for name in train[1]]
    empty.fit(train[0], numbers).save(tmp_path / "a.fewmore")
    loaded = fewmore.load(tmp_path / "a.fewmore", "cpu")
    assert loaded.predict(train[0]).tolist() == numbers


def test_class_names_that_are_whole_numbers(empty: IncrementalClassifier, train: Paths):
    empty.fit({0: train[0][:6], 1: train[0][6:12]})
    empty.learn({2: train[0][12:]})
    assert empty.classes_ == ["0", "1", "2"]
    with pytest.raises(DataError, match="not True"):
        empty.learn({True: train[0][:1]})


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (["a"] * 3, "18 images and 3 labels were given"),
        (np.zeros((18, 1), int), r"18 images and labels \(18, 1\) were given"),
        ([0.5] * 18, "labels must be texts or whole numbers, not float64"),
        (["a"] * 18, "one class was given, a, and at least 2 are needed"),
    ],
)
def test_wrong_labels(empty: IncrementalClassifier, train: Paths, labels: Any, why: str):
    with pytest.raises(DataError, match=why):
        empty.fit(train[0], labels)


def test_sentences_for_nothing(empty: IncrementalClassifier, train: Paths):
    with pytest.raises(DataError, match="no classes were given"):
        empty.fit({})
    with pytest.raises(DataError, match="no images were given"):
        empty.fit([], [])
    with pytest.raises(DataError, match="or as a list with a list of labels, not as list"):
        empty.fit(train[0])
    empty.fit(*train)
    with pytest.raises(DataError, match="images were given as NoneType"):
        empty.predict(None)
    with pytest.raises(DataError, match="images were given as BytesIO: give a path, a file's by"):
        empty.predict(io.BytesIO(b"a line\nanother\n"))
    assert empty.predict([]).tolist() == []


def test_partial_fit(empty: IncrementalClassifier, train: Paths, test: Paths):
    old = [i for i, name in enumerate(train[1]) if name != "wren"]
    new = [i for i, name in enumerate(train[1]) if name == "wren"]
    for part in (old, new):
        empty.partial_fit([train[0][i] for i in part], [train[1][i] for i in part])
    assert empty.predict(test[0]).tolist() == test[1]
    assert [change.kind for change in empty.history_] == ["fit", "learn"]


def test_predict_proba(empty: IncrementalClassifier, train: Paths, test: Paths):
    confidences = empty.fit(*train).predict_proba(test[0])
    assert confidences.shape == (18, 3)
    assert confidences.sum(1) == pytest.approx(np.ones(18))
    assert empty.classes_[confidences.argmax(1)].tolist() == test[1]


# What images come as


def test_a_folder_and_a_generator(empty: IncrementalClassifier, train: Paths, tmp_path: Path):
    empty.fit(*train)
    assert empty.predict(tmp_path / "train").tolist() == train[1]
    assert empty.predict(str(tmp_path / "train" / "jay")).tolist() == ["jay"] * 6
    assert empty.predict(path for path in train[0]).tolist() == train[1]
    assert empty.predict(np.array(train[0])).tolist() == train[1]
    assert empty.predict(np.array(list(map(Path, train[0])), object)).tolist() == train[1]
    empty.learn({"again": tmp_path / "train" / "jay"})
    assert "again" in empty
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="nothing has no images in it"):
        empty.predict(tmp_path / "nothing")


@pytest.mark.parametrize(
    "convert",
    [
        lambda pixels: pixels.astype(np.int64),
        lambda pixels: pixels.astype(np.int16),
        lambda pixels: pixels.astype(np.float64),
        lambda pixels: pixels.astype(np.float32) / 255,
        lambda pixels: pixels.transpose(0, 3, 1, 2),
    ],
    ids=["int64", "int16", "float 0-255", "float 0-1", "channels first"],
)
def test_arrays_of_any_usual_type(
    clf: IncrementalClassifier, convert: Callable[[np.ndarray], np.ndarray]
):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    torch.testing.assert_close(clf.embed(convert(pixels)), clf.embed(pixels), rtol=0, atol=0)


def test_gray_arrays(clf: IncrementalClassifier):
    gray = np.random.default_rng(0).integers(0, 256, (5, 16, 16))
    for form in (gray, gray[..., None], gray / 255, list(gray)):
        assert clf.embed(form).shape == (5, 64)
        torch.testing.assert_close(clf.embed(form), clf.embed(list(gray)))


def test_gray_arrays_with_labels(empty: IncrementalClassifier):
    generator = np.random.default_rng(0)
    brightness = np.repeat([40, 200], 3)
    gray = generator.integers(-20, 20, (6, 16, 16)) + brightness[:, None, None]
    empty.fit(gray, brightness)
    assert empty.names == ["40", "200"]
    assert empty.score(gray[:3], brightness[:3]) in (0.0, 1 / 3, 2 / 3, 1.0)


# What scikit-learn does with an estimator


def test_parameters(empty: IncrementalClassifier, weights: Path):
    assert empty.get_params() == {
        "backbone": "resnet8",
        "weights": weights,
        "device": "cpu",
        "seed": 0,
        "recipe": None,
        "image_size": None,
        "fine_tune": None,
        "engine": "auto",
    }
    assert empty.set_params(seed=3, weights=None) is empty
    assert (empty.seed, empty.weights) == (3, None)
    with pytest.raises(UnknownName, match="no parameter is named 'sede': did you mean seed"):
        empty.set_params(sede=3)


def test_clone(empty: IncrementalClassifier, train: Paths):
    other = clone(empty.fit(*train))
    assert other.get_params() == empty.get_params()
    assert not other.__sklearn_is_fitted__()


@pytest.mark.parametrize("how", ["pickle", "joblib", "deepcopy", "copy"])
def test_copies(empty: IncrementalClassifier, train: Paths, tmp_path: Path, how: str):
    def again(one: IncrementalClassifier) -> Any:
        if how == "joblib":
            joblib.dump(one, tmp_path / "a.joblib")
            return joblib.load(tmp_path / "a.joblib")
        if how == "pickle":
            return pickle.loads(pickle.dumps(one))
        return getattr(copy, how)(one)

    assert not again(empty).__sklearn_is_fitted__()
    other = again(empty.fit(*train))
    assert other.get_params() == empty.get_params()
    assert np.array_equal(other.predict_proba(train[0]), empty.predict_proba(train[0]))
    other.forget("jay")
    assert "jay" in empty


def test_tags(empty: IncrementalClassifier):
    assert is_classifier(empty)
    tags = get_tags(empty)
    assert tags.input_tags.string
    assert tags.requires_fit


def test_not_fitted(empty: IncrementalClassifier, train: Paths):
    for error in (sklearn.exceptions.NotFittedError, fewmore.NotFittedError):
        with pytest.raises(error, match="nothing is learnt yet"):
            empty.predict(train[0])
        with pytest.raises(error):
            check_is_fitted(empty) if error is not fewmore.NotFittedError else empty.info()
    assert not hasattr(empty, "classes_")
    check_is_fitted(empty.fit(*train))


def test_len_in_and_repr(empty: IncrementalClassifier, train: Paths):
    assert len(empty) == 0
    assert empty
    assert "jay" not in empty
    assert repr(IncrementalClassifier(seed=1)) == "IncrementalClassifier(seed=1)"
    empty.set_params(device="auto").fit(*train).weights = "mine.pth"
    assert len(empty) == 3
    assert "jay" in empty
    assert "okapi" not in empty
    assert repr(empty) == (
        "<IncrementalClassifier(backbone='resnet8', weights='mine.pth'), "
        "3 classes: jay, robin, wren>"
    )


def test_pipeline(empty: IncrementalClassifier, train: Paths, test: Paths):
    pipeline = make_pipeline(FunctionTransformer(), empty)
    pipeline.fit(*train)
    assert pipeline.predict(test[0]).tolist() == test[1]
    assert pipeline.predict_proba(test[0]).shape == (18, 3)
    assert pipeline.score(*test) == 1.0
    assert pipeline.classes_.tolist() == ["jay", "robin", "wren"]
    assert "IncrementalClassifier" in repr(pipeline)
    assert "IncrementalClassifier" in pipeline._repr_html_()


def test_cross_validation(empty: IncrementalClassifier, train: Paths):
    assert cross_val_score(empty, *train, cv=2).tolist() == [1.0, 1.0]
    for scoring in ("f1_macro", "roc_auc_ovr", "neg_log_loss"):
        assert np.isfinite(cross_val_score(empty, *train, cv=2, scoring=scoring)).all()


def test_grid_search(empty: IncrementalClassifier, train: Paths, test: Paths):
    search = GridSearchCV(empty, {"seed": [0, 1]}, cv=2).fit(*train)
    assert search.best_score_ == 1.0
    assert search.predict(test[0]).tolist() == test[1]
