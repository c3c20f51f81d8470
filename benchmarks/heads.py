"""Compare the classifier's head with what a user would train instead, on cached features.

    python benchmarks/heads.py [--data-root DATA] [--work FOLDER] [--choices 10] [--record results]

Features are mobilenet_v2's, plain and averaged with those of mirror images, embedded once and kept
in the work folder; every method is measured on both. Each result is the mean over
choices of classes: base classes of 30 images, ten new ones of few, ten that are never shown. The
alternatives are trained anew when the new classes come. Their settings are tuned by
cross-validation for balanced accuracy on the training images of the first choice; ours are chosen
by `fit` on base images. Candidates and rules of `fit` were settled on every second class of birds
and the last 40 classes of miniImageNet and of glyphs, on which `--design` measures; the recorded
numbers are of the others. "Before" is the head of commit c2715c9.
"""

import itertools
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from common import Row, make_parser, print_row, record
from sklearn.base import BaseEstimator
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from fewmore.classifier.calibration import auroc, expected_calibration_error
from fewmore.classifier.classes import SupportSet
from fewmore.classifier.embedding import Embedder
from fewmore.classifier.fitting.base import NEVER, BaseFeatures
from fewmore.classifier.fitting.frozen import fit_features
from fewmore.classifier.fitting.transform import transform_for
from fewmore.classifier.heads import Head, Scorer
from fewmore.data import glyphs
from fewmore.data.paths import data_root
from fewmore.nn.backbones import build

BACKBONES = {"plain": "mobilenet_v2", "mirrored": "mirrored:mobilenet_v2"}  # by kind of features
POOL = 60  # classes of miniImageNet and glyphs; the rest is for design
TRAIN = 30  # images of each of their classes; all of their test images count
SHOTS = (1, 3, 5, 10, 30)
FOLDERS = ((5, 6), (5, 10), (3, 20), (10, 10), (20, 10), (20, 30))  # base classes × images
ADDITIONS = 30  # classes added one by one, of five images each
CHANCE_DRAWS = 20  # of answers that are right as often as they are sure
SINGLE = 20  # classes of one image, each learnt alone, in every choice

Scores = Callable[[Tensor], tuple[Tensor, bool]]  # logits, and whether they are calibrated


# Features


@dataclass(frozen=True, eq=False)
class Features:
    """Hold the features of a data set."""

    features: Tensor  # (n, d)
    labels: Tensor
    train: Tensor  # bool
    classifier: Tensor  # (k, d + 1): the backbone's own


def load_features(name: str, kind: str, root: Path, work: Path, design: bool = False) -> Features:
    """Read the features of a data set, embedded the first time.

    Of the birds these are every second class; neighbors in their list are alike.
    """
    file = work / f"{name}-{kind}.pt"
    backbone = build(BACKBONES[kind], weights=root / "weights" / "mobilenet_v2-b0353104.pth")
    if not file.exists():
        images, labels, train = IMAGES[name](root)
        embedder = Embedder(backbone, transform_for(BACKBONES[kind], True), torch.device("cpu"))
        features = embedder.embed(images, [f"image {i}" for i in range(len(images))])[0]
        content = {"features": features, "labels": labels, "train": train}
        torch.save({name: torch.as_tensor(value) for name, value in content.items()}, file)
    content = torch.load(file)
    features, labels, train = (content[key] for key in ("features", "labels", "train"))
    kept = (labels % 2 == 0 if name == "cub" else labels >= POOL) == design
    labels = labels[kept] // 2 if name == "cub" else labels[kept] % POOL
    features, train = features[kept], train[kept]
    assert backbone.classifier is not None
    return Features(features, labels, train, backbone.classifier)


def list_birds(root: Path) -> tuple[list[object], list[int], list[bool]]:
    """List the files of CUB-200 with its own split."""
    root = root / "CUB_200_2011"

    def table(name: str) -> dict[str, str]:
        return dict(line.split() for line in (root / name).read_text().splitlines())

    paths, labels, train = map(
        table, ("images.txt", "image_class_labels.txt", "train_test_split.txt")
    )
    order = sorted(paths, key=int)
    files: list[object] = [root / "images" / paths[i] for i in order]
    return files, [int(labels[i]) - 1 for i in order], [train[i] == "1" for i in order]


def list_measured_birds(root: Path) -> tuple[list[object], Tensor, Tensor]:
    """List the files of the classes that are measured on, every second one, numbered anew."""
    files, labels, train = list_birds(root)
    kept = [place for place, label in enumerate(labels) if label % 2]
    numbers = torch.tensor([labels[place] // 2 for place in kept])
    return [files[place] for place in kept], numbers, torch.tensor([train[place] for place in kept])


def list_miniimagenet(root: Path) -> tuple[list[object], list[int], list[bool]]:
    """List images of miniImageNet."""
    names: dict[str, int] = {}
    files: list[object] = []
    labels: list[int] = []
    train: list[bool] = []
    for part in ("train", "test"):
        counts: Counter[int] = Counter()
        table = root / "miniimagenet" / "split" / f"{part}.csv"
        for line in table.read_text().splitlines()[1:]:
            file, name = line.split(",")
            label = names.setdefault(name, len(names))
            counts[label] += 1
            if part == "test" or counts[label] <= TRAIN:
                files.append(root / "miniimagenet" / "images" / file)
                labels.append(label)
                train.append(part == "train")
    return files, labels, train


def list_glyphs(root: Path) -> tuple[list[object], list[int], list[bool]]:
    """Render the characters of glyphs."""
    files: list[object] = []
    labels: list[int] = []
    train: list[bool] = []
    for images, is_train in zip(glyphs.load(root / "glyphs"), (True, False), strict=True):
        for label in range(len(images.class_names)):
            places = (images.labels == label).nonzero().squeeze(1).tolist()
            for place in places[:TRAIN] if is_train else places:
                files.append(images.image(place))
                labels.append(label)
                train.append(is_train)
    return files, labels, train


IMAGES = {"cub": list_birds, "mini": list_miniimagenet, "glyphs": list_glyphs}
TITLES = {"cub": "birds", "mini": "miniImageNet", "glyphs": "glyphs"}


@dataclass(frozen=True, eq=False)
class Split:
    """Hold features by class: training images of base and new classes, and test images."""

    base: list[Tensor]
    new: list[Tensor]
    test: list[Tensor]  # of the base classes, then of the new ones
    unseen: Tensor  # (n, d)
    classifier: Tensor  # the backbone's own


def draw_split(data: Features, seed: int, base: int, images: int, new: int, shots: int) -> Split:
    """Draw classes and images; another number of shots takes more or fewer of the same images."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(int(data.labels.max()) + 1, generator=generator)
    train: list[Tensor] = []
    test: list[Tensor] = []
    for label in order[: base + new + 10].tolist():
        of_class = ((data.labels == label) & data.train).nonzero().squeeze(1)
        of_class = of_class[torch.randperm(len(of_class), generator=generator)]
        most = images if len(train) < base else shots
        train.append(data.features[of_class[:most]])
        test.append(data.features[(data.labels == label) & ~data.train])
    unseen = torch.cat(test[base + new :])
    seen = test[: base + new]
    return Split(train[:base], train[base : base + new], seen, unseen, data.classifier)


def with_labels(groups: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Concatenate features of classes, and number these."""
    labels = [torch.full((len(group),), i) for i, group in enumerate(groups)]
    return torch.cat(groups), torch.cat(labels)


# Ours and what was before


class Ours:
    """Fit the classifier's head on base classes, and learn others."""

    def __init__(self, base: list[Tensor], classifier: Tensor, seed: int = 0) -> None:
        features, labels = with_labels(base)
        names = tuple(f"base {i}" for i in range(len(base)))
        raw = BaseFeatures(names, features, labels, torch.full_like(labels, NEVER))
        fitted, self.whitening, head, self.calibration = fit_features(raw, seed, classifier)
        self.note = fitted.notes[-1]
        self.base = Scorer.build(head, fitted.classes())
        self.scorer = self.base

    def learn(self, new: list[Tensor]) -> "Ours":
        """Learn classes in addition to the base ones."""
        added = [SupportSet(f"new {i}", self.whitening(k)).to_class() for i, k in enumerate(new)]
        self.scorer = self.base.with_classes((*self.base.classes, *added))
        return self

    def scores(self, features: Tensor) -> tuple[Tensor, bool]:
        """Return calibrated logits."""
        scores = self.scorer.scores(self.whitening(features))
        return scores / self.calibration.temperature, True

    def familiarity(self, features: Tensor) -> Tensor:
        """Return the similarity to the closest class."""
        return self.scorer.familiarity(self.whitening(features))


def before(base: list[Tensor], new: list[Tensor]) -> Scores:
    """Score by the cosine of raw features, corrected by the variance of raw features."""
    _, labels = with_labels(base)
    means = torch.stack([group.mean(0) for group in base])
    variance = (torch.cat(base) - means[labels]).square().sum() / (len(labels) - len(base))
    classes = [SupportSet(str(i), group).to_class() for i, group in enumerate([*base, *new])]
    head = Head(torch.device("cpu"), means.shape[1], float(variance))
    scorer = Scorer.build(head, classes)
    return lambda features: (scorer.scores(features), False)


# Alternatives


def nearest_mean(features: Tensor, labels: Tensor) -> Scores:
    """Score by the cosine to class means."""
    means = torch.stack([features[labels == i].mean(0) for i in range(int(labels.max()) + 1)])
    means = F.normalize(means, dim=1)
    return lambda queries: (F.normalize(queries, dim=1) @ means.T, False)


GRIDS: dict[str, tuple[BaseEstimator, dict[str, list[object]]]] = {
    "logistic regression": (
        LogisticRegression(max_iter=500, tol=1e-3),
        {"C": [1, 10, 100], "class_weight": [None, "balanced"]},
    ),
    "k nearest neighbors": (
        KNeighborsClassifier(metric="cosine"),
        {"n_neighbors": [1, 3, 5], "weights": ["uniform", "distance"]},
    ),
    "linear discriminants": (
        LinearDiscriminantAnalysis(solver="lsqr"),
        {"shrinkage": ["auto", 0.1, 0.5, 0.9]},
    ),
    "ridge": (
        RidgeClassifier(),
        {"alpha": [0.01, 0.1, 1.0, 10.0], "class_weight": [None, "balanced"]},
    ),
}


class Alternatives:
    """Train what a user would train instead, tuned the first time."""

    def __init__(self) -> None:
        self.tuned: dict[str, dict[str, object]] = {}

    def settings(self, name: str) -> str:
        """Return the settings that cross-validation chose."""
        return ", ".join(f"{key} {value}" for key, value in self.tuned.get(name, {}).items())

    def fit(self, name: str, features: Tensor, labels: Tensor) -> Scores:
        """Train one on unit features, rotated to as many dimensions as there are images.

        The rotation changes nothing for these estimators but their time.
        """
        estimator, grid = GRIDS[name]
        unit = F.normalize(features, dim=1)
        center = unit.mean(0)
        basis = torch.linalg.svd(unit - center, full_matrices=False).Vh[: len(unit) - 1].T
        inputs = ((unit - center) @ basis).double().numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # classes of one image cannot be in every fold
            if name not in self.tuned:
                folds = 3 if int(torch.bincount(labels).max()) >= 3 else 2
                search = GridSearchCV(estimator, grid, scoring="balanced_accuracy", cv=folds)
                self.tuned[name] = search.fit(inputs, labels.numpy()).best_params_
            fitted = estimator.__class__(**{**estimator.get_params(), **self.tuned[name]})
            fitted.fit(inputs, labels.numpy())

        def scores(queries: Tensor) -> tuple[Tensor, bool]:
            queries = ((F.normalize(queries, dim=1) - center) @ basis).double().numpy()
            if hasattr(fitted, "predict_proba"):
                return torch.tensor(fitted.predict_proba(queries)).clamp(min=1e-12).log(), True
            decision = torch.tensor(fitted.decision_function(queries))
            if decision.dim() == 1:
                decision = torch.stack([-decision, decision], 1)
            return decision, False

        return scores


# Measures


@dataclass(frozen=True, eq=False)
class Result:
    """Hold accuracies in percent, and confidences where there are any."""

    accuracies: dict[str, float]
    confidences: Tensor | None
    correct: Tensor

    def ece(self) -> float:
        """Return the expected calibration error in percent."""
        assert self.confidences is not None
        return 100 * expected_calibration_error(self.confidences, self.correct)

    def chance_ece(self) -> float:
        """Return what it would be if each confidence were the chance to be right, in percent."""
        assert self.confidences is not None
        generator = torch.Generator().manual_seed(0)
        errors = []
        for _ in range(CHANCE_DRAWS):
            correct = torch.rand(len(self.correct), generator=generator) < self.confidences
            errors.append(expected_calibration_error(self.confidences, correct))
        return 100 * sum(errors) / len(errors)


def measure(scores: Scores, split: Split) -> Result:
    """Measure accuracies on old, new and all classes, and confidences."""
    queries, labels = with_labels(split.test)
    logits, calibrated = scores(queries)
    correct = logits.argmax(1) == labels
    is_old = labels < len(split.base)
    accuracies = {
        "old": 100 * float(correct[is_old].float().mean()),
        "new": 100 * float(correct[~is_old].float().mean()),
        "all": 100 * float(correct.float().mean()),
    }
    return Result(accuracies, logits.softmax(1).amax(1) if calibrated else None, correct)


def old_alone(scores: Scores, split: Split) -> float:
    """Return the accuracy on the base classes before others come, in percent."""
    queries, labels = with_labels(split.test[: len(split.base)])
    return 100 * float((scores(queries)[0].argmax(1) == labels).float().mean())


def compare(splits: list[Split]) -> Iterator[Row]:
    """Yield the mean of each method over choices of classes."""
    results: dict[str, list[Result]] = {}
    alternatives = Alternatives()
    for seed, split in enumerate(splits):
        ours = fit_ours(split, seed)
        alone = old_alone(ours.scores, split)
        measured = {"fewmore": measure(ours.learn(split.new).scores, split)}
        measured["fewmore"].accuracies["old alone"] = alone
        measured["before"] = measure(before(split.base, split.new), split)
        measured["before"].accuracies["old alone"] = old_alone(before(split.base, []), split)
        features, labels = with_labels([*split.base, *split.new])
        measured["nearest mean"] = measure(nearest_mean(features, labels), split)
        for name in GRIDS:
            measured[name] = measure(alternatives.fit(name, features, labels), split)
        for name, result in measured.items():
            results.setdefault(name, []).append(result)
    for name, of_method in results.items():
        yield {"method": name, **summary(of_method), "settings": alternatives.settings(name)}


def summary(results: list[Result]) -> Row:
    """Return means over choices, the deviation of all, and calibration errors.

    "ece" is the mean of the choices' own, and "chance ece" what true confidences would have in its
    place; "pooled ece" is that of all their images together.
    """
    row: Row = {}
    for key in results[0].accuracies:
        values = torch.tensor([result.accuracies[key] for result in results])
        row[key] = float(values.mean())
        if key == "all":
            row["deviation"] = float(values.std())
    if results[0].confidences is not None:
        row["ece"] = sum(result.ece() for result in results) / len(results)
        row["chance ece"] = sum(result.chance_ece() for result in results) / len(results)
        confidences = torch.cat([r.confidences for r in results if r.confidences is not None])
        correct = torch.cat([result.correct for result in results])
        row["pooled ece"] = 100 * expected_calibration_error(confidences, correct)
    return row


_fitted: dict[tuple[int, int, int], Ours] = {}  # of a part, by seed, base classes and images


def fit_ours(split: Split, seed: int) -> Ours:
    """Fit on the base classes of a choice, once in a part for all numbers of shots."""
    key = (seed, len(split.base), sum(map(len, split.base)))
    if key not in _fitted:
        _fitted[key] = Ours(split.base, split.classifier, seed)
    return _fitted[key].learn([])


def measure_additions(data: Features, choices: int) -> Iterator[Row]:
    """Add thirty classes one by one: what is accepted, and how unseen classes are told."""
    results = torch.zeros(choices, ADDITIONS + 1, 4)
    for seed in range(choices):
        split = draw_split(data, seed, 20, TRAIN, ADDITIONS, 5)
        ours = fit_ours(split, seed)
        for added in range(ADDITIONS + 1):
            ours.learn(split.new[:added])
            threshold = ours.calibration.for_classes(20 + added).threshold or 0.0
            familiar = ours.familiarity(torch.cat(split.test[: 20 + added]))
            new = ours.familiarity(torch.cat(split.test[20 : 20 + added])) if added else familiar
            unseen = ours.familiarity(split.unseen)
            shares = [float((part >= threshold).float().mean()) for part in (familiar, new, unseen)]
            results[seed, added] = 100 * torch.tensor([*shares, auroc(familiar, unseen)])
    for added, (known, new, unseen, area) in enumerate(results.mean(0).tolist()):
        yield {
            "added": added,
            "known accepted": known,
            "new accepted": new,
            "unseen rejected": 100 - unseen,
            "auroc": area / 100,
        }


def measure_single(data: Features, choices: int) -> Iterator[Row]:
    """Learn one class of one image: what the old classes lose, on average and at worst."""
    losses: dict[str, list[float]] = {"fewmore": [], "before": []}
    for seed in range(choices):
        split = draw_split(data, seed, 20, TRAIN, SINGLE, 1)
        ours = fit_ours(split, seed)
        alone = old_alone(ours.scores, split), old_alone(before(split.base, []), split)
        for shot in split.new:
            losses["fewmore"].append(alone[0] - old_alone(ours.learn([shot]).scores, split))
            losses["before"].append(alone[1] - old_alone(before(split.base, [shot]), split))
    for name, of_method in losses.items():
        values = torch.tensor(of_method)
        yield {
            "method": name,
            "cases": len(values),
            "mean loss": float(values.mean()),
            "90 % below": float(values.quantile(0.9)),
            "worst loss": float(values.max()),
        }


Setting = tuple[int, int, int, int]  # base classes, their images, new classes, shots
BY_SHOTS: list[Setting] = [(20, TRAIN, 10, shots) for shots in SHOTS]
BY_FOLDER: list[Setting] = [(base, images, max(5, base // 2), 5) for base, images in FOLDERS]


def measure_settings(file: str, settings: list[Setting], choices: int, data: Features) -> list[Row]:
    """Compare all methods in some settings."""
    rows = []
    for base, images, new, shots in settings:
        splits = [draw_split(data, i, base, images, new, shots) for i in range(choices)]
        about: Row = {"what": "accuracy", "data": TITLES[file], "folder": f"{base} × {images}"}
        about |= {"new classes": new, "shots": shots, "choices": choices}
        rows += [{**about, **row} for row in compare(splits)]
    return rows


def measure_part(
    part: str, kind: str, choices: int, root: Path, work: Path, design: bool = False
) -> list[Row]:
    """Measure one part on one kind of features, on one core."""
    torch.set_num_threads(1)
    _fitted.clear()  # the process may have measured another part before
    data = load_features(part.split()[0], kind, root, work, design)
    if part == "cub additions":
        rows = [{"what": "additions", **row} for row in measure_additions(data, choices)]
        rows += [{"what": "one image", **row} for row in measure_single(data, choices)]
    else:
        settings = BY_FOLDER[:-1] if part == "cub folders" else BY_SHOTS
        rows = measure_settings(part.split()[0], settings, choices, data)
    return [print_row({"features": kind, **row}) for row in rows]


def main() -> None:
    """Measure all parts at once."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/tmp/features"), help="for features")
    parser.add_argument("--choices", type=int, default=10, help="of bird classes")
    parser.add_argument("--design", action="store_true", help="classes that were designed on")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    root = data_root(args.data_root)
    few = max(1, 2 * args.choices // 5)
    parts = {"cub": args.choices, "cub additions": args.choices, "cub folders": args.choices}
    parts |= {"mini": few, "glyphs": few}
    os.environ["OMP_NUM_THREADS"] = "1"  # one core for each process
    for name, kind in itertools.product(IMAGES, BACKBONES):
        load_features(name, kind, root, args.work)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        running = [
            pool.submit(measure_part, part, kind, choices, root, args.work, args.design)
            for kind in BACKBONES
            for part, choices in parts.items()
        ]
        rows = [row for part in running for row in part.result()]
    about: Row = {"backbone": BACKBONES["plain"], "choices of bird classes": args.choices}
    about["remark"] = "ImageNet weights have seen the classes of miniImageNet"
    record("heads", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
