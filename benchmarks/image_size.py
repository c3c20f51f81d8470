"""Measure the classifier on photos of birds that its backbone sees in more pixels.

    python benchmarks/image_size.py --data-root DATA [--choices 10] [--record results]

The classes, choices and the classifier are those of benchmarks/heads.py: 20 base classes of 30
photos, ten new ones of five. mobilenet_v2 was made for 224 pixels. Milliseconds are of one photo,
decoded and embedded, with all cores.
"""

import time
from pathlib import Path

import torch
from common import Row, parse_photos, print_row, record
from heads import (
    TRAIN,
    Features,
    Ours,
    draw_split,
    list_measured_birds,
    measure,
    old_alone,
    summary,
)

from fewmore import IncrementalClassifier

SIZES = (224, 256, 288)


def load_features(root: Path, size: int) -> tuple[Features, float]:
    """Embed the measured classes; return the seconds a photo too."""
    files, labels, train = list_measured_birds(root)
    weights = root / "weights" / "mobilenet_v2-b0353104.pth"
    embedder = IncrementalClassifier(
        "mobilenet_v2", weights, image_size=size, device="cpu"
    ).build_embedder()
    began = time.perf_counter()
    embedded, _ = embedder.embed(files, [str(file) for file in files])
    seconds = (time.perf_counter() - began) / len(files)
    assert embedder.backbone.classifier is not None
    return Features(embedded, labels, train, embedder.backbone.classifier), seconds


def main() -> None:
    """Measure each size on the same choices of classes."""
    root, args = parse_photos(__doc__, choices=10)
    rows: list[Row] = []
    for size in SIZES:
        data, seconds = load_features(root, size)
        results = []
        for seed in range(args.choices):
            split = draw_split(data, seed, 20, TRAIN, 10, 5)
            ours = Ours(split.base, split.classifier, seed)
            alone = old_alone(ours.scores, split)
            results.append(measure(ours.learn(split.new).scores, split))
            results[-1].accuracies["old alone"] = alone
        rows.append(print_row({"size": size, **summary(results), "ms a photo": 1e3 * seconds}))
    about: Row = {"backbone": "mobilenet_v2", "choices of bird classes": args.choices}
    record("image_size", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
