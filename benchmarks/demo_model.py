"""Train the model that `fewmore serve --demo` serves.

    python benchmarks/demo_model.py [--keep] [--out src/fewmore/cli] [--record results]

It knows A to Z, 0 to 9 and some other characters. Half of the images are printed, from the fonts
that glyphs uses, and half are drawn: strokes of the characters as people write them, with a random
rotation, shear and stretch and an unsteady hand, framed as the page frames a drawing. Weights are
rounded to bfloat16, so that the file compresses to half its size in the wheel. Beside the model
lies demo.png, with the first drawings of each class: the page shows them.
"""

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from common import make_parser, record
from PIL import Image, ImageDraw, ImageFilter

from fewmore import IncrementalClassifier
from fewmore.classifier.class_set import ClassSet
from fewmore.data import glyphs
from fewmore.data.benchmarks import BENCHMARKS
from fewmore.methods.base import Recipe
from fewmore.research.recipes import quick

MORE = "& @ # % + = ? ! € £ Ä Ö Ü ß Ñ Ç Δ Σ Ω Φ Ψ λ π ξ Д Ж И Я Щ √"
PRINTED = 75  # images of a class
DRAWN = 75  # images of a character with strokes
EPOCHS = 14
SHOWN = 3  # drawings of a class in demo.png
SIDE = glyphs.SIDE
LARGE = 4  # times the size at which strokes are drawn

# Stronger than the benchmark's: people draw with more variation than printers.
DIFFICULTY = replace(
    glyphs.DIFFICULTY, rotation=15.0, stretch=0.25, largest=0.9, stroke=4, noise=0.05
)

Stroke = list[tuple[float, float]]


def line(text: str) -> Stroke:
    """Return the points of "x,y x,y …", in tenths."""
    return [(float(x) / 10, float(y) / 10) for x, y in (at.split(",") for at in text.split())]


def arc(x: float, y: float, rx: float, ry: float, start: float, end: float) -> Stroke:
    """Return points on an ellipse, in tenths, from one angle to another in degrees, y downwards."""
    steps = max(4, round(abs(end - start) / 15))
    angles = [math.radians(start + (end - start) * step / steps) for step in range(steps + 1)]
    return [((x + rx * math.cos(a)) / 10, (y + ry * math.sin(a)) / 10) for a in angles]


BOWL = arc(4, 2.5, 3, 2.5, -90, 90)
STROKES: dict[str, list[list[Stroke]]] = {  # each character in some ways of writing it
    "A": [
        [line("0,10 4,0 8,10"), line("1.5,6.5 6.5,6.5")],
        [line("0,10 4,0"), line("4,0 8,10"), line("1.2,6 6.8,6")],
        [line("0,10 0.3,4") + arc(4, 4, 3.7, 4, 180, 360) + line("8,10"), line("0.2,6 7.8,6")],
    ],
    "B": [
        [
            line("0,0 0,10"),
            line("0,0") + BOWL + line("0,5"),
            line("0,5") + arc(4, 7.5, 3.5, 2.5, -90, 90) + line("0,10"),
        ],
    ],
    "C": [[arc(5, 5, 4.5, 5, -45, -315)], [arc(5, 5, 3.5, 5, -60, -300)]],
    "D": [[line("0,0 0,10"), line("0,0 2,0") + arc(2, 5, 5.5, 5, -90, 90) + line("0,10")]],
    "E": [
        [line("6,0 0,0 0,10 6,10"), line("0,5 5,5")],
        [line("0,0 0,10"), line("0,0 6,0"), line("0,5 5,5"), line("0,10 6,10")],
    ],
    "F": [
        [line("6,0 0,0 0,10"), line("0,5 5,5")],
        [line("0,0 0,10"), line("0,0 6,0"), line("0,4.5 5,4.5")],
    ],
    "G": [
        [arc(5, 5, 4.5, 5, -45, -360) + line("5.5,5")],
        [arc(5, 5, 4.5, 5, -50, -330), line("5.5,6 9,6 9,10")],
        [arc(5, 5, 4.5, 5, -45, -320) + line("8.5,5.5 5,5.5")],
    ],
    "H": [[line("0,0 0,10"), line("7,0 7,10"), line("0,5 7,5")]],
    "I": [[line("0,0 0,10")], [line("0,0 5,0"), line("2.5,0 2.5,10"), line("0,10 5,10")]],
    "J": [
        [line("6,0 6,7") + arc(3, 7, 3, 3, 0, 170)],
        [line("2,0 8,0"), line("6,0 6,7") + arc(3, 7, 3, 3, 0, 170)],
    ],
    "K": [
        [line("0,0 0,10"), line("6.5,0 0,5.5"), line("2,4.2 7,10")],
        [line("0,0 0,10"), line("6,0 0.3,5 6,10")],
    ],
    "L": [[line("0,0 0,10 6,10")]],
    "M": [[line("0,10 0,0 4.5,6 9,0 9,10")], [line("0,10 1,0 5,9 9,0 10,10")]],
    "N": [[line("0,10 0,0 7,10 7,0")]],
    "O": [[arc(5, 5, 5, 5, -90, 270)], [arc(5, 5, 4.6, 5, -90, -450)]],
    "P": [[line("0,0 0,10"), line("0,0") + arc(3, 2.7, 3.5, 2.7, -90, 90) + line("0,5.4")]],
    "Q": [
        [arc(5, 5, 5, 5, -90, 270), line("6,6.5 9.5,10.5")],
        [arc(5, 5, 4.5, 5, -90, 270), line("6.5,7 9.5,11")],
    ],
    "R": [
        [line("0,0 0,10"), line("0,0") + arc(3, 2.6, 3.5, 2.6, -90, 90) + line("0,5.2 6.5,10")],
        [
            line("0,0 0,10"),
            line("0,0") + arc(3, 2.6, 3.5, 2.6, -90, 90) + line("0,5.2"),
            line("2.5,5.2 6.5,10"),
        ],
    ],
    "S": [
        [arc(4, 2.6, 3.4, 2.6, -30, -270) + arc(4, 7.5, 3.6, 2.5, -90, 150)],
        [arc(4, 2.5, 3.5, 2.5, -50, -250) + arc(4, 7.3, 3.5, 2.7, -70, 130)],
    ],
    "T": [[line("0,0 8,0"), line("4,0 4,10")]],
    "U": [[line("0,0 0,6") + arc(3.5, 6, 3.5, 4, 180, 0) + line("7,0")]],
    "V": [[line("0,0 4,10 8,0")]],
    "W": [[line("0,0 2.7,10 5.5,2 8.3,10 11,0")], [line("0,0 2.5,10 5,4 7.5,10 10,0")]],
    "X": [[line("0,0 7,10"), line("7,0 0,10")]],
    "Y": [[line("0,0 3.7,5 7.5,0"), line("3.7,5 3.7,10")], [line("0,0 4,5"), line("8,0 2,10")]],
    "Z": [[line("0,0 7.5,0 0,10 7.5,10")], [line("0,0 7.5,0 0,10 7.5,10"), line("1.8,5 5.8,5")]],
    "0": [
        [arc(3, 5, 3, 5, -90, 270)],
        [arc(3, 5, 3.3, 5, -80, -440)],
        [arc(3, 5, 3, 5, -90, 270), line("5,1.5 1,8.5")],
    ],
    "1": [
        [line("0,2.5 2.5,0 2.5,10")],
        [line("0,2.5 2.5,0 2.5,10"), line("0,10 5,10")],
        [line("0,3.5 3,0 3,10")],
    ],
    "2": [
        [arc(3, 3, 3, 3, -160, 30) + line("0,10 6.5,10")],
        [arc(3, 2.8, 3, 2.8, -170, 40) + line("0.5,9.6") + line("1.5,9 6.8,10")],
    ],
    "3": [
        [arc(2.5, 2.5, 3, 2.5, -150, 90) + arc(2.5, 7.5, 3.3, 2.5, -90, 150)],
        [line("0,0 6,0 2.5,4.2") + arc(2.5, 7.1, 3.4, 2.9, -90, 150)],
    ],
    "4": [
        [line("4.5,0 0,6.5 7,6.5"), line("5,3 5,10")],
        [line("5,10 5,0 0,7 7,7")],
        [line("0.5,0 0,5.5 6,5.5"), line("5,0 5,10")],
    ],
    "5": [
        [line("6,0 1,0 0.5,4.3") + arc(2.7, 6.8, 3.5, 3.2, -120, 140)],
        [line("1,0 0.6,4.4") + arc(2.7, 6.9, 3.4, 3.1, -120, 140), line("1,0 6.2,0")],
    ],
    "6": [
        [line("5,0") + arc(5, 7, 5, 6.5, -120, -180) + arc(3.2, 7, 3.2, 3, -180, 180)],
        [line("4.5,0 1.2,4.5") + arc(3, 7, 3, 3, -150, 215)],
    ],
    "7": [[line("0,0 6.5,0 2,10")], [line("0,0 6.5,0 2,10"), line("1.8,5 6,5")]],
    "8": [
        [
            arc(3, 2.4, 2.6, 2.4, -60, -270)
            + arc(3, 7.4, 3.2, 2.6, -90, 270)
            + arc(3, 2.4, 2.6, 2.4, 90, -60)
        ],
        [arc(3, 2.4, 2.5, 2.4, -90, 270), arc(3, 7.4, 3.2, 2.6, -90, 270)],
    ],
    "9": [
        [arc(3, 3, 3, 3, 0, -360) + line("6,3 5.5,10")],
        [arc(3, 3, 3, 3, 0, -360) + line("6,3 6,6") + arc(3, 7, 3, 3, 0, 140)],
    ],
    "+": [[line("0,5 10,5"), line("5,0 5,10")]],
    "=": [[line("0,3 9,3"), line("0,7 9,7")]],
    "?": [[arc(3, 2.8, 3, 2.8, -170, 70) + line("3,7"), line("3,9.7 3,10")]],
    "!": [[line("0,0 0,7"), line("0,9.7 0,10")]],
    "#": [[line("3,0 2,10"), line("7,0 6,10"), line("0,3.3 9,3.3"), line("0,6.7 9,6.7")]],
    "√": [[line("0,6 1,5.5 3,10 5,0 10,0")], [line("0,6 3,10 6,0 9,0")]],
    "Δ": [[line("0,10 5,0 10,10 0,10")]],
    "π": [[line("0,0.5 8,0.5"), line("2.3,0.5 1.5,8"), line("5.7,0.5 6,8")]],
}
CLASSES = (*(chr(ord("A") + n) for n in range(26)), *"0123456789", *MORE.split())


def draw(character: str, rng: np.random.Generator, plain: bool) -> np.ndarray:
    """Draw a character with an unsteady hand, (3, SIDE, SIDE) uint8; `plain` is black on white."""
    ways = STROKES[character]
    strokes = [np.array(stroke) for stroke in ways[rng.integers(len(ways))]]
    angle, shear = rng.normal(0, 0.1), rng.normal(0, 0.15)
    stretch = math.exp(rng.normal(0, 0.15))
    cos, sin = math.cos(angle), math.sin(angle)
    matrix = np.array([[stretch, -shear], [0, 1]]) @ np.array([[cos, -sin], [sin, cos]])
    wave = rng.uniform(0, 2 * math.pi, (2, 2)), rng.uniform(2, 6, (2, 2))
    moved = []
    for stroke in strokes:
        offset = rng.normal(0, 0.03, 2)
        ends = rng.normal(0, 0.025, (2, 2))
        along = np.linspace(0, 1, len(stroke))[:, None]
        stroke = stroke + offset + ends[0] * (1 - along) + ends[1] * along
        bend = np.sin(stroke @ wave[1] + wave[0][0]) * 0.04
        moved.append((stroke + bend + rng.normal(0, 0.006, stroke.shape)) @ matrix.T)
    points = np.concatenate(moved)
    low, high = points.min(0), points.max(0)
    side = SIDE * LARGE
    width = side * rng.uniform(0.06, 0.11)
    filled = rng.uniform(0.62, 0.78) * side - width
    scale = filled / max(*(high - low), 0.2)
    centre = side / 2 + rng.normal(0, 0.015 * side, 2)
    canvas = Image.new("L", (side, side))
    pen = ImageDraw.Draw(canvas)
    for stroke in moved:
        placed = [tuple(at) for at in (stroke - (low + high) / 2) * scale + centre]
        pen.line(placed, fill=255, width=round(width), joint="curve")
        for x, y in (placed[0], placed[-1]):
            r = width / 2
            pen.ellipse((x - r, y - r, x + r, y + r), fill=255)
    blur = 0.0 if plain else rng.uniform(0, 0.6)
    small = canvas.reduce(LARGE).filter(ImageFilter.GaussianBlur(blur))
    coverage = np.asarray(small, np.float32) / 255
    dark, light = np.zeros((3, 1, 1), np.float32), np.ones((3, 1, 1), np.float32)
    if not plain and rng.random() < 0.4:
        dark, light = dark + rng.uniform(0, 0.45, (3, 1, 1)), light - rng.uniform(0, 0.4, (3, 1, 1))
    image = light + (dark - light) * coverage
    if not plain:
        image = image + rng.uniform(0, 0.03) * rng.standard_normal(image.shape)
    return (image.clip(0, 1) * 255 + 0.5).astype(np.uint8)


def images_of(label: int, character: str, seed: int = 0) -> list[torch.Tensor]:
    """Return a class's images, the plain drawings first."""
    rng = np.random.default_rng((seed, label))
    drawn = DRAWN if character in STROKES else 0
    printed = PRINTED + DRAWN - drawn
    images = [draw(character, rng, plain=number < SHOWN) for number in range(drawn)]
    for number in range(drawn, drawn + printed):
        difficulty = replace(DIFFICULTY, noise=0.0) if number < SHOWN else DIFFICULTY
        images.append(glyphs.render_image(character, difficulty, rng))
    return [torch.from_numpy(image) for image in images]


def recipe() -> Recipe:
    """Return the quick recipe with more epochs."""
    base = quick(BENCHMARKS["glyphs"], "cec")
    return replace(base, pretrain=replace(base.pretrain, epochs=EPOCHS))


def train() -> tuple[IncrementalClassifier, dict[str, list[torch.Tensor]]]:
    images = {name: images_of(label, name) for label, name in enumerate(CLASSES)}
    stage = ""

    def report(now: str, done: int, total: int) -> None:
        nonlocal stage
        if now != stage or done == total:
            print(f"{time.strftime('%X')} {now} {done}/{total}", flush=True)
        stage = now

    classifier = IncrementalClassifier(weights=None, recipe=recipe()).fit(images, progress=report)
    return rounded(classifier, images), images


def rounded(
    classifier: IncrementalClassifier, images: dict[str, list[torch.Tensor]]
) -> IncrementalClassifier:
    """Round the weights to bfloat16, and compute the class means anew with these."""
    model = classifier.model

    def round_all(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            name: one.bfloat16().float() if one.dtype == torch.float32 else one
            for name, one in tensors.items()
        }

    adapter = None if model.adapter is None else round_all(model.adapter)
    classifier._restore(replace(model, weights=round_all(model.weights), adapter=adapter))
    empty = replace(model.class_set, classes=())
    learnt = classifier.with_class_set(empty)
    learnt.learn(images)
    return classifier.with_class_set(ClassSet.from_training(learnt.model.class_set.classes))


def sheet(images: dict[str, list[torch.Tensor]]) -> Image.Image:
    """Return the first drawings of each class, a row for each."""
    rows = [torch.cat(of_class[:SHOWN], 2) for of_class in images.values()]
    return Image.fromarray(torch.cat(rows, 1).permute(1, 2, 0).numpy())


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("src/fewmore/cli"))
    parser.add_argument("--keep", action="store_true", help="do not train anew")
    options = parser.parse_args()
    file = options.out / "demo.fewmore"
    if not options.keep:
        classifier, images = train()
        classifier.save(file)
        sheet(images).save(options.out / "demo.png", optimize=True)
    classifier = IncrementalClassifier.load(file, "cpu")
    held_out = classifier.calibration.accuracy  # on a tenth of the images
    about = {"classes": len(classifier), "bytes": file.stat().st_size, "accuracy": held_out}
    record("demo_model", torch.device("cpu"), [], about, options.record)


if __name__ == "__main__":
    main()
