"""Simulate incremental sessions on held-out base images, to compare and calibrate heads."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from fewmore.classifier.classes import KnownClass, empty_class
from fewmore.classifier.fitting.base import BaseFeatures
from fewmore.classifier.heads import Head, Scorer

SHOTS = 5  # images of a class that plays a new one
NEW_SHARE = 0.4  # of the classes play new ones
SESSIONS = 20  # pseudo-sessions in which heads are compared


def pseudo_session(base: BaseFeatures, fold: int, generator: Generator) -> list[KnownClass]:
    """Hold out a fold, and reduce four classes in ten to five of their other images."""
    classes = base.without_fold(fold)
    new = max(1, round(NEW_SHARE * len(classes)))
    for label in torch.randperm(len(classes), generator=generator)[:new].tolist():
        others = ((base.labels == label) & (base.folds != fold)).nonzero().squeeze(1)
        order = torch.randperm(len(others), generator=generator)
        shots = others[order[:SHOTS].to(others.device)]
        if len(shots):
            few = base.views[0, shots]
            classes[label] = empty_class(classes[label].name, few.shape[1]).with_images(few)
    return classes


def compare_heads(base: BaseFeatures, heads: Sequence[Head], generator: Generator) -> Tensor:
    """Return each head's accuracy on each held-out image of fold 0, (heads, images).

    The accuracy of an image is the share of pseudo-sessions in which it is classified correctly.
    """
    held = base.folds == 0
    queries = base.views[0, held]
    labels = base.labels[held]
    correct = torch.zeros(len(heads), len(labels), dtype=torch.float64)
    for _ in range(SESSIONS):
        classes = pseudo_session(base, 0, generator)
        for of_head, head in zip(correct, heads, strict=True):
            of_head += (Scorer.build(head, classes).scores(queries).argmax(1) == labels).cpu()
    return correct / SESSIONS
