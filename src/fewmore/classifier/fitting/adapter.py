"""Train an adapter on frozen features by pseudo-incremental learning."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fewmore.classifier.embedding import Progress
from fewmore.classifier.fitting.base import BaseFeatures
from fewmore.classifier.fitting.runtime import reporting_runtime
from fewmore.classifier.heads import Head
from fewmore.data.images import ImageSet
from fewmore.nn.adapter import Adapter
from fewmore.random import derive_seed
from fewmore.training.pseudo_incremental import PseudoConfig, pseudo_incremental_on_features

ADAPTER_DIM = 128  # of more features, the adapter works on so many principal directions
MAX_WAY = 15  # classes of an episode
MAX_QUERIES = 15  # images of a class in an episode
CONFIG = PseudoConfig(lr=0.02, episodes=100, milestones=(1,))  # way and queries follow the images


def train_adapter(base: BaseFeatures, head: Head, seed: int, progress: Progress) -> Head:
    """Train an adapter on all folds but the first; return the head with it."""
    rest = base.folds != 0
    labels = base.labels[rest]
    projection = None
    views = base.views
    if head.dim > ADAPTER_DIM:
        projection = principal_directions(base.views[0, rest], ADAPTER_DIM)
        views = base.views @ projection
    views = views[:, rest]
    adapter = _initial_adapter(views.shape[2], seed).to(head.device)
    way = min(MAX_WAY, len(base.classes))
    queries = min(MAX_QUERIES, int(torch.bincount(labels).min()) - 1)
    config = replace(CONFIG, base_way=way, new_way=way, base_query=queries, new_query=queries)
    # Stage 2 draws episodes from labels; the images themselves are not needed, only features.
    no_pixels = torch.empty(len(labels), 3, 0, 0, dtype=torch.uint8, device=head.device)
    images = ImageSet.from_images(no_pixels, labels, [known.name for known in base.classes])
    runtime = reporting_runtime(head.device, progress)
    pseudo_incremental_on_features(
        adapter, views, images, config, runtime, seed, "training the adapter"
    )
    return replace(head, adapter=adapter.requires_grad_(False), projection=projection)


def _initial_adapter(dim: int, seed: int) -> Adapter:
    """Return an adapter that starts as the cosine of centered features.

    So it has to learn what the classes tell one another, and nothing to unlearn first.
    """
    adapter = Adapter(dim, generator=Generator().manual_seed(derive_seed(seed, "adapter")))
    with torch.no_grad():
        for parameter in (adapter.output, adapter.bias):
            if parameter is not None:
                parameter.zero_()
    return adapter


def principal_directions(features: Tensor, count: int) -> Tensor:
    """Return orthonormal directions that keep most of the features' inner products, (d, count).

    They are scaled so that attention starts out mild. With fewer than `count` images there are as
    many directions as images.
    """
    some = features[:: math.ceil(len(features) / 1000)].double().cpu()
    some = F.normalize(some, dim=1)
    vectors = torch.linalg.eigh(some @ some.T)[1]
    basis: Tensor = torch.linalg.qr(some.T @ vectors[:, -count:])[0]
    scale = math.sqrt(math.sqrt(basis.shape[1]) / float(features.double().square().sum(1).mean()))
    return (scale * basis).float().to(features.device)
