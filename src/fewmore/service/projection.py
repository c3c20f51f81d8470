"""Project the class prototypes onto a plane, before and after they adapt to one another."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.classifier.heads import Scorer

SAMPLED = 500  # prototypes from which the axes are computed


@torch.no_grad()
def project(scorer: Scorer) -> tuple[Tensor, Tensor, bool]:
    """Return points (N, 2) in [-1, 1] before and after adaptation, and whether there is an adapter.

    The axes are the two directions in which all prototypes, before and after, vary most.
    """
    adapter, context = scorer.head.adapter, scorer.context
    adapted = adapter is not None and context is not None
    before = context.prototypes if context is not None else scorer.unit_prototypes
    after = before
    if adapter is not None and context is not None:
        after = adapter.adapted_prototypes(context)
    both = torch.cat([_directions(before), _directions(after)]).cpu()
    if not len(both):
        return torch.empty(0, 2), torch.empty(0, 2), adapted
    both = both - both.mean(0)
    sample = both[:: max(1, len(both) // (2 * SAMPLED))]
    axes = torch.linalg.svd(sample, full_matrices=False)[2][:2]
    # The sign of a singular vector is arbitrary: fix it, so that the map does not flip.
    axes = axes * axes.sum(1, keepdim=True).sign()
    points = F.pad(both @ axes.T, (0, 2 - len(axes)))
    points = points / points.abs().amax().clamp(min=1e-12)
    return points[: len(before)], points[len(before) :], adapted


def _directions(vectors: Tensor) -> Tensor:
    """Centre and normalize each vector, as the adapter's layer norm does."""
    return F.normalize(vectors - vectors.mean(1, keepdim=True), dim=1)
