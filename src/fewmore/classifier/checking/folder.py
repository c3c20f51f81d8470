"""Check labelled photos before training."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from fewmore.classifier.checking.copies import BLANK, group_copies, without_copies
from fewmore.classifier.checking.findings import CheckResult, Finding, in_order
from fewmore.classifier.checking.labels import LeaveOneOut, find_mislabelled, leave_one_out
from fewmore.classifier.checking.measure import Measured, measure
from fewmore.classifier.classes import name_notes
from fewmore.classifier.embedding import Progress, no_progress
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.fitting.base import MIN_IMAGES
from fewmore.classifier.inputs import (
    ImagesByClass,
    LabeledImages,
    collect_images,
    sub_folders,
)
from fewmore.classifier.text import count_noun, join_names
from fewmore.errors import DownloadError

# An image may be blurred if the variance of its Laplacian is below BLURRED and, in logarithms, so
# many standard deviations below that of the usual image.
BLURRED = 100.0
BLURRED_BELOW = 4.0
ENLARGED = 2  # an image that must be enlarged more is tiny


def check_folder(
    images: ImagesByClass,
    classifier: IncrementalClassifier | None = None,
    progress: Progress | None = None,
) -> CheckResult:
    """Find images that hurt and classes with too few, in a folder as `fit` takes it.

    Broken files, copies within and across classes (re-saved and resized ones too), images that are
    probably in the wrong class, tiny and blurred ones. Each image is read and embedded once, by the
    backbone of the classifier given, which need not be fitted: `IncrementalClassifier("resnet18")`.
    """
    progress = progress or no_progress
    source = collect_images(images, skip_empty=True)
    try:
        embedder = (classifier or IncrementalClassifier()).build_embedder(progress)
    except DownloadError as error:  # which advises to train from scratch: no help here
        raise error.__cause__ or error from None
    measured = measure(source, embedder, progress)
    result = check_measured(measured, embedder.transform.size)
    findings = [*_empty(source), *_nested(images, source), *result.findings]
    counts = {**result.class_counts, **{name: 0 for name, _ in source.empty}}
    return replace(result, findings=in_order(findings), class_counts=counts)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Hold measured images compared with one another, n of them."""

    groups: list[list[int]]  # of copies
    counted: Tensor  # (n,) bool: False for copies
    left_out: LeaveOneOut | None

    @classmethod
    def of(cls, measured: Measured) -> "Comparison":
        """Find copies, and compare each image with the classes without it."""
        groups = group_copies(measured)
        counted = without_copies(measured, groups)
        classes = len(measured.source.names)
        left_out = leave_one_out(measured.features, measured.labels, counted, classes)
        return cls(groups, counted, left_out)


def check_measured(
    measured: Measured, size: int, compared: Comparison | None = None
) -> CheckResult:
    """Return all findings on measured images, for a backbone that takes images of this size."""
    source = measured.source
    compared = compared or Comparison.of(measured)
    mislabelled, notes = _mislabelled(measured, compared.left_out)
    findings = [
        *_broken(measured),
        *_copies(measured, compared.groups, compared.left_out),
        *mislabelled,
        *_too_few(measured, compared.groups),
        *_quality(measured, size),
    ]
    counts = dict(zip(source.names, measured.counts().tolist(), strict=True))
    notes = [*source.notes, *name_notes(source.names, ()), *notes]
    return CheckResult(in_order(findings), counts, tuple(notes), source)


def _empty(source: LabeledImages) -> list[Finding]:
    return [
        Finding("empty", f"no photos ({content})", classes=(name,))
        for name, content in source.empty
    ]


def _nested(images: ImagesByClass, source: LabeledImages) -> list[Finding]:
    """Name classes all of whose photos are in several sub-folders, which may be the classes."""
    if not isinstance(images, (str, Path)) or not Path(images).expanduser().is_dir():
        return []
    return [
        Finding(
            "sub-folders",
            f"all photos are in {len(folders)} sub-folders: {join_names(folders)}",
            classes=(name,),
        )
        for name, found in sub_folders(Path(images), source).items()
        if len(folders := sorted(found)) > 1 and "" not in found
    ]


def _broken(measured: Measured) -> list[Finding]:
    source = measured.source
    return [
        Finding(
            "broken",
            reason.removesuffix(": replace it, or leave it out"),
            (source.titles[position],),
            (source.names[source.labels[position]],),
            (position,),
        )
        for position, reason in measured.broken.items()
    ]


def _finding(
    measured: Measured, kind: str, message: str, *indices: int, **details: object
) -> Finding:
    return Finding(
        kind,
        message,
        tuple(measured.title(index) for index in indices),
        tuple(dict.fromkeys(measured.name(index) for index in indices)),
        tuple(measured.positions[index] for index in indices),
        details,
    )


def _copies(
    measured: Measured, groups: list[list[int]], result: LeaveOneOut | None
) -> list[Finding]:
    findings = []
    for group in groups:
        exact = len({measured.hashes[index] for index in group}) == 1
        how = "the same pixels" if exact else "re-saved or resized"
        names = list(dict.fromkeys(measured.name(index) for index in group))
        if len(names) == 1:
            message = f"{len(group)} copies of one photo in {names[0]}, {how}"
            findings.append(_finding(measured, "duplicate", message, *group, exact=exact))
            continue
        message = f"in {' and in '.join(names)}, {how}"
        if result is not None:
            closest = max(group, key=lambda index: float(result.own[index]))
            message += f"; it looks more like {measured.name(closest)}"
        findings.append(_finding(measured, "two classes", message, *group, exact=exact))
    return findings


def _mislabelled(measured: Measured, result: LeaveOneOut | None) -> tuple[list[Finding], list[str]]:
    """Name images that are probably in the wrong class, and note how many less clear ones exist."""
    if result is None:
        return [], []
    findings = []
    named, more = find_mislabelled(result, measured.labels)
    for index in named:
        own, other = float(result.own[index]), float(result.other[index])
        nearest = measured.source.names[int(result.nearest[index])]
        message = f"looks like {nearest} ({other:.2f}), not {measured.name(index)} ({own:.2f})"
        finding = _finding(
            measured, "mislabelled", message, index, looks_like=nearest, own=own, other=other
        )
        findings.append(finding)
    note = f"{count_noun(more, 'photo')} less clearly in the wrong class: mend these, check again"
    return findings, [note] if more else []


def _too_few(measured: Measured, groups: list[list[int]]) -> list[Finding]:
    """Name classes with too few different images to hold any out."""
    counts = measured.counts().tolist()
    for group in groups:
        labels = [int(measured.labels[index]) for index in group]
        for label in set(labels):
            counts[label] -= labels.count(label) - 1
    return [
        Finding(
            "too few",
            f"{count_noun(count, 'photo')}; {MIN_IMAGES} are the least to hold some out, twenty "
            "are good",
            classes=(name,),
            details={"photos": count},
        )
        for name, count in sorted(
            zip(measured.source.names, counts, strict=True), key=lambda item: item[1]
        )
        if count < MIN_IMAGES
    ]


def _quality(measured: Measured, size: int) -> list[Finding]:
    """Name images that are blank, tiny or blurred; each for the first of these reasons."""
    if not len(measured):
        return []
    logarithms = measured.sharpness.clamp(min=1e-3).log()
    median = logarithms.median()
    deviation = 1.4826 * (logarithms - median).abs().median()
    limit = min(math.log(BLURRED), float(median - BLURRED_BELOW * deviation))
    findings = []
    for index in range(len(measured)):
        side = int(measured.short_sides[index])
        if measured.contrast[index] < BLANK:
            findings.append(_finding(measured, "blank", "hardly any contrast", index))
        elif ENLARGED * side < size:
            message = f"{side} pixels; the network looks at {size}"
            findings.append(_finding(measured, "tiny", message, index, short_side=side))
        elif logarithms[index] < limit:
            sharpness = float(measured.sharpness[index])
            message = f"sharpness {sharpness:.1f}; usual here: {float(median.exp()):.1f}"
            findings.append(_finding(measured, "blurred", message, index, sharpness=sharpness))
    return findings
