"""Compare the one-file ONNX export, in float and in int8, with the classifier on 1,000 photos.

    python benchmarks/export.py [--data-root DATA] [--record results]

A classifier learns 40 kinds of birds from 15 photos each. The photos that are compared were not
learnt: 20 of each kind, and 200 of other kinds. int8 is calibrated with photos that were learnt.
"""

import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from common import Row, parse_photos, print_row, record
from PIL import Image

from fewmore import IncrementalClassifier
from fewmore.classifier.embedding import center_square, square_size
from fewmore.classifier.one_file import PREPARE, to_onnx_file
from fewmore.classifier.results import Prediction
from fewmore.classifier.text import NONE_OF_THESE

CLASSES = 40
LEARNT = 15
KNOWN = 20  # photos of each class that are compared
UNKNOWN = 200
SEED = 0

Listing = dict[str, list[Path]]  # by class


def draw_photos(root: Path) -> tuple[Listing, Listing, list[Path]]:
    """Draw classes; return photos to learn, others of the same classes, and unknown ones."""
    generator = random.Random(SEED)
    folders = sorted((root / "CUB_200_2011" / "images").iterdir())
    listing = {folder.name: sorted(folder.glob("*.jpg")) for folder in folders if folder.is_dir()}
    large = [name for name, paths in listing.items() if len(paths) >= LEARNT + KNOWN]
    chosen = sorted(generator.sample(large, CLASSES))
    drawn = {name: generator.sample(listing[name], LEARNT + KNOWN) for name in chosen}
    others = [path for name, paths in listing.items() if name not in drawn for path in paths]
    return (
        {name: paths[:LEARNT] for name, paths in drawn.items()},
        {name: paths[LEARNT:] for name, paths in drawn.items()},
        generator.sample(others, UNKNOWN),
    )


def read(path: Path) -> np.ndarray:
    """Read a photo as a program without fewmore does."""
    with Image.open(path) as file:
        return np.asarray(file.convert("RGB"))


def answer(prediction: Prediction) -> str:
    """Return the name that the one file gives for a prediction."""
    return prediction.names[0] if prediction.known else NONE_OF_THESE


def measure_pixels(paths: Sequence[Path], classifier: IncrementalClassifier) -> Row:
    """Compare the squares that Pillow and onnxruntime make of photos."""
    import onnx

    transform = classifier.embedder.transform
    text = PREPARE.format(side=square_size(transform), ir_version=9, opset=18)
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    differing = []
    largest = 0
    for path in paths:
        (square,) = session.run(None, {"image": read(path)})
        ours = center_square(path, path.name, transform).numpy()
        difference = np.abs(square[0].astype(int) - ours)
        differing.append(float((difference > 0).mean()))
        largest = max(largest, int(difference.max()))
    return {
        "pixel values that differ, %": 100 * float(np.mean(differing)),
        "largest difference of a pixel, of 255": largest,
    }


def measure_file(
    path: Path, what: str, photos: Sequence[Path], labels: Sequence[str], ours: Sequence[Prediction]
) -> Row:
    """Answer photos with a file, and compare with the classifier's predictions."""
    session = onnxruntime.InferenceSession(path)
    names = session.run(["names"], {"image": read(photos[0])})[0].tolist()
    outputs = []
    seconds = []
    for photo in photos:
        image = read(photo)
        start = time.perf_counter()
        outputs.append(session.run(["label", "probabilities", "familiarity"], {"image": image}))
        seconds.append(time.perf_counter() - start)
    first = [names[int(probabilities[0].argmax())] for _, probabilities, _ in outputs]
    known = [i for i, label in enumerate(labels) if label != NONE_OF_THESE]
    unknown = [i for i, label in enumerate(labels) if label == NONE_OF_THESE]
    said = [str(label[0]) for label, _, _ in outputs]
    confidences = [float(probabilities[0].max()) for _, probabilities, _ in outputs]
    pairs = list(zip(said, first, confidences, outputs, ours, strict=True))

    def share(flags: Sequence[bool]) -> float:
        return 100 * sum(flags) / len(flags)

    return {
        "what": what,
        "photos": len(photos),
        "same class, %": share([one == mine.names[0] for _, one, _, _, mine in pairs]),
        "same answer with none of these, %": share(
            [label == answer(mine) for label, _, _, _, mine in pairs]
        ),
        "largest difference of a confidence": max(
            abs(one - mine.confidences[0])
            for _, name, one, _, mine in pairs
            if name == mine.names[0]
        ),
        "largest difference of familiarity": max(
            abs(float(output[2][0]) - mine.familiarity) for _, _, _, output, mine in pairs
        ),
        "accuracy, %": share([first[i] == labels[i] for i in known]),
        "known photos accepted, %": share([said[i] != NONE_OF_THESE for i in known]),
        "unknown photos rejected, %": share([said[i] == NONE_OF_THESE for i in unknown]),
        "megabytes": path.stat().st_size / 1e6,
        "median ms": 1e3 * float(np.median(seconds)),
    }


def main() -> None:
    """Train, export in both forms, and compare."""
    root, args = parse_photos(__doc__)
    learnt, known, unknown = draw_photos(root)
    classifier = IncrementalClassifier(device="cpu").fit(learnt)
    photos = [path for paths in known.values() for path in paths] + unknown
    labels = [name for name, paths in known.items() for _ in paths] + [NONE_OF_THESE] * len(unknown)
    ours = classifier.predict(photos, top=1)
    known_ones = list(zip(ours, labels, strict=True))[: -len(unknown)]
    with tempfile.TemporaryDirectory(dir=args.work) as temporary:
        folder = Path(temporary)
        to_onnx_file(classifier, folder / "float.onnx")
        of_int8 = to_onnx_file(classifier, folder / "int8.onnx", int8=learnt)
        rows = [
            print_row(measure_file(folder / f"{kind}.onnx", kind, photos, labels, ours))
            for kind in ("float", "int8")
        ]
    right = [one.names[0] == label for one, label in known_ones]
    about: Row = {
        "backbone": "mobilenet_v2",
        "classifier": classifier.model.head_name,
        "classes": CLASSES,
        "accuracy of the classifier, %": 100 * sum(right) / len(right),
        "int8, learnt photos that export compared": of_int8.compared,
        "int8, of those the same answer, %": 100 * of_int8.agreeing / of_int8.compared,
        **measure_pixels(photos[::10], classifier),
    }
    record("export", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
