"""Test that the demo's model knows letters and digits, and learns symbols from five drawings."""

import math
import random
import string
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from fewmore import IncrementalClassifier
from fewmore.cli.demo import demo_model
from fewmore.service.store import Store

Stroke = Sequence[tuple[float, float]]
ROUND = [(math.cos(t * math.pi / 10), math.sin(t * math.pi / 10)) for t in range(21)]
SYMBOLS: dict[str, list[Stroke]] = {
    "house": [
        [(0, 1), (0, 0.45), (0.5, 0), (1, 0.45), (1, 1), (0, 1)],
        [(0.4, 1), (0.4, 0.7), (0.6, 0.7), (0.6, 1)],
    ],
    "star": [[(math.sin(k * 4 * math.pi / 5), -math.cos(k * 4 * math.pi / 5)) for k in range(6)]],
    "smiley": [
        ROUND,
        [(-0.35, -0.3), (-0.34, -0.25)],
        [(0.35, -0.3), (0.34, -0.25)],
        [(x / 2, 0.1 + y / 2) for x, y in ROUND[1:10]],
    ],
    "spiral": [[(t / 30 * math.cos(t / 4), t / 30 * math.sin(t / 4)) for t in range(31)]],
    "arrow": [[(0, 0.5), (1, 0.5)], [(0.65, 0.2), (1, 0.5), (0.65, 0.8)]],
    "anchor": [
        [(0.5, 0), (0.5, 1)],
        [(0.2, 0.25), (0.8, 0.25)],
        [(0, 0.6), (0.15, 0.9), (0.5, 1), (0.85, 0.9), (1, 0.6)],
    ],
}


# Letters and digits as somebody writes them, other than the strokes that the model has learnt from.
LETTERS: dict[str, list[Stroke]] = {
    "A": [[(0, 1), (0.5, 0), (1, 1)], [(0.25, 0.6), (0.75, 0.6)]],
    "C": [[(0.95, 0.15), (0.6, 0), (0.2, 0.2), (0, 0.5), (0.2, 0.85), (0.6, 1), (0.95, 0.85)]],
    "E": [[(0.8, 0), (0, 0), (0, 1), (0.8, 1)], [(0, 0.5), (0.7, 0.5)]],
    "F": [[(0.8, 0), (0, 0), (0, 1)], [(0, 0.45), (0.6, 0.45)]],
    "H": [[(0, 0), (0, 1)], [(0.8, 0), (0.8, 1)], [(0, 0.5), (0.8, 0.5)]],
    "K": [[(0, 0), (0, 1)], [(0.7, 0), (0, 0.5), (0.75, 1)]],
    "L": [[(0, 0), (0, 1), (0.65, 1)]],
    "M": [[(0, 1), (0.1, 0), (0.5, 0.7), (0.9, 0), (1, 1)]],
    "N": [[(0, 1), (0, 0), (0.75, 1), (0.75, 0)]],
    "S": [
        [
            (0.8, 0.1),
            (0.4, 0),
            (0.05, 0.2),
            (0.3, 0.45),
            (0.7, 0.6),
            (0.75, 0.85),
            (0.4, 1),
            (0, 0.9),
        ]
    ],
    "T": [[(0, 0), (0.9, 0)], [(0.45, 0), (0.45, 1)]],
    "U": [[(0, 0), (0, 0.7), (0.2, 0.95), (0.5, 0.95), (0.7, 0.7), (0.7, 0)]],
    "V": [[(0, 0), (0.4, 1), (0.8, 0)]],
    "W": [[(0, 0), (0.25, 1), (0.5, 0.3), (0.75, 1), (1, 0)]],
    "X": [[(0, 0), (0.8, 1)], [(0.8, 0), (0, 1)]],
    "Z": [[(0, 0), (0.75, 0), (0, 1), (0.8, 1)]],
    "2": [[(0, 0.25), (0.2, 0), (0.55, 0.05), (0.6, 0.35), (0, 1), (0.7, 1)]],
    "3": [[(0, 0.1), (0.4, 0), (0.6, 0.25), (0.25, 0.45), (0.65, 0.7), (0.4, 1), (0, 0.9)]],
    "4": [[(0.4, 0), (0, 0.6), (0.7, 0.6)], [(0.5, 0.3), (0.5, 1)]],
    "7": [[(0, 0), (0.7, 0), (0.2, 1)]],
}


def rotated(x: float, y: float, angle: float) -> tuple[float, float]:
    cos, sin = math.cos(angle), math.sin(angle)
    return x * cos - y * sin, x * sin + y * cos


def drawing(
    name: str, rng: random.Random, size: int = 128, ink: str = "black", paper: str = "white"
) -> Image.Image:
    """Draw a symbol with a random rotation, stretch and shear, framed as the page frames it."""
    angle = rng.gauss(0, 0.12)
    stretch = rng.uniform(0.8, 1.2)
    shear = rng.gauss(0, 0.12)
    strokes = []
    for stroke in (SYMBOLS | LETTERS)[name]:
        shaken = [(x + rng.gauss(0, 0.035), y + rng.gauss(0, 0.035)) for x, y in stroke]
        sheared = [(stretch * x + shear * y, y) for x, y in shaken]
        strokes.append([rotated(x, y, angle) for x, y in sheared])
    xs, ys = zip(*(point for stroke in strokes for point in stroke), strict=True)
    scale = 1.4 * size / max(max(xs) - min(xs), max(ys) - min(ys))
    middle = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    large = Image.new("RGB", (2 * size, 2 * size), paper)
    for stroke in strokes:
        line = [((x - middle[0]) * scale + size, (y - middle[1]) * scale + size) for x, y in stroke]
        ImageDraw.Draw(large).line(line, fill=ink, width=size // 6, joint="curve")
    return large.resize((size, size), Image.Resampling.LANCZOS)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IncrementalClassifier]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWMORE_DATA", str(tmp_path_factory.mktemp("data")))
        path = demo_model(thumbnails=True)
        assert demo_model(thumbnails=True) == path  # made once
        yield IncrementalClassifier.load(path)


def share_right(classifier: IncrementalClassifier, names: Iterable[str], **looks: Any) -> float:
    """Return the share of twenty drawings of each name that are recognised."""
    rng = random.Random(0)
    drawn = [(name, drawing(name, rng, **looks)) for name in names for _ in range(20)]
    found = classifier.predict([image for _, image in drawn], top=1)
    right = [one.names[0] == name for one, (name, _) in zip(found, drawn, strict=True)]
    return sum(right) / len(right)


def test_it_knows_letters_and_digits(classifier: IncrementalClassifier) -> None:
    known = {*string.ascii_uppercase, *string.digits}
    assert known < set(classifier.names)
    assert (classifier.calibration.accuracy or 0) > 0.95
    assert share_right(classifier, LETTERS) > 0.95
    assert share_right(classifier, LETTERS, size=300, ink="navy", paper="ivory") > 0.9


def test_symbols_are_taught_by_drawing_them(classifier: IncrementalClassifier) -> None:
    rng = random.Random(1)
    taught = classifier.with_class_set(classifier.model.class_set)
    taught.learn({name: [drawing(name, rng) for _ in range(5)] for name in SYMBOLS})
    assert share_right(taught, SYMBOLS) > 0.9
    assert share_right(taught, SYMBOLS, size=40, ink="navy", paper="ivory") > 0.9
    assert share_right(taught, LETTERS) > 0.9


def test_each_class_shows_drawings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWMORE_DATA", str(tmp_path))
    store = Store(demo_model(thumbnails=True))
    for known in store.current.model.class_set.classes:
        assert len(store.thumbnails.names(known.hashes)) == 3, known.name
    store.close()
