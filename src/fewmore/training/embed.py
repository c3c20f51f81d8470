"""Compute features of a whole set of images with a network as it is."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.augment import Transform, test_view
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.nn.backbones import Backbone

BATCH = 500


def embed(backbone: Backbone, images: ImageSet, transform: Transform) -> Tensor:
    """Compute the features of every image, (n, d), in the test view and evaluation mode."""
    return _in_batches(backbone, backbone, images, transform)


def embed_maps(backbone: Backbone, images: ImageSet, transform: Transform, side: int) -> Tensor:
    """Compute the last feature maps, averaged down to at most side × side cells: (n, cells, d)."""

    def cells(views: Tensor) -> Tensor:
        maps = backbone.maps(views)
        if maps.dim() != 4:
            raise ConfigError(
                "the earth mover's distance compares feature maps, (images, d, h, w), and this "
                f"backbone gives {tuple(maps.shape)}: choose a convolutional one, such as "
                "--set backbone=resnet18"
            )
        size = (min(side, maps.shape[2]), min(side, maps.shape[3]))
        return F.adaptive_avg_pool2d(maps, size).flatten(2).transpose(1, 2)

    return _in_batches(backbone, cells, images, transform)


@torch.no_grad()
def _in_batches(
    backbone: Backbone,
    function: Callable[[Tensor], Tensor],
    images: ImageSet,
    transform: Transform,
) -> Tensor:
    """Apply a function of the backbone to every image, in the test view and evaluation mode."""
    training = backbone.training
    backbone.eval()
    positions = torch.arange(len(images), device=images.device)
    batches = torch.split(positions, BATCH)
    outputs = [function(test_view(images, batch, transform)).float() for batch in batches]
    backbone.train(training)
    return torch.cat(outputs)
