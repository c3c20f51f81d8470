"""Check a trained classifier: confused classes, learnt images that hurt, gains from more photos.

A model file has the sums of its classes' features and no images. With photos beside it, each one is
predicted as if it had not been learnt: its features are taken off its class first, which is exact.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.classifier.checking.copies import group_copies, without_copies
from fewmore.classifier.checking.curves import find_gains
from fewmore.classifier.checking.findings import CheckResult, Finding, in_order
from fewmore.classifier.checking.folder import check_measured
from fewmore.classifier.checking.measure import Measured, measure
from fewmore.classifier.classes import KnownClass
from fewmore.classifier.embedding import Progress
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.fitting.base import MIN_IMAGES
from fewmore.classifier.heads import Scorer
from fewmore.classifier.inputs import ImagesByClass, collect_images
from fewmore.classifier.text import count_noun, join_names
from fewmore.errors import DataError

MIN_CONFUSED = 0.1  # share of a class's photos that are taken for another class
OUTLIER = 4.0  # standard deviations below the usual similarity to the own class
MAX_OUTLIERS = 0.03  # share of the photos


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
    progress = progress or (lambda stage, done, total: None)
    source = collect_images(images)
    names = classifier.classes_
    if unknown := [name for name in source.names if name not in names]:
        raise DataError(
            f"the model has no class {join_names(unknown)}: leave such folders out, or learn them "
            "first; without the model any folder can be checked"
        )
    measured = measure(source, classifier.embedder, progress)
    folder = check_measured(measured, classifier.embedder.transform.size)
    if not len(measured):
        return folder
    photos = _Photos.of(measured, classifier)
    named = {position for finding in folder.findings for position in finding.positions}
    findings = [
        *folder.findings,
        *_outliers(photos, named),
        *_confused(photos),
        *find_gains(photos.scorer, photos.features, photos.labels, photos.counted, progress),
    ]
    notes = [*folder.notes, _measured_on(photos)]
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
            f"{known.name} was learnt from {count_noun(known.count, 'photo')}",
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
    scorer: Scorer
    features: Tensor  # (n, d)
    labels: Tensor  # (n,): positions of their classes in the model
    learnt: Tensor  # (n,) bool
    counted: Tensor  # (n,) bool: False for copies
    predicted: Tensor  # (n,): positions of classes; -1 for the only image of its class
    own: Tensor  # (n,): cosine to the own class without the image

    @classmethod
    def of(cls, measured: Measured, classifier: IncrementalClassifier) -> "_Photos":
        scorer = classifier.scorer
        names = classifier.classes_
        label_of = torch.tensor([names.index(name) for name in measured.source.names])
        labels = label_of[measured.labels]
        device = classifier.embedder.device
        features = measured.features.to(device)
        predicted = torch.cat(
            [scorer.scores(part).argmax(1).cpu() for part in torch.split(features, 256)]
        )
        learnt = torch.zeros(len(labels), dtype=torch.bool)
        own = torch.zeros(len(labels))
        for index, label in enumerate(labels.tolist()):
            known = scorer.classes[label]
            mean = known.mean
            if measured.hashes[index] in known.hashes:
                learnt[index] = True
                if known.count == 1:
                    predicted[index] = -1
                    continue
                known = _without(known, measured.features[index], measured.hashes[index])
                classes = (*scorer.classes[:label], known, *scorer.classes[label + 1 :])
                scores = scorer.with_classes(classes).scores(features[index : index + 1])
                predicted[index] = int(scores.argmax())
                mean = known.mean
            own[index] = F.cosine_similarity(measured.features[index], mean.float(), dim=0)
        counted = without_copies(measured, group_copies(measured))
        return cls(measured, scorer, features, labels, learnt, counted, predicted, own)


def _without(known: KnownClass, feature: Tensor, digest: int) -> KnownClass:
    """Return a class without one of its images."""
    return replace(
        known,
        feature_sum=known.feature_sum - feature.double(),
        count=known.count - 1,
        hashes=known.hashes - {digest},
    )


def _confused(photos: _Photos) -> list[Finding]:
    """Name pairs of classes of which one is often taken for the other, the worst first."""
    names = [known.name for known in photos.scorer.classes]
    tested = photos.predicted >= 0
    totals = torch.bincount(photos.labels[tested], minlength=len(names)).tolist()
    wrong = (tested & (photos.predicted != photos.labels)).nonzero().squeeze(1).tolist()
    pairs = Counter((int(photos.labels[i]), int(photos.predicted[i])) for i in wrong)
    findings = []
    for a, b in sorted({tuple(sorted(pair)) for pair in pairs}):
        shares = [pairs[pair] / totals[pair[0]] for pair in ((a, b), (b, a)) if pairs[pair]]
        mistakes = pairs[a, b] + pairs[b, a]
        if mistakes < 2 or max(shares) < MIN_CONFUSED:
            continue
        first, second = ((a, b), (b, a)) if pairs[a, b] >= pairs[b, a] else ((b, a), (a, b))
        message = "; ".join(
            f"{names[true]} taken for {names[taken]}: {pairs[true, taken]} of {totals[true]} photos"
            for true, taken in (first, second)
            if pairs[true, taken]
        )
        indices = [i for i in wrong if {int(photos.labels[i]), int(photos.predicted[i])} == {a, b}]
        findings.append(
            Finding(
                "confused",
                message,
                tuple(photos.measured.title(i) for i in indices),
                (names[first[0]], names[first[1]]),
                tuple(photos.measured.positions[i] for i in indices),
                {"mistakes": mistakes, "share": max(shares)},
            )
        )
    return sorted(findings, key=lambda finding: -float(finding.details["share"]))


def _outliers(photos: _Photos, named: set[int]) -> list[Finding]:
    """Name learnt images far from the rest of their class that no other finding names."""
    counts = torch.tensor([known.count for known in photos.scorer.classes])
    judged = photos.learnt & (counts[photos.labels] >= MIN_IMAGES)
    if not bool(judged.any()):
        return []
    usual = torch.zeros(len(counts))
    for label in set(photos.labels[judged].tolist()):
        usual[label] = photos.own[judged & (photos.labels == label)].median()
    below = usual[photos.labels] - photos.own
    deviation = 1.4826 * below[judged].abs().median()
    below = below.masked_fill(~judged, -math.inf)
    most = math.ceil(MAX_OUTLIERS * int(judged.sum()))
    findings = []
    for index in below.argsort(descending=True)[:most].tolist():
        position = photos.measured.positions[index]
        if below[index] <= OUTLIER * deviation:
            break
        if position not in named:
            own, typical = float(photos.own[index]), float(usual[photos.labels[index]])
            name = photos.measured.name(index)
            findings.append(
                Finding(
                    "pulls away",
                    f"similarity {own:.2f} to the rest of {name}, where {typical:.2f} is usual",
                    (photos.measured.title(index),),
                    (name,),
                    (position,),
                    {"own": own, "usual": typical},
                )
            )
    return findings


def _measured_on(photos: _Photos) -> str:
    tested = photos.predicted >= 0
    accuracy = float((photos.predicted == photos.labels)[tested].float().mean())
    learnt = count_noun(int(photos.learnt.sum()), "learnt photo")
    return (
        f"{100 * accuracy:.1f} % of {int(tested.sum()):,} photos are predicted right; "
        f"{learnt} among them, each as if it had not been learnt"
    )
