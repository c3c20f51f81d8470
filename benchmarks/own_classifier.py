"""Compare classifiers on features of the validation split, which benchmarks/own_recipe.py wrote.

    python benchmarks/own_classifier.py FOLDER/*.npz [--draws 6] [--record results]

Base classes are tested on held-out images, new ones on all images but their shots, which are drawn
several times: many more than the benchmark's own validation split has, so that small differences
show. "Last" weighs base and new classes 60 to 40, as in the last session of CIFAR100. Compared are
class means, TEEN's calibration, and whitened means of corrected length (methods/evolve.py), for
several settings and test views. Everything runs on the CPU, in a minute a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from common import Row, make_parser, print_row, record

Array = np.ndarray
SHOTS = 5
WAY = 5
EVERY = 3  # one image of a new class in so many is tested
NEW_WEIGHT = 0.4  # of new classes in the last session
VIEWS: dict[str, tuple[str, ...]] = {
    "one": ("plain",),
    "rotated": ("plain", "rot180"),
    "all": (),
}


def unit(vectors: Array) -> Array:
    """Scale vectors to length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-8)


def class_means(features: Array, labels: Array, classes: Sequence[int]) -> Array:
    """Average the features of each class."""
    return np.stack([features[labels == each].mean(0) for each in classes])


@dataclass
class Data:
    """Hold features (n, views, d) of base and new images, and draws of the shots."""

    base: Array
    base_labels: Array
    held_out: Array
    held_out_labels: Array
    new: Array
    new_labels: Array
    draws: list[Array]

    @classmethod
    def load(cls, path: Path, views: tuple[str, ...], draws: int) -> "Data":
        """Read a file, with these test views alone; all if none is named."""
        file = np.load(path)
        names = list(file["views"])
        chosen = [names.index(name) for name in views or names if name in names]

        def part(name: str) -> tuple[Array, Array]:
            features = file[name].astype(np.float32)
            return features.reshape(len(features), len(names), -1)[:, chosen], file[
                f"{name}_labels"
            ]

        (train, train_labels), (test, test_labels) = part("train"), part("test")
        is_base, is_base_test = train_labels < file["base"], test_labels < file["base"]
        new_labels = np.concatenate([train_labels[~is_base], test_labels[~is_base_test]])
        random = np.random.default_rng(0)
        return cls(
            train[is_base],
            train_labels[is_base],
            test[is_base_test],
            test_labels[is_base_test],
            np.concatenate([train[~is_base], test[~is_base_test]]),
            new_labels,
            [_draw(new_labels, random) for _ in range(draws)],
        )

    @property
    def classes(self) -> tuple[int, int]:
        """Return the number of base classes, and of all."""
        return int(self.base_labels.max()) + 1, int(self.new_labels.max()) + 1


def _draw(labels: Array, random: np.random.Generator) -> Array:
    """Draw the positions of the shots of every class."""
    classes = np.unique(labels)
    return np.concatenate(
        [random.choice(np.flatnonzero(labels == each), SHOTS, replace=False) for each in classes]
    )


@dataclass(frozen=True)
class Head:
    """Hold a classifier's settings: whitening, corrected length, and TEEN's calibration."""

    shrinkage: float | None = None  # of the covariance; None: features are not whitened
    correction: float = 0.0
    alpha: float = 0.0
    temperature: float = 16.0
    fitted: dict[int, tuple[Array, Array, float]] = field(default_factory=dict, compare=False)

    @property
    def settings(self) -> Row:
        """Return what it is, for a row."""
        return {
            "shrinkage": self.shrinkage,
            "correction": self.correction,
            "alpha": self.alpha,
        }

    def fit(self, data: Data) -> None:
        """Take the whitening, the prototypes and the variance of the base classes, by view."""
        known = range(data.classes[0])
        for view in range(data.base.shape[1]):
            features = unit(data.base[:, view])
            root = np.eye(features.shape[1], dtype=np.float32)
            if self.shrinkage is not None:
                rest = features - class_means(features, data.base_labels, known)[data.base_labels]
                root = self._root(rest.T @ rest / len(rest))
            whitened = unit(features @ root)
            means = class_means(whitened, data.base_labels, known)
            variance = float(np.square(whitened - means[data.base_labels]).sum(1).mean())
            self.fitted[view] = (root, unit(means), variance)

    def _root(self, covariance: Array) -> Array:
        share, d = self.shrinkage or 0.0, len(covariance)
        shrunk = (1 - share) * covariance + share * np.trace(covariance) / d * np.eye(d)
        variances, directions = np.linalg.eigh(shrunk)
        return (directions / np.sqrt(variances) @ directions.T).astype(np.float32)

    def scores(self, data: Data, shots: Array, *queries: Array) -> list[Array]:
        """Score images over base classes and those that are learnt from the shots."""
        base, classes = data.classes
        totals: list[Array] = [np.zeros((len(each), classes), np.float32) for each in queries]
        for view, (root, known, variance) in self.fitted.items():
            few = unit(unit(data.new[shots][:, view]) @ root)
            means = class_means(few, data.new_labels[shots], range(base, classes))
            squared = np.square(means).sum(1, keepdims=True)
            means = means / np.sqrt(
                np.maximum(squared - self.correction * variance / SHOTS, 0.05 * squared)
            )
            if self.alpha:
                logits = self.temperature * unit(means) @ known.T
                weights = np.exp(logits - logits.max(1, keepdims=True))
                mixed = unit(weights @ known)
                means = unit((1 - self.alpha) * means + self.alpha * mixed)
            prototypes = np.concatenate([known, means])
            for total, images in zip(totals, queries, strict=True):
                total += unit(unit(images[:, view]) @ root) @ prototypes.T
        return totals


def measure(data: Data, head: Head) -> Row:
    """Return the accuracies of a classifier, as means over the draws."""
    head.fit(data)
    base, classes = data.classes
    rows = []
    for shots in data.draws:
        tested = np.setdiff1d(np.arange(0, len(data.new), EVERY), shots)
        old, new = head.scores(data, shots, data.held_out, data.new[tested])
        labels = data.new_labels[tested]
        sessions = []
        for known in range(base, classes + 1, WAY):
            of_base = float((old[:, :known].argmax(1) == data.held_out_labels).mean())
            came = labels < known
            right = new[came][:, :known].argmax(1) == labels[came]
            of_new = float(right.mean()) if came.any() else 0.0
            weight = NEW_WEIGHT * (known - base) / known / ((classes - base) / classes)
            sessions.append(((1 - weight) * of_base + weight * of_new, of_base, of_new))
        rows.append(sessions)
    means = 100 * np.mean(rows, 0)
    last, of_base, of_new = means[-1].tolist()
    return {
        "first": float(means[0, 0]),
        "average": float(means[:, 0].mean()),
        "last": last,
        "base": of_base,
        "novel": of_new,
        "harmonic": 2 * of_base * of_new / (of_base + of_new),
    }


def heads(whole: bool) -> list[Head]:
    """Return the classifiers that are compared: few, or a grid."""
    plain = [Head(), Head(alpha=0.1), Head(alpha=0.3)]
    if not whole:
        return [*plain, Head(0.2, 0.6)]
    grid = [Head(s, c) for s in (0.05, 0.1, 0.2, 0.4) for c in (0.0, 0.4, 0.5, 0.6, 0.75, 1.0)]
    return [*plain, Head(correction=0.6), *grid, Head(0.2, 0.0, 0.3)]


def main() -> None:
    """Measure all classifiers on all files."""
    parser = make_parser(__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--views", default="all", choices=list(VIEWS), help="test views")
    parser.add_argument("--few", action="store_true", help="few classifiers instead of a grid")
    parser.add_argument("--part", help="name of this part of the search in the record")
    args = parser.parse_args()
    rows: list[Row] = []
    for path in args.files:
        data = Data.load(path, VIEWS[args.views], args.draws)
        for head in heads(not args.few):
            about: Row = {"features": path.stem, "views": args.views, **head.settings}
            rows.append(print_row({**about, **measure(data, head)}))
    about = {"shots": SHOTS, "draws": args.draws, "views": args.views}
    record("own_classifier", torch.device("cpu"), rows, about, args.record, part=args.part)


if __name__ == "__main__":
    main()
