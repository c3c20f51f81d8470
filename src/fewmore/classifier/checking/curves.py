"""Estimate how much more photos of a class would help, from learning curves.

A class is learnt from 1, 2, 4, … of its photos, drawn several times, beside the other classes as
they are; the rest of its photos are predicted. The error falls about as a + b / shots, which is
fitted to these points and continued.
"""

import torch
from torch import Tensor

from fewmore.classifier.checking.findings import Finding
from fewmore.classifier.classes import empty_class
from fewmore.classifier.embedding import Progress
from fewmore.classifier.fitting.base import MIN_IMAGES
from fewmore.classifier.heads import Scorer
from fewmore.classifier.text import count_noun

DRAWS = 10  # of the shots, at most
MAX_DRAWS = 3000  # of all classes together, about
MIN_QUERIES = 2  # photos left to predict
MIN_GAIN = 0.01  # of twice as many photos, below which a class is not named

Curve = dict[int, float]  # accuracy by shots


def find_gains(
    scorer: Scorer, features: Tensor, labels: Tensor, counted: Tensor, progress: Progress
) -> list[Finding]:
    """Name the classes that would gain from more photos, the largest gain first."""
    generator = torch.Generator().manual_seed(0)
    present = sorted(set(labels[counted].tolist()))
    draws = max(2, min(DRAWS, MAX_DRAWS // (5 * len(present)))) if present else 0
    findings = []
    for number, label in enumerate(present, 1):
        photos = features[(counted & (labels == label)).to(features.device)]
        if len(photos) >= MIN_IMAGES and len(scorer) > 1:
            curve = learning_curve(scorer, label, photos, draws, generator)
            findings += _finding(scorer, label, curve)
        progress("learning curves", number, len(present))
    return sorted(findings, key=lambda finding: -float(finding.details["one_more"]))


def learning_curve(
    scorer: Scorer, label: int, photos: Tensor, draws: int, generator: torch.Generator
) -> Curve:
    """Return the accuracy on a class's other photos when it is learnt from 1, 2, 4, … of them."""
    name = scorer.classes[label].name
    curve = {}
    shots = 1
    while shots <= len(photos) - MIN_QUERIES:
        correct = 0.0
        for _ in range(draws):
            order = torch.randperm(len(photos), generator=generator).to(photos.device)
            few = empty_class(name, photos.shape[1]).with_images(photos[order[:shots]])
            classes = (*scorer.classes[:label], few, *scorer.classes[label + 1 :])
            predicted = scorer.with_classes(classes).scores(photos[order[shots:]]).argmax(1)
            correct += float((predicted == label).float().mean())
        curve[shots] = correct / draws
        shots *= 2
    return curve


def _finding(scorer: Scorer, label: int, curve: Curve) -> list[Finding]:
    known = scorer.classes[label]
    if len(curve) < 2:
        return []
    slope = fitted_slope(curve)
    if slope / (2 * known.count) < MIN_GAIN:
        return []
    one_more = slope / known.count - slope / (known.count + 1)
    twice = slope / (2 * known.count)
    points = ", ".join(f"{shots}: {100 * accuracy:.0f} %" for shots, accuracy in curve.items())
    message = (
        f"{known.name}, learnt from {count_noun(known.count, 'photo')}: one more adds about "
        f"{100 * one_more:.1f} points, twice as many {100 * twice:.0f} "
        f"(right by number of photos: {points})"
    )
    details = {
        "photos": known.count,
        "one_more": one_more,
        "twice_as_many": twice,
        "curve": {str(shots): accuracy for shots, accuracy in curve.items()},
    }
    return [Finding("more photos", message, classes=(known.name,), details=details)]


def fitted_slope(curve: Curve) -> float:
    """Return b ≥ 0 of the least squares fit accuracy = a − b / shots."""
    inverse = torch.tensor([1 / shots for shots in curve], dtype=torch.float64)
    accuracy = torch.tensor(list(curve.values()), dtype=torch.float64)
    centered = inverse - inverse.mean()
    return max(0.0, -float((centered * accuracy).sum() / centered.square().sum()))
