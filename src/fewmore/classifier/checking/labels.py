"""Find images that are probably in the wrong class, from the labels given alone.

An image is compared with the mean of its own class without itself, and with the means of the other
classes: cosines of features whose square roots are taken and whose common mean is removed. It is
named if another class is closer by 1.5 standard deviations of the cosine to the own class. With
many or similar classes that happens to right images too, so at most 3 % of the images are named,
the clearest ones: false alarms are never more than that.

n: images   C: classes   d: features
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.classifier.fitting.base import MIN_IMAGES

MARGIN = 1.5  # standard deviations by which another class is nearer than the own one
MAX_SHARE = 0.03  # share of the images that is named at most
BLOCK = 4096  # images compared with all classes at a time


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Hold how close images are to their own class without themselves, and to the nearest other."""

    own: Tensor  # (n,) cosine
    other: Tensor  # (n,) cosine
    nearest: Tensor  # (n,): the nearest other class
    judged: Tensor  # (n,) bool: whether the own class has enough images


def leave_one_out(
    features: Tensor, labels: Tensor, counted: Tensor, classes: int
) -> LeaveOneOut | None:
    """Compare each image with all class means, without the image itself.

    Only images that are counted make up the means, and only classes with enough of them are
    compared; None if there are not two.
    """
    counts = torch.bincount(labels[counted], minlength=classes)
    is_small = counts < MIN_IMAGES
    if int((~is_small).sum()) < 2:
        return None
    units = even_out(features)
    sums = torch.zeros(classes, features.shape[1]).index_add_(0, labels[counted], units[counted])
    means = F.normalize(sums, dim=1)
    parts = []
    for start in range(0, len(units), BLOCK):
        part = slice(start, start + BLOCK)
        unit, label = units[part], labels[part]
        cosines = unit @ means.T
        cosines[:, is_small] = -math.inf
        cosines.scatter_(1, label[:, None], -math.inf)
        rest = F.normalize(sums[label] - unit * counted[part, None], dim=1)
        parts.append(((unit * rest).sum(1), *cosines.max(1)))
    own, other, nearest = (torch.cat(column) for column in zip(*parts, strict=True))
    return LeaveOneOut(own, other, nearest, ~is_small[labels] & counted)


def find_mislabelled(result: LeaveOneOut, labels: Tensor) -> tuple[list[int], int]:
    """Return the images that are named, the clearest first, and how many less clear ones exist."""
    judged = result.judged
    if not bool(judged.any()):
        return [], 0
    margin = (result.other - result.own).masked_fill(~judged, -math.inf)
    deviation = _std_within_classes(result.own[judged], labels[judged])
    doubtful = int((margin > MARGIN * deviation).sum())
    most = math.ceil(MAX_SHARE * int(judged.sum()))
    named = margin.topk(min(doubtful, most)).indices.tolist()
    return named, doubtful - len(named)


def _std_within_classes(own: Tensor, labels: Tensor) -> float:
    """Return the standard deviation of cosines within classes."""
    counts = torch.bincount(labels).clamp(min=1)
    means = torch.zeros(len(counts)).index_add_(0, labels, own) / counts
    return float((own - means[labels]).square().mean().sqrt())


def even_out(features: Tensor) -> Tensor:
    """Return signed square roots of features, centered and of unit length.

    A few large features would decide a cosine by themselves otherwise.
    """
    units = F.normalize(features.sign() * features.abs().sqrt(), dim=1)
    return F.normalize(units - units.mean(0), dim=1)
