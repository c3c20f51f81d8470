"""Training for practice: what `IncrementalClassifier.fit` does between images and a model.

With a pretrained backbone nothing of it is trained. Each image is decoded once, and each of its views that is used is
embedded once; an adapter learns on the features of a sample of the images, pseudo-incrementally, and is kept only if it
beats the plain cosine on pseudo-sessions of held-out images. From scratch, stages 1 and 2 make backbone and adapter,
without the held-out images. In the end every image counts in its class's mean.

Memory: the features of at most 10,000 images in 4 views (205 MB at 1,280 features), their scores (400 MB at 1,000 classes), a few
batches of decoded images (a large one is whole in memory, one a thread), and for each image its path and its fingerprint: half a
kilobyte. From scratch, central squares of all images lie in a temporary file, read through memory mapping (a GPU holds them in its
own memory), and once the features of all images are there: two kilobytes each at 512 features.

n: images of the sample   d: features   C: classes
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fewmore.classifier import calibration as measures
from fewmore.classifier.classes import KnownClass, counted, listed
from fewmore.classifier.embedding import Embedder, Progress, LabeledImages, Stored, side, squares
from fewmore.classifier.heads import Head, Scorer
from fewmore.classifier.model_file import Calibration
from fewmore.data.augment import Transform
from fewmore.data.benchmarks import IMAGENET_MEAN, IMAGENET_STD
from fewmore.data.decode import decode_image
from fewmore.data.paths import cache_folder
from fewmore.data.images import ImageSet
from fewmore.errors import DataError
from fewmore.methods.base import Recipe
from fewmore.methods.cec import CEC
from fewmore.methods.cec import Config as CECConfig
from fewmore.nn.adapter import Adapter
from fewmore.nn.backbones import Backbone
from fewmore.random import derive_seed
from fewmore.training.runtime import Round, Runtime
from fewmore.training.pretrain import PretrainConfig
from fewmore.training.pseudo_incremental import PseudoConfig, pseudo_incremental_on_features

FEWEST = 4  # images a class, below which nothing is held out
FOLDS = 5  # parts of the sample that are held out in turn
TENTH = 10  # from scratch, one image in so many is held out
PER_CLASS, IN_ALL = 40, 10_000  # images of the sample
SHOTS = 5  # of a class that plays the new one
PLAYED = 20  # pseudo-sessions in which adapter and plain cosine compete
DIRECTIONS = 128  # that an adapter of a pretrained backbone works in
SMALL_IMAGES = 48  # pixels of the short side, up to which a network for 32 pixels is taken
QUARTERS = (0, 1, 2, 3)
ON_FEATURES = PseudoConfig(
    lr=0.02, episodes=100, milestones=(1,)
)  # of the adapter; ways and queries are the folder's


@dataclass(frozen=True, eq=False)
class Base:
    """The base classes with all their images, and the features of a sample of these."""

    classes: tuple[KnownClass, ...]
    views: Tensor  # (turns, n, d)
    labels: Tensor  # (n,)
    folds: Tensor  # (n,): which images are held out together
    notes: tuple[str, ...] = ()

    def unsampled(self) -> "Base":
        """The same without a sample: nothing is held out."""
        return replace(self, views=self.views[:, :0], labels=self.labels[:0], folds=self.folds[:0])

    @property
    def folds_in_turn(self) -> range:
        return range(int(self.folds.max()) + 1 if len(self.folds) else 0)

    def without(self, fold: int) -> list[KnownClass]:
        """The classes without the images of a fold."""
        held = self.folds == fold
        sums = torch.zeros(len(self.classes), self.views.shape[2], dtype=torch.float64)
        sums.index_add_(0, self.labels[held].cpu(), self.views[0, held].cpu().double())
        counts = torch.bincount(self.labels[held], minlength=len(self.classes)).tolist()
        return [
            KnownClass(one.name, one.feature_sum - sums[i], one.count - counts[i])
            for i, one in enumerate(self.classes)
        ]


@dataclass(frozen=True, eq=False)
class Fitted:
    """What training gives."""

    backbone: Backbone
    base: Base
    head: Head
    calibration: Calibration
    notes: tuple[str, ...]


# With a pretrained backbone


def fit_frozen(
    backbone: Backbone,
    transform: Transform,
    shown: LabeledImages,
    device: torch.device,
    seed: int,
    progress: Progress,
) -> Fitted:
    """Class means on features that are as they were published; an adapter where it earns its place."""
    embedder = Embedder(backbone, transform, device)
    generator = torch.Generator().manual_seed(derive_seed(seed, "sample"))
    sample = _sample(shown, generator) if int(shown.counts().min()) >= FEWEST else frozenset()
    base = embed(embedder, shown, sample, QUARTERS, generator, progress)
    if (
        min(one.count for one in base.classes) < FEWEST
    ):  # also where duplicates made it look like more
        base = base.unsampled()
    head = Head(device, embedder.dim, spread(base))
    if not len(base.labels):
        return Fitted(backbone, base, head, Calibration(), (*base.notes, _nothing_held_out(base)))
    adapted = train_adapter(base, head, seed, progress)
    by_plain, by_adapter = compete(base, (head, adapted), generator)
    gain = by_adapter - by_plain
    if shipped := float(gain.mean()) > float(gain.std(correction=0)) / math.sqrt(
        len(gain)
    ):  # by more than one standard error
        head = adapted
    plain, with_it = float(by_plain.mean()), float(by_adapter.mean())
    verdict = (
        f"the adapter is {'used' if shipped else 'not used'}: on pseudo-sessions of held-out images {100 * with_it:.1f} % are right "
        f"with it, {100 * plain:.1f} % by the plain cosine"
    )
    calibration = calibrate(base, head, [0] if shipped else base.folds_in_turn, generator)
    calibration = replace(calibration, sessions_plain=plain, sessions_adapted=with_it)
    return Fitted(backbone, base, head, calibration, (*base.notes, verdict))


def _nothing_held_out(base: Base) -> str:
    smallest = min(base.classes, key=lambda one: one.count)
    return (
        f"class '{smallest.name}' has {counted(smallest.count, 'image')}, fewer than {FEWEST}: nothing is held out, so confidences are "
        f"not calibrated, no image is answered with 'none of these', and there is nothing to choose an adapter by"
    )


def _sample(shown: LabeledImages, generator: Generator) -> frozenset[int]:
    """Positions of a few images of each class."""
    most = max(FEWEST, min(PER_CLASS, IN_ALL // len(shown.names)))
    return _drawn(shown, [min(most, count) for count in shown.counts().tolist()], generator)


def _drawn(shown: LabeledImages, counts: Sequence[int], generator: Generator) -> frozenset[int]:
    """Positions of so many images of each class, at random."""
    sizes = shown.counts()
    chosen: list[int] = []
    for count, size, end in zip(counts, sizes.tolist(), sizes.cumsum(0).tolist(), strict=True):
        chosen += (end - size + torch.randperm(size, generator=generator)[:count]).tolist()
    return frozenset(chosen)


def embed(
    embedder: Embedder,
    shown: LabeledImages,
    sample: frozenset[int],
    turns: Sequence[int],
    generator: Generator,
    progress: Progress,
) -> Base:
    """Every image counts in its class's mean, once however often it is there; the sample's features are kept, in all turns."""
    totals = torch.zeros(len(shown.names), embedder.dim, dtype=torch.float64)
    seen = _Seen(shown)
    views = torch.empty(len(turns), len(sample), embedder.dim, device=embedder.device)
    labels: list[int] = []
    for batch in squares(
        shown.images, shown.titles, embedder.transform, embedder.batch, hashes=True
    ):
        fresh = [
            row
            for row in range(len(batch))
            if seen.first_time(batch.start + row, batch.hashes[row])
        ]
        upright = embedder.features(batch.squares)
        for row, features in zip(fresh, upright[0, fresh].cpu().double(), strict=True):
            totals[shown.labels[batch.start + row]] += features
        kept = [row for row in fresh if batch.start + row in sample]
        if kept:
            place = slice(len(labels), len(labels) + len(kept))
            views[0, place] = upright[0, kept]
            if len(turns) > 1:
                views[1:, place] = embedder.features(batch.squares[kept], turns[1:])
            labels += [shown.labels[batch.start + row] for row in kept]
        progress("embedding images", batch.start + len(batch), len(shown))
    classes = [
        KnownClass(name, total.clone(), len(hashes), frozenset(hashes))
        for name, total, hashes in zip(shown.names, totals, seen.hashes, strict=True)
    ]
    label = torch.tensor(labels, dtype=torch.int64, device=embedder.device)
    return Base(
        tuple(classes), views[:, : len(labels)], label, _folds(label, generator), seen.notes()
    )


class _Seen:
    """Which images came before, by their fingerprints."""

    def __init__(self, shown: LabeledImages) -> None:
        self.shown = shown
        self.hashes: list[set[int]] = [set() for _ in shown.names]
        self.first_in: dict[int, int] = {}
        self.twice: list[str] = []
        self.in_two: list[str] = []

    def first_time(self, position: int, number: int) -> bool:
        """Whether an image is new to its class."""
        label = self.shown.labels[position]
        if number in self.hashes[label]:
            self.twice.append(self.shown.titles[position])
            return False
        self.hashes[label].add(number)
        other = self.first_in.setdefault(number, label)
        if other != label:
            self.in_two.append(f"{self.shown.titles[position]}, also in {self.shown.names[other]}")
        return True

    def notes(self) -> tuple[str, ...]:
        """What to say of them."""
        notes = []
        if self.twice:
            notes.append(
                f"{counted(len(self.twice), 'duplicate')} of images in the same class, not counted again: {listed(self.twice)}"
            )
        if self.in_two:
            notes.append(
                f"{counted(len(self.in_two), 'image')} in two classes: {listed(self.in_two)}"
            )
        return tuple(notes)


def _folds(labels: Tensor, generator: Generator) -> Tensor:
    """A number from 0 to 4 for each image of the sample, drawn so that each class is spread over all of them."""
    folds = torch.zeros_like(labels)
    for label in set(labels.tolist()):
        own = (labels == label).nonzero().squeeze(1)
        folds[own] = (torch.randperm(len(own), generator=generator) % FOLDS).to(labels.device)
    return folds


def spread(base: Base) -> float:
    """The squared distance of an image's features from their class's mean, measured on images that the mean does not hold."""
    squares_, images = 0.0, 0
    for fold in base.folds_in_turn:
        held, classes = base.folds == fold, base.without(fold)
        labels = base.labels[held].cpu()
        means = torch.stack([one.mean for one in classes])[labels]
        counts = torch.tensor([one.count for one in classes])[labels]
        squares_ += float(
            ((base.views[0, held].cpu().double() - means).square().sum(1) / (1 + 1 / counts)).sum()
        )
        images += len(labels)
    return squares_ / max(1, images)


# The adapter on frozen features


def train_adapter(base: Base, head: Head, seed: int, progress: Progress) -> Head:
    """An adapter that learnt from all folds but the first."""
    rest = base.folds != 0
    labels, classes = base.labels[rest], len(base.classes)
    projection = _directions(base.views[0, rest], DIRECTIONS) if head.dim > DIRECTIONS else None
    seen = (base.views if projection is None else base.views @ projection)[:, rest]
    width = seen.shape[2]
    adapter = Adapter(width, generator=Generator().manual_seed(derive_seed(seed, "adapter")))
    # It begins as the cosine of centred features: what the classes tell one another is to be learnt, not unlearnt.
    with torch.no_grad():
        for parameter in (adapter.output, adapter.bias):
            if parameter is not None:
                parameter.zero_()
    adapter = adapter.to(head.device)
    images = int(torch.bincount(labels).min())
    query = min(15, images - 1)
    way = min(15, classes)
    config = replace(ON_FEATURES, base_way=way, new_way=way, base_query=query, new_query=query)
    unseen = ImageSet.from_images(
        torch.empty(len(labels), 3, 0, 0, dtype=torch.uint8, device=head.device),
        labels,
        [one.name for one in base.classes],
    )
    pseudo_incremental_on_features(
        adapter, seen, unseen, config, _runtime(head.device, progress), seed, "training the adapter"
    )
    return replace(head, adapter=adapter.requires_grad_(False), projection=projection)


def _directions(features: Tensor, count: int) -> Tensor:
    """Orthonormal directions that keep most of the features' inner products, scaled so that attention starts out mild: (d, count)."""
    some = features[:: math.ceil(len(features) / 1000)].double().cpu()
    some = F.normalize(some, dim=1)
    vectors = torch.linalg.eigh(some @ some.T)[1]
    basis: Tensor = torch.linalg.qr(some.T @ vectors[:, -count:])[
        0
    ]  # of as many columns as there are images, where these are few
    scale = math.sqrt(math.sqrt(basis.shape[1]) / float(features.double().square().sum(1).mean()))
    return (scale * basis).float().to(features.device)


def session(base: Base, fold: int, generator: Generator) -> list[KnownClass]:
    """A pseudo-session: a fold is held out, and four classes in ten play new ones, known from five other images."""
    classes = base.without(fold)
    for label in torch.randperm(len(classes), generator=generator)[
        : max(1, round(0.4 * len(classes)))
    ].tolist():
        own = ((base.labels == label) & (base.folds != fold)).nonzero().squeeze(1)
        few = own[torch.randperm(len(own), generator=generator)[:SHOTS].to(own.device)]
        nothing = KnownClass(classes[label].name, torch.zeros_like(classes[label].total), 0)
        classes[label] = nothing.refined(base.views[0, few]) if len(few) else classes[label]
    return classes


def compete(base: Base, heads: Sequence[Head], generator: Generator) -> Tensor:
    """The share of pseudo-sessions in which each held-out image of the first fold is known by each head: (heads, images)."""
    held = base.folds == 0
    queries, labels = base.views[0, held], base.labels[held]
    right = torch.zeros(len(heads), len(labels), dtype=torch.float64)
    for _ in range(PLAYED):
        classes = session(base, 0, generator)
        for row, head in zip(right, heads, strict=True):
            row += (Scorer.of(head, classes).scores(queries).argmax(1) == labels).cpu()
    return right / PLAYED


# What held-out images say


def calibrate(base: Base, head: Head, folds: Sequence[int], generator: Generator) -> Calibration:
    """Temperature, threshold and the rest, each from images that are not in the means they are compared with.

    What comes later is known from few images, so half of the evidence is of pseudo-sessions, in which some classes are.
    """
    whole, played = _Evidence(), _Evidence()
    for fold in folds:
        held = base.folds == fold
        whole.add(Scorer.of(head, base.without(fold)), base.views[0, held], base.labels[held])
        played.add(
            Scorer.of(head, session(base, fold, generator)), base.views[0, held], base.labels[held]
        )
    scores, labels = (
        torch.cat([whole.scores, played.scores]),
        torch.cat([whole.labels, played.labels]),
    )
    temperature = measures.temperature(scores, labels)
    sure, answers = scores.softmax(1).max(1)
    calibrated = (scores / temperature).softmax(1).amax(1)
    return Calibration(
        temperature=temperature,
        threshold=measures.acceptance_threshold(
            torch.cat([whole.likeness, played.likeness]).amax(1)
        ),
        closeness=usual_closeness(base, head),
        held_out=len(whole.labels),
        accuracy=float((whole.scores.argmax(1) == whole.labels).float().mean()),
        ece_before=measures.expected_calibration_error(sure, answers == labels),
        ece_after=measures.expected_calibration_error(calibrated, answers == labels),
        auroc=auroc_of_held_out_classes(whole.likeness, whole.labels),
    )


class _Evidence:
    """Scores and likenesses of held-out images, and what is true of them."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, scorer: Scorer, features: Tensor, labels: Tensor) -> None:
        self.parts.append(
            (scorer.scores(features).cpu(), scorer.likeness(features).cpu(), labels.cpu())
        )

    @property
    def scores(self) -> Tensor:
        return torch.cat([scores for scores, _, _ in self.parts])

    @property
    def likeness(self) -> Tensor:
        return torch.cat([likeness for _, likeness, _ in self.parts])

    @property
    def labels(self) -> Tensor:
        return torch.cat([labels for _, _, labels in self.parts])


def auroc_of_held_out_classes(likeness: Tensor, labels: Tensor) -> float | None:
    """Familiarity of known images against that of images whose classes are left out, a fifth of the classes at a time."""
    classes = likeness.shape[1]
    if classes < 3:
        return None
    group = torch.arange(classes) % FOLDS
    known, unknown = [], []
    for left_out in range(min(FOLDS, classes)):
        familiar = likeness[:, group != left_out].amax(1)
        strange = group[labels] == left_out
        known.append(familiar[~strange])
        unknown.append(familiar[strange])
    return measures.auroc(torch.cat(known), torch.cat(unknown))


def usual_closeness(base: Base, head: Head) -> float | None:
    """How close 95 % of classes stay to their nearest neighbour, when they are met in five images each."""
    if len(base.classes) < 3:
        return None
    scorer, found = Scorer.of(replace(head, adapter=None), base.classes), []
    for label in range(len(base.classes)):
        few = base.views[0, base.labels == label][:SHOTS].cpu().double()
        closeness = scorer.closeness(few.mean(0), len(few))
        closeness[label] = -math.inf
        found.append(float(closeness.max()))
    return float(torch.tensor(found, dtype=torch.float64).quantile(measures.ACCEPTED))


# From scratch


def fit_from_scratch(
    recipe: Recipe | None,
    backbone: str | None,
    shown: LabeledImages,
    device: torch.device,
    seed: int,
    progress: Progress,
) -> tuple[Fitted, Recipe]:
    """Stages 1 and 2 on all images but a tenth, which is held out; by a recipe, or by one made for the folder's size."""
    counts = shown.counts()
    if int(counts.min()) < 2:
        raise DataError(
            f"class '{shown.names[int(counts.argmin())]}' has one image, and training from scratch takes at least 2 a class: "
            f"add images, or train with a pretrained backbone"
        )
    generator = torch.Generator().manual_seed(derive_seed(seed, "held out"))
    holds_out = int(counts.min()) >= FEWEST
    most = max(1, IN_ALL // len(counts))
    shares = [max(1, min(most, count // TENTH)) if holds_out else 0 for count in counts.tolist()]
    held = _drawn(shown, shares, generator)
    if recipe is None:
        chosen = backbone or ("resnet20" if _short_side(shown) <= SMALL_IMAGES else "resnet18")
        recipe = recipe_for(
            chosen, [count - share for count, share in zip(counts.tolist(), shares, strict=True)]
        )
    with _stored(shown, recipe.transform, progress) as stored:
        trained = torch.tensor([position for position in range(len(shown)) if position not in held])
        method = CEC(recipe, _runtime(device, progress), seed)
        method.fit(stored.select(trained).to(device))
        network = method.network.backbone
        squares_ = LabeledImages(shown.names, shown.labels, Stored(stored), shown.titles)
        base = embed(
            Embedder(network, recipe.transform, device), squares_, held, (0,), generator, progress
        )
    head = Head(device, network.dim, spread(base), method.adapter.requires_grad_(False))
    if not len(base.labels):
        return Fitted(
            network, base, head, Calibration(), (*base.notes, _nothing_held_out(base))
        ), recipe
    return Fitted(
        network, base, head, calibrate(base, head, base.folds_in_turn, generator), base.notes
    ), recipe


def recipe_for(backbone: str, counts: Sequence[int]) -> Recipe:
    """Settings for as many images a class: stage 2 sees about half as many images as stage 1."""
    images = sum(counts)
    batch = 128 if images >= 4000 else min(32, images)
    pretrain = PretrainConfig(epochs=100, batch=batch, lr=0.1 * batch / 128, milestones=(60, 80))
    way, query = min(15, len(counts)), min(15, min(counts) - 1)
    small = backbone in ("resnet8", "resnet20")
    episodes = min(5000, max(50, images * pretrain.epochs // (4 * way * (1 + query))))
    pseudo = PseudoConfig(
        episodes=episodes,
        milestones=tuple(round(episodes / 50 * share) for share in (0.2, 0.4, 0.6, 0.8)),
        base_way=way,
        new_way=way,
        base_query=query,
        new_query=query,
        encoder_lr=0.002 if small else 0.0002,
    )
    return Recipe(
        "practice",
        backbone,
        transform_for(backbone, pretrained=False),
        None,
        pretrain,
        CECConfig(pseudo),
    )


def transform_for(backbone: str, pretrained: bool) -> Transform:
    """The size that a backbone was made for."""
    if backbone in ("resnet8", "resnet20"):
        return Transform(32, IMAGENET_MEAN, IMAGENET_STD, "pad")
    if backbone == "resnet18" and not pretrained:
        return Transform(84, IMAGENET_MEAN, IMAGENET_STD, "resized", resize=92)
    return Transform(224, IMAGENET_MEAN, IMAGENET_STD, "resized", resize=256)


def _short_side(shown: LabeledImages) -> int:
    """Of an image in the middle: one of each class is looked at, of twenty classes at most."""
    firsts = {label: position for position, label in reversed(list(enumerate(shown.labels)))}
    positions = list(firsts.values())[:20]
    sides = sorted(
        min(decode_image(shown.images[position], shown.titles[position]).shape[1:])
        for position in positions
    )
    return sides[len(sides) // 2]


@contextmanager
def _stored(shown: LabeledImages, transform: Transform, progress: Progress) -> Iterator[ImageSet]:
    """All images' squares in a temporary file, read through memory mapping."""
    goal = side(transform)
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=cache_folder()) as file:
        pixels = np.memmap(file, np.uint8, "w+", shape=(len(shown), 3, goal, goal))
        for batch in squares(shown.images, shown.titles, transform, 64):
            pixels[batch.start : batch.start + len(batch)] = batch.squares.numpy()
            progress("decoding images", batch.start + len(batch), len(shown))
        yield ImageSet.from_images(torch.from_numpy(pixels), shown.labels, shown.names)


def _runtime(device: torch.device, progress: Progress) -> Runtime:
    def on_round(report: Round) -> None:
        progress(report.stage, report.round, report.rounds)

    return Runtime(device, on_round=on_round)
