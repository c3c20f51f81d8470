"""Similarities: features (n, d) and prototypes (N, d) to scores (n, N). The largest score is the answer.

One compares feature maps, cell by cell: (n, cells, d) and (N, cells, d).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.nn.transport import earth_movers_distance

TEMPERATURE = 16.0  # of the cosine classifier, in training and in testing
LEAST_SQUARE = 1e-24  # of a vector that has a direction, on average over its numbers
LEAST_WEIGHT = 1e-3  # of a cell of a feature map
BLOCK = {
    "cpu": 2**17,
    "cuda": 2**26,
}  # costs of cells at a time: what a cache holds, or enough to keep a GPU busy

Similarity = Callable[[Tensor, Tensor], Tensor]


def dot(features: Tensor, prototypes: Tensor) -> Tensor:
    """The linear classifier without a bias."""
    return features @ prototypes.T


def cosine(features: Tensor, prototypes: Tensor) -> Tensor:
    """The cosine classifier, 16 times the cosine of the angle."""
    if not features.is_cuda:
        return TEMPERATURE * F.normalize(features, dim=-1) @ F.normalize(prototypes, dim=-1).T
    # Vectors of length √d: forwards and backwards a kernel each, where those of length 1 take ten.
    dim = features.shape[-1]
    features, prototypes = (
        F.rms_norm(vectors, (dim,), eps=LEAST_SQUARE) for vectors in (features, prototypes)
    )
    return features @ (TEMPERATURE / dim * prototypes).T


def negative_l2(features: Tensor, prototypes: Tensor) -> Tensor:
    """Minus the squared distance."""
    return (
        2 * features @ prototypes.T
        - features.square().sum(-1, keepdim=True)
        - prototypes.square().sum(-1)
    )


SIMILARITIES: dict[str, Similarity] = {"linear": dot, "cosine": cosine, "l2": negative_l2}


@torch.no_grad()
def earth_mover(maps: Tensor, prototypes: Tensor, centred: bool) -> Tensor:
    """The earth mover's similarity of feature maps: 16 times the mean cosine of cells, matched as well as their weights permit.

    A cell weighs as much as it has in common with the whole of the other map (cross reference). With `centred`, cells are
    compared after each has lost the mean of its channels.
    """
    pairs = max(
        1, BLOCK[maps.device.type] // (maps.shape[1] * prototypes.shape[1])
    )  # of an image and a class, at a time
    columns = []
    for classes in torch.split(prototypes, pairs):
        images = torch.split(maps, max(1, pairs // len(classes)))
        columns.append(torch.cat([_earth_mover(part, classes, centred) for part in images]))
    return torch.cat(columns, 1)


def _earth_mover(maps: Tensor, prototypes: Tensor, centred: bool) -> Tensor:
    given = F.relu(torch.einsum("qid,kd->iqk", maps, prototypes.mean(1))) + LEAST_WEIGHT
    taken = F.relu(torch.einsum("kjd,qd->jqk", prototypes, maps.mean(1))) + LEAST_WEIGHT
    cosines = torch.einsum(
        "qid,kjd->ijqk", _directions(maps, centred), _directions(prototypes, centred)
    )
    distance = earth_movers_distance(1 - cosines.flatten(2), given.flatten(1), taken.flatten(1))
    return TEMPERATURE * (1 - distance).view(len(maps), len(prototypes))


def _directions(cells: Tensor, centred: bool) -> Tensor:
    return F.normalize(cells - cells.mean(-1, keepdim=True) if centred else cells, dim=-1)
