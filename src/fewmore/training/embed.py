"""Features of a whole set of images, with the network as it is."""

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
    """The features of every image, (n, d), in the test view and evaluation mode."""
    return _in_batches(backbone, backbone, images, transform)


def embed_maps(backbone: Backbone, images: ImageSet, transform: Transform, side: int) -> Tensor:
    """The last feature map of every image, averaged down to at most side × side cells: (n, cells, d)."""

    def cells(views: Tensor) -> Tensor:
        maps = backbone.maps(views)
        if maps.dim() != 4:
            raise ConfigError(
                f"the earth mover's distance compares feature maps, (images, d, h, w), and this backbone gives {tuple(maps.shape)}: "
                "choose a convolutional one, such as --set backbone=resnet18"
            )
        pooled = F.adaptive_avg_pool2d(maps, (min(side, maps.shape[2]), min(side, maps.shape[3])))
        return pooled.flatten(2).transpose(1, 2)

    return _in_batches(backbone, cells, images, transform)


@torch.no_grad()
def _in_batches(
    backbone: Backbone, of: Callable[[Tensor], Tensor], images: ImageSet, transform: Transform
) -> Tensor:
    """What a part of the backbone makes of every image, in the test view and evaluation mode."""
    training = backbone.training
    backbone.eval()
    indices = torch.arange(len(images), device=images.device)
    found = [of(test_view(images, part, transform)).float() for part in torch.split(indices, BATCH)]
    backbone.train(training)
    return torch.cat(found)
