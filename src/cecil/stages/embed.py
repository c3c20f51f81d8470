"""Features of a whole set of pictures, with the network as it is."""

import torch
from torch import Tensor

from cecil.data.augment import Transform, test_view
from cecil.data.images import ImageSet
from cecil.nn.backbones import Backbone

BATCH = 500


@torch.no_grad()
def embed(backbone: Backbone, images: ImageSet, transform: Transform) -> Tensor:
    """The features of every picture, (n, d), in the test view and evaluation mode."""
    training = backbone.training
    backbone.eval()
    indices = torch.arange(len(images), device=images.device)
    features = [backbone(test_view(images, part, transform)).float() for part in torch.split(indices, BATCH)]
    backbone.train(training)
    return torch.cat(features) if features else torch.empty(0, backbone.dim, device=images.device)
