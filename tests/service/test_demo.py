"""Test that the demo's model recognises symbols that were drawn five times by hand."""

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from fewmore import IncrementalClassifier
from fewmore.cli.demo import demo_model
from fewmore.cli.terminal import plain

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
    for stroke in SYMBOLS[name]:
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


@pytest.mark.soak
def test_symbols_are_taught_by_drawing_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEWMORE_DATA", str(tmp_path))
    classifier = IncrementalClassifier.load(demo_model(plain(), thumbnails=False))
    assert (classifier.calibration.accuracy or 0) > 0.8
    rng = random.Random(0)
    classifier.learn({name: [drawing(name, rng) for _ in range(5)] for name in SYMBOLS})
    for size, ink, paper in (
        (128, "black", "white"),
        (300, "white", "black"),
        (40, "navy", "ivory"),
    ):
        right = [
            classifier.predict(drawing(name, rng, size, ink, paper))[0].names[0] == name
            for name in SYMBOLS
            for _ in range(20)
        ]
        assert sum(right) / len(right) > 0.9
