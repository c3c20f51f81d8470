"""Compare features (n, d) with prototypes (N, d): scores (n, N), of which the largest wins.

The earth mover's similarity compares feature maps instead, cell by cell: (n, cells, d) with
(N, cells, d).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.nn.transport import earth_movers_distance

TEMPERATURE = 16.0  # scale of cosine scores, in training and in testing
NORM_EPS = 1e-24  # added to the mean square of a vector, which may be 0
MIN_WEIGHT = 1e-3  # of a cell of a feature map in the earth mover's distance

# Costs of pairs of cells in memory at a time: what a cache holds, or what keeps a GPU busy.
COST_BLOCK = {"cpu": 2**17, "cuda": 2**26}
OTHER_DEVICE = 2**24

Similarity = Callable[[Tensor, Tensor], Tensor]


def dot(features: Tensor, prototypes: Tensor) -> Tensor:
    """Score by inner products, as a linear classifier without a bias."""
    return features @ prototypes.T


def cosine(features: Tensor, prototypes: Tensor) -> Tensor:
    """Score by 16 times the cosine of the angle."""
    if not features.is_cuda:
        return TEMPERATURE * F.normalize(features, dim=-1) @ F.normalize(prototypes, dim=-1).T
    # Scaled to length √d, which takes one kernel forward and one backward; to length 1 takes ten.
    dim = features.shape[-1]
    features = F.rms_norm(features, (dim,), eps=NORM_EPS)
    prototypes = F.rms_norm(prototypes, (dim,), eps=NORM_EPS)
    return features @ (TEMPERATURE / dim * prototypes).T


def negative_l2(features: Tensor, prototypes: Tensor) -> Tensor:
    """Score by minus the squared Euclidean distance."""
    return (
        2 * features @ prototypes.T
        - features.square().sum(-1, keepdim=True)
        - prototypes.square().sum(-1)
    )


SIMILARITIES: dict[str, Similarity] = {"linear": dot, "cosine": cosine, "l2": negative_l2}


@torch.no_grad()
def earth_mover(maps: Tensor, prototypes: Tensor, centred: bool) -> Tensor:
    """Score by 16 times the mean cosine of cells, matched by optimal transport (DeepEMD).

    The weight of a cell is its inner product with the mean of the other map (cross-reference).
    With `centred`, the mean over channels is subtracted from each cell before cells are compared.
    """
    numbers = COST_BLOCK.get(maps.device.type, OTHER_DEVICE)
    pairs = max(1, numbers // (maps.shape[1] * prototypes.shape[1]))  # of image and class
    scores = []
    for classes in torch.split(prototypes, pairs):
        batches = torch.split(maps, max(1, pairs // len(classes)))
        scores.append(torch.cat([_earth_mover(batch, classes, centred) for batch in batches]))
    return torch.cat(scores, 1)


def _earth_mover(maps: Tensor, prototypes: Tensor, centred: bool) -> Tensor:
    source = F.relu(torch.einsum("qid,kd->iqk", maps, prototypes.mean(1))) + MIN_WEIGHT
    target = F.relu(torch.einsum("kjd,qd->jqk", prototypes, maps.mean(1))) + MIN_WEIGHT
    cosines = torch.einsum(
        "qid,kjd->ijqk", _directions(maps, centred), _directions(prototypes, centred)
    )
    distance = earth_movers_distance(1 - cosines.flatten(2), source.flatten(1), target.flatten(1))
    return TEMPERATURE * (1 - distance).view(len(maps), len(prototypes))


def _directions(cells: Tensor, centred: bool) -> Tensor:
    return F.normalize(cells - cells.mean(-1, keepdim=True) if centred else cells, dim=-1)
