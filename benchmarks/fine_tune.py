"""Measure what fine-tuning the backbone gains on photos of birds.

    python benchmarks/fine_tune.py --data-root DATA [--minutes 10] [--choices 2] [--record results]

Each choice has 20 base classes of 30 photos, of those that benchmarks/heads.py measures on, and ten
new ones of five. The classifier is trained with its backbone as it is, and fine-tuned for the given
time; both learn the new classes and are tested on all. How far fine-tuning comes in that time
depends on the machine.
"""

import time
from pathlib import Path
from statistics import fmean

import torch
from common import Row, parse_photos, print_row, record
from heads import list_birds

from fewmore import IncrementalClassifier

BASE, NEW, PHOTOS, SHOTS = 20, 10, 30, 5
Classes = dict[str, list[Path]]


def draw_classes(root: Path, seed: int) -> tuple[Classes, Classes, Classes]:
    """Draw photos of base classes and of new ones, and the test photos of both, by class."""
    files, labels, train = list_birds(root)
    generator = torch.Generator().manual_seed(seed)
    measured = sorted({label for label in labels if label % 2})
    order = [measured[i] for i in torch.randperm(len(measured), generator=generator)]
    base: Classes = {}
    new: Classes = {}
    test: Classes = {}
    for label in order[: BASE + NEW]:
        of_class = [
            Path(str(file)) for file, each in zip(files, labels, strict=True) if each == label
        ]
        is_train = [flag for flag, each in zip(train, labels, strict=True) if each == label]
        learnt = [file for file, flag in zip(of_class, is_train, strict=True) if flag]
        learnt = [learnt[i] for i in torch.randperm(len(learnt), generator=generator)]
        name = of_class[0].parent.name
        if len(base) < BASE:
            base[name] = learnt[:PHOTOS]
        else:
            new[name] = learnt[:SHOTS]
        test[name] = [file for file, flag in zip(of_class, is_train, strict=True) if not flag]
    return base, new, test


def measure(root: Path, seed: int, minutes: int) -> Row:
    """Train, learn and test one classifier; 0 minutes leave the backbone as it is."""
    base, new, test = draw_classes(root, seed)
    began = time.perf_counter()
    birds = IncrementalClassifier(
        "mobilenet_v2",
        root / "weights" / "mobilenet_v2-b0353104.pth",
        seed=seed,
        fine_tune=f"{minutes}m" if minutes else None,
    )
    birds.fit(base)
    seconds = time.perf_counter() - began
    alone = _accuracy(birds, {name: test[name] for name in base})
    birds.learn(new)
    correct = {name: _accuracy(birds, {name: photos}) for name, photos in test.items()}
    counts = {name: len(photos) for name, photos in test.items()}

    def mean(names: Classes) -> float:
        return sum(correct[n] * counts[n] for n in names) / sum(counts[n] for n in names)

    return {
        "choice": seed,
        "minutes": minutes,
        "all": mean(test),
        "new": mean(new),
        "old": mean(base),
        "old alone": alone,
        "seconds": seconds,
        "note": next((note for note in birds.notes_ if "fine-tuned" in note), ""),
    }


def _accuracy(birds: IncrementalClassifier, photos: Classes) -> float:
    """Return the percentage of photos that are right."""
    right = [
        prediction.names[0] == name
        for name, files in photos.items()
        for prediction in birds.predict(files)
    ]
    return 100 * sum(right) / len(right)


def main() -> None:
    """Measure both classifiers on several choices of classes."""
    root, args = parse_photos(__doc__, minutes=10, choices=2)
    rows: list[Row] = []
    for seed in range(args.choices):
        for minutes in (0, args.minutes):
            rows.append(print_row(measure(root, seed, minutes)))
    about: Row = {"photos": "birds", "classes": f"{BASE} × {PHOTOS}, then {NEW} × {SHOTS}"}
    for minutes in (0, args.minutes):
        of = [row for row in rows if row["minutes"] == minutes]
        about[f"{minutes} minutes"] = {
            name: fmean(float(str(row[name])) for row in of) for name in ("all", "new", "old")
        }
    record("fine_tune", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
