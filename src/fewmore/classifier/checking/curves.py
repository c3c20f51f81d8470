"""Estimate how much more photos of a class would help, from learning curves.

A class is learnt from 1, 2, 4, … of the photos given, drawn several times, beside the means of the
other classes; the rest of its photos are predicted. Plain class means do it, not the head of a
trained model: its trained parts may have seen these photos. The gain from twice as many photos is
fitted to the last points of the curve, and continued.

n: photos   C: classes   d: features
"""

import math

import torch
from torch import Tensor

from fewmore.classifier.checking.findings import Finding
from fewmore.classifier.checking.labels import even_out
from fewmore.classifier.fitting.base import MIN_IMAGES
from fewmore.classifier.text import count_noun

DRAWS = 20  # random choices of the photos to learn, for each point of a curve
MIN_QUERIES = 2  # photos that are left to predict
FITTED = 3  # points at the end of a curve that its slope is fitted to
MIN_GAIN = 0.02  # of accuracy by twice as many photos; a class with less is not named

Curve = dict[int, float]  # accuracy by shots


def find_gains(
    features: Tensor, labels: Tensor, names: tuple[str, ...], learnt: dict[str, int]
) -> list[Finding]:
    """Name the classes that would gain from more photos than were learnt, the largest gain first.

    The photos (n, d) of each class in `names` are given without copies.
    """
    findings = []
    for label, curve in learning_curves(even_out(features), labels, len(names)).items():
        name = names[label]
        count = learnt[name]
        twice = gain_of_doubling(curve)
        if twice < MIN_GAIN:
            continue
        one_more = twice * math.log2((count + 1) / count)
        message = (
            f"{count_noun(count, 'photo')}; one more adds about {100 * one_more:.1f} points, "
            f"twice as many {100 * twice:.0f}"
        )
        details = {
            "photos": count,
            "one_more": one_more,
            "twice_as_many": twice,
            "curve": {str(shots): share for shots, share in curve.items()},
        }
        findings.append(Finding("more photos", message, classes=(name,), details=details))
    return sorted(findings, key=lambda finding: -float(finding.details["one_more"]))


def learning_curves(units: Tensor, labels: Tensor, classes: int) -> dict[int, Curve]:
    """Return the accuracy of each class by the number of its photos, for classes with enough."""
    counts = torch.bincount(labels, minlength=classes)
    means = torch.zeros(classes, units.shape[1]).index_add_(0, labels, units)
    norms = means.norm(dim=1, keepdim=True).clamp(min=1e-12)
    # Of few photos the mean is longer by chance: all are divided by the length of the whole mean.
    lengths = norms.squeeze(1) / counts.clamp(min=1)
    prototypes = means / norms
    generator = torch.Generator().manual_seed(0)
    curves = {}
    for label in (counts >= MIN_IMAGES).nonzero().squeeze(1).tolist():
        photos = units[labels == label]
        cosines = photos @ prototypes.T
        cosines[:, (counts == 0).nonzero().squeeze(1)] = -1
        cosines[:, label] = -1
        others = cosines.amax(1)
        curve = {}
        shots = 1
        while shots <= len(photos) - MIN_QUERIES:
            right = 0.0
            for _ in range(DRAWS):
                order = torch.randperm(len(photos), generator=generator)
                prototype = photos[order[:shots]].mean(0) / lengths[label]
                queries = order[shots:]
                right += float((photos[queries] @ prototype > others[queries]).float().mean())
            curve[shots] = right / DRAWS
            shots *= 2
        if len(curve) > 1:
            curves[label] = curve
    return curves


def gain_of_doubling(curve: Curve) -> float:
    """Return what a doubling of the shots adds to the accuracy, by the last points of the curve."""
    last = list(curve.values())[-FITTED:]
    doublings = torch.arange(len(last), dtype=torch.float64)
    centered = doublings - doublings.mean()
    slope = float((centered * torch.tensor(last)).sum() / centered.square().sum())
    return min(slope, 1 - last[-1])
