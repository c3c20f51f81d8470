"""Read a model file from before the first release, when the project was called cecil.

The file was written by that program: five classes of eight images, then changes. It uses other
names for its metadata and some tensors. Its backbone's weights are rounded, so that it packs well.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from fewmore import IncrementalClassifier, load

DATA = Path(__file__).parent / "data"


def draw_image(label: int, number: int) -> np.ndarray:
    """Draw a 12 × 12 image by arithmetic: the class decides color and stripes, the number noise."""
    y, x, channel = np.ogrid[:12, :12, :3]
    stripes = 60 * ((x * (label % 3) + y * (label // 3 % 3)) // 4 % 2)
    color = 40 + 130 * (label >> channel & 1)
    noise = (number * 37 + x * 13 * (number + 1) + y * 29 + channel * 71) % 97
    return (color + stripes + noise).astype(np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "old.cecil"
    path.write_bytes(gzip.decompress((DATA / "before-first-release.cecil.gz").read_bytes()))
    return path


@pytest.fixture
def clf(path: Path) -> IncrementalClassifier:
    return load(path, device="cpu")


def test_classes_and_history(clf: IncrementalClassifier):
    info = clf.info()
    assert info["classes"] == {
        "class 0": 8,
        "class 2": 8,
        "class 3": 8,
        "class 4": 8,
        "okapi": 4,
        "wildebeest": 2,
    }
    assert [(change.kind, change.images) for change in clf.history_] == [
        ("fit", 40),
        ("learn", 5),
        ("learn", 1),
        ("rename", 2),
        ("forget", 8),
    ]
    assert clf.version == 7
    assert info["undoable"] == 4
    assert info["classifier"] == "adapter"
    assert info["origin"]["cecil"] == "0.1.0", "what the file says of its origin stays"
    assert clf.model.variance > 0


def test_predictions(clf: IncrementalClassifier):
    images = [draw_image(label, 20 + label) for label in range(9)]
    images.append(np.full((12, 12, 3), 255, np.uint8))
    expected = json.loads((DATA / "before-first-release.json").read_text())
    for prediction, old in zip(clf.predict(images, top=3), expected, strict=True):
        assert list(prediction.names) == old["names"]
        assert prediction.known == old["known"]
        # On the machine that wrote the file, all bits are the same.
        assert prediction.confidences == pytest.approx(old["confidences"], abs=1e-5)
        assert prediction.familiarity == pytest.approx(old["familiarity"], abs=1e-6)


def test_undo(clf: IncrementalClassifier):
    assert "forgetting of class 1" in clf.undo()
    assert "renaming of gnu to wildebeest" in clf.undo()
    assert "learning of okapi" in clf.undo()
    assert clf.info()["classes"]["okapi"] == 3
    assert "learning of okapi, gnu" in clf.undo()
    assert clf.classes_ == [f"class {label}" for label in range(5)]


def test_images_are_recognized(clf: IncrementalClassifier):
    (warning,) = clf.learn({"okapi": [draw_image(5, 1)]}).warnings
    assert "duplicate" in warning


def test_saving_writes_the_current_names(clf: IncrementalClassifier, tmp_path: Path):
    clf.save(tmp_path / "new.fewmore")
    content = (tmp_path / "new.fewmore").read_bytes()
    for old in (b"prints", b"totals", b"spread", b"reversals"):
        assert old not in content
    loaded = load(tmp_path / "new.fewmore", device="cpu")
    assert loaded.info() == clf.info()
    images = [draw_image(label, 30) for label in range(7)]
    assert loaded.predict(images) == clf.predict(images)
