"""Compare classifiers on features of the validation split, which benchmarks/own_recipe.py wrote.

    python benchmarks/own_classifier.py FOLDER/*.npz [--draws 6] [--record results]
    python benchmarks/own_classifier.py FOLDER/*.npz --views usual,large,all --powers 1,0.75,0.5

Base classes are tested on held-out images, new ones on all images but their shots, which are drawn
several times: many more than the benchmark's own validation split has, so that small differences
show. "Last" weighs base and new classes as in the last session of the benchmark. Compared are class
means, TEEN's calibration, and whitened means of corrected length (methods/evolve.py), for
several settings and test views. With `--powers`, features are raised to each of them first, and
whitened means alone are compared. Everything runs on the CPU, in a minute a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from common import Row, make_parser, print_row, record
from torch import Tensor

from fewmore.methods import evolve
from fewmore.methods.evolve import correct_length
from fewmore.nn.covariance import inverse_root, raise_to, shrink, within_class_covariance
from fewmore.nn.prototypes import class_means

SHOTS = 5
ENOUGH = 4000  # images of new classes to test
VIEWS: dict[str, tuple[str, ...]] = {
    "one": ("plain",),
    "rotated": ("plain", "rot180"),
    "usual": evolve.VIEWS,
    "large": evolve.LARGE_VIEWS,
    "all": (),
}


@dataclass
class Data:
    """Hold features (n, views, d) of base and new images, and draws of the shots."""

    base: Tensor
    base_labels: Tensor
    held_out: Tensor
    held_out_labels: Tensor
    new: Tensor
    new_labels: Tensor
    draws: list[Tensor]
    way: int
    new_share: float  # of new classes in the last session of the benchmark

    @classmethod
    def load(cls, path: Path, views: tuple[str, ...], draws: int) -> "Data":
        """Read a file, with these test views alone; all if none is named."""
        file = np.load(path)
        names = list(file["views"])
        chosen = [names.index(name) for name in views or names if name in names]

        def part(name: str) -> tuple[Tensor, Tensor]:
            features = torch.from_numpy(file[name]).float().unflatten(1, (len(names), -1))
            return features[:, chosen], torch.from_numpy(file[f"{name}_labels"])

        (train, train_labels), (test, test_labels) = part("train"), part("test")
        base = int(file["base"])
        is_base, is_base_test = train_labels < base, test_labels < base
        new_labels = torch.cat([train_labels[~is_base], test_labels[~is_base_test]])
        random = np.random.default_rng(0)
        return cls(
            train[is_base],
            train_labels[is_base],
            test[is_base_test],
            test_labels[is_base_test],
            torch.cat([train[~is_base], test[~is_base_test]]),
            new_labels,
            [torch.from_numpy(_draw(new_labels.numpy(), random)) for _ in range(draws)],
            int(file["way"]),
            float(file["new_share"]),
        )

    @property
    def classes(self) -> tuple[int, int]:
        """Return the number of base classes, and of all."""
        return int(self.base_labels.max()) + 1, int(self.new_labels.max()) + 1


def _draw(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw the positions of the shots of every class."""
    classes = np.unique(labels)
    return np.concatenate(
        [random.choice(np.flatnonzero(labels == each), SHOTS, replace=False) for each in classes]
    )


@dataclass(frozen=True)
class Head:
    """Hold a classifier's settings: whitening, corrected length, and TEEN's calibration."""

    power: float = 1.0  # that features are raised to
    shrinkage: float | None = None  # of the covariance; None: features are not whitened
    correction: float = 0.0
    alpha: float = 0.0
    temperature: float = 16.0
    fitted: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list, compare=False)

    @property
    def settings(self) -> Row:
        """Return what it is, for a row."""
        return {
            "power": self.power,
            "shrinkage": self.shrinkage,
            "correction": self.correction,
            "alpha": self.alpha,
        }

    def fit(self, data: Data) -> None:
        """Take the whitening, the prototypes and the variance of the base classes, by view."""
        labels, classes = data.base_labels, data.classes[0]
        self.fitted.clear()
        for features in data.base.unbind(1):
            unit = self.unit(features)
            root = torch.eye(unit.shape[1])
            if self.shrinkage is not None:
                means = class_means(unit, labels, classes)
                covariance = within_class_covariance(unit, labels, means)
                root = inverse_root(shrink(covariance, self.shrinkage)).float()
            whitened = self.whiten(features, root)
            means = class_means(whitened, labels, classes)
            variance = (whitened - means[labels]).square().sum(1).mean()
            self.fitted.append((root, F.normalize(means, dim=1), variance))

    def scores(self, data: Data, shots: Tensor, *queries: Tensor) -> list[Tensor]:
        """Score images over base classes and those that are learnt from the shots."""
        base, classes = data.classes
        totals = [torch.zeros(len(each), classes) for each in queries]
        for view, (root, known, variance) in enumerate(self.fitted):
            few = self.whiten(data.new[shots, view], root)
            means = class_means(few, data.new_labels[shots] - base, classes - base)
            means = correct_length(means, self.correction * variance / SHOTS)
            if self.alpha:
                weights = (self.temperature * F.normalize(means, dim=1) @ known.T).softmax(1)
                mixed = F.normalize(weights @ known, dim=1)
                means = F.normalize((1 - self.alpha) * means + self.alpha * mixed, dim=1)
            prototypes = torch.cat([known, means])
            for total, images in zip(totals, queries, strict=True):
                total += self.whiten(images[:, view], root) @ prototypes.T
        return totals

    def unit(self, features: Tensor) -> Tensor:
        """Return features that are raised to the power and of length 1."""
        return F.normalize(raise_to(features, self.power), dim=1)

    def whiten(self, features: Tensor, root: Tensor) -> Tensor:
        """Return features that are whitened and of length 1."""
        return F.normalize(self.unit(features) @ root, dim=1)


def measure(data: Data, head: Head) -> Row:
    """Return the accuracies of a classifier, as means over the draws."""
    head.fit(data)
    base, classes = data.classes
    rows = []
    for shots in data.draws:
        every = torch.arange(0, len(data.new), 1 + len(data.new) // ENOUGH)
        tested = every[~torch.isin(every, shots)]
        old, new = head.scores(data, shots, data.held_out, data.new[tested])
        labels = data.new_labels[tested]
        sessions = []
        for known in range(base, classes + 1, data.way):
            of_base = float((old[:, :known].argmax(1) == data.held_out_labels).double().mean())
            came = labels < known
            right = new[came][:, :known].argmax(1) == labels[came]
            of_new = float(right.double().mean()) if came.any() else 0.0
            weight = data.new_share * (known - base) / known / ((classes - base) / classes)
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


def heads(whole: bool, powers: Sequence[float] = ()) -> list[Head]:
    """Return the classifiers that are compared: few, or a grid; with powers, a smaller grid."""
    if powers:
        sizes = product(powers, (0.2, 0.4, 0.6, 1.0), (0.5, 0.6, 0.75))
        return [Head(power, shrinkage, correction) for power, shrinkage, correction in sizes]
    plain = [Head(), Head(alpha=0.1), Head(alpha=0.3)]
    if not whole:
        return [*plain, Head(1.0, 0.2, 0.6)]
    shrinkages = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)  # 1: not whitened
    grid = [Head(1.0, s, c) for s in shrinkages for c in (0.0, 0.4, 0.5, 0.6, 0.75, 1.0)]
    return [*plain, Head(correction=0.6), *grid, Head(1.0, 0.2, 0.0, 0.3)]


def main() -> None:
    """Measure all classifiers on all files."""
    parser = make_parser(__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--views", default="all", help=f"test views: {', '.join(VIEWS)}")
    parser.add_argument("--powers", default="", help="powers that features are raised to")
    parser.add_argument("--few", action="store_true", help="few classifiers instead of a grid")
    parser.add_argument("--part", help="name of this part of the search in the record")
    args = parser.parse_args()
    powers = [float(power) for power in args.powers.split(",") if power]
    rows: list[Row] = []
    if unknown := set(args.views.split(",")) - set(VIEWS):
        parser.error(f"--views {', '.join(sorted(unknown))}: choose from {', '.join(VIEWS)}")
    for path, views in product(args.files, args.views.split(",")):
        data = Data.load(path, VIEWS[views], args.draws)
        for head in heads(not args.few, powers):
            about: Row = {"features": path.stem, "views": views, **head.settings}
            rows.append(print_row({**about, **measure(data, head)}))
    about = {"shots": SHOTS, "draws": args.draws, "views": args.views}
    record("own_classifier", torch.device("cpu"), rows, about, args.record, part=args.part)


if __name__ == "__main__":
    main()
