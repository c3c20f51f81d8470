"""A map of the classes: their prototypes before and after they adapt to one another, in one plane."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.classifier.heads import Scorer

SAMPLED = 500  # prototypes that decide on the plane


@torch.no_grad()
def plane(scorer: Scorer) -> tuple[Tensor, Tensor, bool]:
    """Places (N, 2) in −1 … 1 before and after adaptation, and whether there is an adapter.

    The plane is that of the two directions in which all prototypes, before and after, differ most.
    """
    adapter, context = scorer.head.adapter, scorer.context
    adapted = adapter is not None and context is not None
    before = context.rows if context is not None else scorer.unit_rows
    after = adapter.adapted(context) if adapter is not None and context is not None else before
    both = torch.cat([_directions(before), _directions(after)]).cpu()
    if not len(both):
        return torch.empty(0, 2), torch.empty(0, 2), adapted
    both = both - both.mean(0)
    some = both[:: max(1, len(both) // (2 * SAMPLED))]
    axes = torch.linalg.svd(some, full_matrices=False)[2][:2]
    axes = (
        axes * axes.sum(1, keepdim=True).sign()
    )  # the same image every time: an axis could as well point the other way
    places = F.pad(both @ axes.T, (0, 2 - len(axes)))
    places = places / places.abs().amax().clamp(min=1e-12)
    return places[: len(before)], places[len(before) :], adapted


def _directions(vectors: Tensor) -> Tensor:
    """As the adapter's layer norm sees them: of no mean, and of one length."""
    return F.normalize(vectors - vectors.mean(1, keepdim=True), dim=1)
