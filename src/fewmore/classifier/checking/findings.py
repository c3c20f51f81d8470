"""Hold what a check finds, and say what to do about it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fewmore.classifier.inputs import LabeledImages


@dataclass(frozen=True)
class Kind:
    """Describe findings of one kind."""

    title: str
    advice: str  # what to do


# The most important first.
KINDS = {
    "broken": Kind("Cannot be read", "Replace these files, or delete them."),
    "empty": Kind("Class folders without photos", "Put photos into them, or remove them."),
    "sub-folders": Kind(
        "Sub-folders count as one class",
        "If they are the classes, move them up, or give the folder that they are in.",
    ),
    "two classes": Kind(
        "One photo in two classes", "Keep it in the class that it shows; delete the other copy."
    ),
    "mislabelled": Kind(
        "Probably in the wrong class",
        "Look at each; move it if its class is wrong. Some may be right and merely unusual.",
    ),
    "pulls away": Kind(
        "Learnt, and unlike the rest of its class",
        "If such a photo is wrong, delete it and train again: it shifts the mean of its class.",
    ),
    "confused": Kind(
        "Classes that are confused", "Add photos of both that show how they differ, or merge them."
    ),
    "more photos": Kind(
        "Classes that would gain from more photos", "Add photos here first: the largest gain."
    ),
    "duplicate": Kind(
        "Copies within a class", "Keep one of each: a copy adds nothing and counts twice."
    ),
    "too few": Kind("Too few photos", "Add photos of these classes."),
    "blank": Kind("Almost one color", "Delete them, unless the class looks like that."),
    "tiny": Kind("Tiny", "Replace them by larger ones: they are enlarged more than twice."),
    "blurred": Kind("Blurred", "Replace them, unless the photos to predict are blurred too."),
}


@dataclass(frozen=True)
class Finding:
    """Hold one finding: its kind, the images and classes it concerns, and a sentence."""

    kind: str  # a key of KINDS
    message: str
    images: tuple[str, ...] = ()  # paths, or titles of images that are no files
    classes: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()  # of the images in `CheckResult.source`
    details: dict[str, Any] = field(default_factory=dict)  # numbers behind the message

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "kind": self.kind,
            "message": self.message,
            "images": list(self.images),
            "classes": list(self.classes),
            **self.details,
        }


@dataclass(frozen=True, eq=False)
class CheckResult:
    """Hold all findings, the most important first."""

    findings: tuple[Finding, ...]
    class_counts: dict[str, int]  # images of each class that can be read
    notes: tuple[str, ...] = ()
    source: LabeledImages | None = None  # the images that were checked

    @property
    def images(self) -> int:
        """Return the number of images that can be read."""
        return sum(self.class_counts.values())

    def of_kind(self, kind: str) -> list[Finding]:
        """Return the findings of one kind."""
        return [finding for finding in self.findings if finding.kind == kind]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "images": self.images,
            "classes": dict(self.class_counts),
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.notes),
        }


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Order findings by the importance of their kinds; within a kind they stay in their order."""
    order = list(KINDS)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.kind)))
