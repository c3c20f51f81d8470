"""Compute the accuracy of a stage 1 that never learns a new class: what every method should beat.

Such a network keeps its accuracy on the base classes and is wrong on all others, so its accuracy
after a session is that of the base session times the share of base images among the test images.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from fewmore.research.results import RunResult, short_features

NAME = "stage 1, nothing learnt"
NOTE = f"{NAME}: the base classifier without new classes, a lower bound to be exceeded"
# Methods that have trained nothing but stage 1 when the base session is tested.
STAGE1_ALONE = (
    "finetune",
    "linear",
    "cosine",
    "icarl",
    "eeil",
    "lucir",
    "topic",
    "decoupled-linear",
    "decoupled-cosine",
    "decoupled-l2",
    "decoupled-deepemd",
)


def source_of(results: Sequence[RunResult]) -> RunResult | None:
    """Return the result with the best base session of stage 1 alone, the first of equal ones.

    Features of another recipe are another stage 1 than that of the methods in the table. None
    where no result has such a base session, or where there is no new session.
    """
    known = [
        result
        for result in results
        if result.method in STAGE1_ALONE
        and "method_source" not in result.machine
        and not short_features(result.settings)
        and len(result.sessions) > 1
    ]
    return max(known, key=lambda result: fmean(row[0] for row in result.accuracy), default=None)


def nothing_learnt(source: RunResult) -> RunResult:
    """Return what the runs of a result would be, had they stopped after the base session."""
    sizes = source.sessions
    first = [row[0] for row in source.accuracy]
    new_classes = (sizes[-1].classes - sizes[0].classes) / (len(sizes) - 1)
    largest = sizes[0].classes / new_classes  # the largest weight of base classes in gAcc
    # gAcc where every new class is wrong, as a share of the base accuracy.
    gacc = fmean(1 - k * math.log1p(largest / k) / largest for k in range(1, len(sizes)))
    zeros = (None, *[0.0] * (len(sizes) - 1))
    return replace(
        source,
        accuracy=tuple(tuple(a * sizes[0].test / size.test for size in sizes) for a in first),
        base=tuple((a,) * len(sizes) for a in first),
        novel=(zeros,) * source.runs,
        harmonic=(zeros,) * source.runs,
        forgetting=((0.0,) * (len(sizes) - 1),) * source.runs,
        gacc=tuple(a * gacc for a in first),
        extra={},
        keeps=None,
    )
