"""Measure what fine-tuning the backbone gains on photos of birds.

    python benchmarks/fine_tune.py --data-root DATA [--minutes 10] [--choices 2] [--record results]

Each choice has 20 base classes of 30 photos, of those that benchmarks/heads.py measures on, and ten
new ones of five. The classifier is trained with its backbone as it is, and fine-tuned for the given
time; both learn the new classes and are tested on all. How far fine-tuning comes in that time
depends on the machine.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import torch
from common import Row, parse_photos, print_row, record
from heads import Features, draw_split, list_measured_birds
from torch import Tensor

from fewmore import IncrementalClassifier

BASE, NEW, PHOTOS, SHOTS = 20, 10, 30, 5
Classes = dict[str, list[Path]]


def draw_classes(root: Path, seed: int) -> tuple[Classes, Classes, Classes]:
    """Draw photos of base classes and of new ones, and the test photos of both, by class."""
    files, labels, train = list_measured_birds(root)
    # The draw of benchmarks/heads.py, with the number of a photo in place of its features.
    data = Features(torch.arange(len(files))[:, None], labels, train, torch.empty(0))
    split = draw_split(data, seed, BASE, PHOTOS, NEW, SHOTS)

    def by_class(groups: list[Tensor]) -> Classes:
        photos = [[Path(str(files[i])) for i in group.flatten().tolist()] for group in groups]
        return {group[0].parent.name: group for group in photos}

    return by_class(split.base), by_class(split.new), by_class(split.test)


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
    alone = _accuracy(birds, test, base)
    birds.learn(new)
    return {
        "choice": seed,
        "minutes": minutes,
        "all": _accuracy(birds, test, test),
        "new": _accuracy(birds, test, new),
        "old": _accuracy(birds, test, base),
        "old alone": alone,
        "seconds": seconds,
        "note": next((note for note in birds.notes_ if "fine-tuned" in note), ""),
    }


def _accuracy(birds: IncrementalClassifier, photos: Classes, names: Iterable[str]) -> float:
    """Return the percentage of the photos of some classes that are right."""
    return 100 * fmean(
        prediction.names[0] == name for name in names for prediction in birds.predict(photos[name])
    )


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
