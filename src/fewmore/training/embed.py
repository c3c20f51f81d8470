"""Compute features of a whole set of images with a network as it is."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.augment import Transform, test_view
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.nn.backbones import Backbone
from fewmore.training.views import permuted_colors

BATCH = 500
LARGE = 1.25  # side of a large test view to that of a plain one


def _enlarge(view: Tensor) -> Tensor:
    """Enlarge views by bilinear interpolation: things in training crops are larger than at test."""
    size = [round(LARGE * side) for side in view.shape[2:]]
    return F.interpolate(view, size=size, mode="bilinear", align_corners=False)


_TEST_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda view: view,
    "flip": lambda view: view.flip(3),
    "rot90": lambda view: torch.rot90(view, 1, (2, 3)),
    "rot180": lambda view: torch.rot90(view, 2, (2, 3)),
    "rot270": lambda view: torch.rot90(view, 3, (2, 3)),
    "large": _enlarge,
    "gbr": lambda view: permuted_colors(view, 1),
    "brg": lambda view: permuted_colors(view, 2),
}


def make_test_view(view: Tensor, name: str) -> Tensor:
    """Return images in one of the test views; rot90-flip is rotated, then mirrored."""
    for part in name.split("-"):
        view = _TEST_VIEWS[part](view)
    return view


def embed(backbone: Backbone, images: ImageSet, transform: Transform) -> Tensor:
    """Compute the features of every image, (n, d), in evaluation mode.

    They are the mean over the test views of the transform; or, with `view_features="separate"`, the
    features of all views side by side, (n, views · d).
    """
    separate = transform.view_features == "separate"

    def features(view: Tensor) -> Tensor:
        of_views = [backbone(make_test_view(view, name)).float() for name in transform.test_views]
        if separate or len(of_views) == 1:
            return of_views[0] if len(of_views) == 1 else torch.cat(of_views, 1)
        return torch.stack(of_views).mean(0)

    return _in_batches(backbone, features, images, transform)


def require_plain_view(transform: Transform) -> None:
    """Refuse test views other than the plain one, where they cannot be averaged."""
    if transform.test_views != ("plain",):
        raise ConfigError(
            f"test views {', '.join(transform.test_views)} cannot be averaged for feature maps, "
            "whose cells move with the image: --set transform.test_views=plain"
        )


def embed_maps(backbone: Backbone, images: ImageSet, transform: Transform, side: int) -> Tensor:
    """Compute the last feature maps, averaged down to at most side × side cells: (n, cells, d)."""
    require_plain_view(transform)

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
