"""Check a trained classifier: confused classes, learnt images that hurt, gains from more photos.

A model file has the sums of its classes' features and no images, so most is measured on photos
given beside it. The model predicts those that it has not learnt. A learnt one, which its head may
have been trained on, is compared with plain class means instead, its own class without itself.
"""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from fewmore.classifier.checking.curves import find_gains
from fewmore.classifier.checking.findings import CheckResult, Finding, in_order
from fewmore.classifier.checking.folder import Comparison, check_measured
from fewmore.classifier.checking.labels import BLOCK, LeaveOneOut
from fewmore.classifier.checking.measure import Measured, measure
from fewmore.classifier.classes import KnownClass
from fewmore.classifier.embedding import Progress, no_progress
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.fitting.base import MIN_IMAGES
from fewmore.classifier.inputs import ImagesByClass, collect_images
from fewmore.classifier.text import count_noun, join_names
from fewmore.errors import DataError

MIN_CONFUSED = 0.1  # share of a class's photos that are taken for another class
OUTLIER = 4.0  # standard deviations below the usual similarity to the own class
MAX_OUTLIERS = 0.03  # share of the photos that is named at most


def check_model(
    classifier: IncrementalClassifier,
    images: ImagesByClass | None = None,
    progress: Progress | None = None,
) -> CheckResult:
    """Find confused classes, and with photos also images that hurt and classes that need more.

    The photos may be those that were learnt, others, or both.
    """
    if images is None:
        return _check_means(classifier)
    progress = progress or no_progress
    source = collect_images(images)
    names = classifier.names
    if unknown := [name for name in source.names if name not in names]:
        raise DataError(
            f"the model has no class {join_names(unknown)}: leave such folders out, or learn them "
            "first; without the model any folder can be checked"
        )
    measured = measure(source, classifier.embedder, progress)
    compared = Comparison.of(measured)
    folder = check_measured(measured, classifier.embedder.transform.size, compared)
    if not len(measured):
        return folder
    photos = _Photos.of(measured, compared, classifier)
    named = {position for finding in folder.findings for position in finding.positions}
    counted = compared.counted
    learnt = {known.name: known.count for known in photos.classes}
    findings = [
        *folder.findings,
        *_outliers(photos, named),
        *_confused(photos),
        *find_gains(measured.features[counted], measured.labels[counted], source.names, learnt),
    ]
    notes = [*folder.notes, *_accuracies(photos)]
    return CheckResult(in_order(findings), folder.class_counts, tuple(notes), source)


def _check_means(classifier: IncrementalClassifier) -> CheckResult:
    """Check what the model file says by itself: close classes, and classes of few images."""
    scorer = classifier.scorer
    limit = classifier.calibration.closeness
    close = []
    closeness = [scorer.closeness(known.mean, known.count) for known in scorer.classes]
    for (a, one), (b, other) in combinations(enumerate(scorer.classes), 2):
        value = float(max(closeness[a][b], closeness[b][a]))
        if limit is not None and value > limit:
            message = f"{one.name} and {other.name}: their means have a similarity of {value:.3f}"
            details = {"similarity": value}
            classes = (one.name, other.name)
            close.append(Finding("confused", message, classes=classes, details=details))
    close.sort(key=lambda finding: -float(finding.details["similarity"]))
    few = [
        Finding(
            "too few",
            f"learnt from {count_noun(known.count, 'photo')}",
            classes=(known.name,),
            details={"photos": known.count},
        )
        for known in sorted(scorer.classes, key=lambda known: known.count)
        if known.count < MIN_IMAGES
    ]
    note = "give photos too, and mistakes, images that hurt and gains from more photos are measured"
    counts = {known.name: known.count for known in scorer.classes}
    return CheckResult(in_order([*close, *few]), counts, (note,))


@dataclass(frozen=True, eq=False)
class _Photos:
    """Hold photos of known classes, n of them, with predictions as if none had been learnt."""

    measured: Measured
    classes: tuple[KnownClass, ...]
    labels: Tensor  # (n,): positions of their classes in the model
    learnt: Tensor  # (n,) bool
    judged: Tensor  # (n,) bool: learnt, and compared with class means without themselves
    predicted: Tensor  # (n,): positions of classes
    left_out: LeaveOneOut | None

    @classmethod
    def of(
        cls, measured: Measured, compared: Comparison, classifier: IncrementalClassifier
    ) -> "_Photos":
        """Predict photos that were not learnt, and compare learnt ones with plain class means."""
        scorer = classifier.scorer
        classes = scorer.classes
        position_of = {known.name: position for position, known in enumerate(classes)}
        label_of = torch.tensor([position_of[name] for name in measured.source.names])
        labels = label_of[measured.labels]
        learnt = torch.tensor(
            [
                digest in classes[label].hashes
                for label, digest in zip(labels.tolist(), measured.hashes, strict=True)
            ]
        )
        predicted = torch.cat(
            [_predict(classifier, part) for part in torch.split(measured.features, BLOCK)]
        )
        judged = torch.zeros_like(learnt)
        if (result := compared.left_out) is not None:
            judged = learnt & result.judged
            plain = torch.where(result.other > result.own, label_of[result.nearest], labels)
            predicted = torch.where(judged, plain, predicted)
        return cls(measured, classes, labels, learnt, judged, predicted, result)

    @property
    def usable(self) -> Tensor:
        """Return which photos are predicted as if they had not been learnt, (n,) bool."""
        return ~self.learnt | self.judged


def _predict(classifier: IncrementalClassifier, features: Tensor) -> Tensor:
    """Return the positions of the classes that the model predicts from a backbone's features."""
    embedder = classifier.embedder
    whitened = embedder.whiten(features.to(embedder.device))
    return classifier.scorer.scores(whitened).argmax(1).cpu()


def _confused(photos: _Photos) -> list[Finding]:
    """Name pairs of classes of which one is often taken for the other, the worst first."""
    names = [known.name for known in photos.classes]
    usable = photos.usable
    totals = torch.bincount(photos.labels[usable], minlength=len(names)).tolist()
    wrong = (usable & (photos.predicted != photos.labels)).nonzero().squeeze(1).tolist()
    pairs = Counter((int(photos.labels[i]), int(photos.predicted[i])) for i in wrong)
    findings = []
    for a, b in sorted({tuple(sorted(pair)) for pair in pairs}):
        # One class taken for the other, and the other way round: the more frequent one first.
        directions = [pair for pair in ((a, b), (b, a)) if pairs[pair]]
        directions.sort(key=lambda pair: -pairs[pair])
        mistakes = sum(pairs[pair] for pair in directions)
        share = max(pairs[true, taken] / totals[true] for true, taken in directions)
        if mistakes < 2 or share < MIN_CONFUSED:
            continue
        message = "; ".join(
            f"{names[true]} taken for {names[taken]}: {pairs[true, taken]} of {totals[true]} photos"
            for true, taken in directions
        )
        indices = [i for i in wrong if {int(photos.labels[i]), int(photos.predicted[i])} == {a, b}]
        true, taken = directions[0]
        findings.append(
            Finding(
                "confused",
                message,
                tuple(photos.measured.title(i) for i in indices),
                (names[true], names[taken]),
                tuple(photos.measured.positions[i] for i in indices),
                {"mistakes": mistakes, "share": share},
            )
        )
    return sorted(findings, key=lambda finding: -float(finding.details["share"]))


def _outliers(photos: _Photos, named: set[int]) -> list[Finding]:
    """Name learnt images far from the rest of their class that no other finding names."""
    measured = photos.measured
    judged = photos.judged
    if photos.left_out is None or not bool(judged.any()):
        return []
    own = photos.left_out.own
    usual = torch.zeros(len(photos.classes))
    for label in set(photos.labels[judged].tolist()):
        usual[label] = own[judged & (photos.labels == label)].median()
    below = usual[photos.labels] - own
    deviation = 1.4826 * below[judged].abs().median()
    below = below.masked_fill(~judged, -math.inf)
    most = math.ceil(MAX_OUTLIERS * int(judged.sum()))
    findings = []
    for index in below.argsort(descending=True)[:most].tolist():
        if below[index] <= OUTLIER * deviation:
            break
        position = measured.positions[index]
        if position in named:
            continue
        name = measured.name(index)
        similarity, typical = float(own[index]), float(usual[photos.labels[index]])
        message = f"similarity {similarity:.2f} to the rest of {name}; {typical:.2f} is usual there"
        details = {"own": similarity, "usual": typical}
        title = measured.title(index)
        findings.append(Finding("pulls away", message, (title,), (name,), (position,), details))
    return findings


def _accuracies(photos: _Photos) -> list[str]:
    """Say how many photos are right, learnt ones and others."""
    right = photos.predicted == photos.labels
    notes = []
    for some, how in (
        (~photos.learnt, "photos that were not learnt are predicted right"),
        (photos.judged, "learnt photos are closest to the mean of their class without themselves"),
    ):
        if bool(some.any()):
            share = 100 * float(right[some].float().mean())
            notes.append(f"{share:.1f} % of {int(some.sum()):,} {how}")
    if left := int((~photos.usable).sum()):
        notes.append(
            f"{count_noun(left, 'learnt photo')} left out there: copies, or fewer than "
            f"{MIN_IMAGES} photos given of the class, or of every other one"
        )
    return notes
