"""Compute features of a whole set of images with a network as it is."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.augment import Transform, test_view
from fewmore.data.images import ImageSet
from fewmore.data.transform import is_large
from fewmore.errors import ConfigError, DataError
from fewmore.nn.backbones import Backbone
from fewmore.training.views import permuted_colors

BATCH = 500

_TEST_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda view: view,
    "large": lambda view: view,
    "flip": lambda view: view.flip(3),
    "rot90": lambda view: torch.rot90(view, 1, (2, 3)),
    "rot180": lambda view: torch.rot90(view, 2, (2, 3)),
    "rot270": lambda view: torch.rot90(view, 3, (2, 3)),
    "gbr": lambda view: permuted_colors(view, 1),
    "brg": lambda view: permuted_colors(view, 2),
}


def make_test_view(view: Tensor, name: str) -> Tensor:
    """Return images in one of the test views; rot90-flip is rotated, then mirrored."""
    for part in name.split("-"):
        view = _TEST_VIEWS[part](view)
    return view


def make_test_views(images: ImageSet, indices: Tensor, transform: Transform) -> Iterator[Tensor]:
    """Yield images in each of the test views of a transform."""
    makers = {False: test_view, True: large_view}
    sizes = {is_large(name) for name in transform.test_views}
    views = {size: makers[size](images, indices, transform) for size in sizes}
    for name in transform.test_views:
        yield make_test_view(views[is_large(name)], name)


def large_view(images: ImageSet, indices: Tensor, transform: Transform) -> Tensor:
    """Return the view of a test image in more pixels, of the stored image if it has them."""
    if transform.resize is not None:
        return test_view(images, indices, transform.enlarged)
    side = transform.enlarged.size
    view = test_view(images, indices, transform)
    enlarged = F.interpolate(view, (side, side), mode="bilinear", align_corners=False)
    return enlarged.contiguous(memory_format=torch.channels_last)


def embed(backbone: Backbone, images: ImageSet, transform: Transform) -> Tensor:
    """Compute the features of every image, (n, d), in evaluation mode.

    They are the mean over the test views of the transform; or, with `view_features="separate"`, the
    features of all views side by side, (n, views · d).
    """

    def features(indices: Tensor) -> Tensor:
        views = make_test_views(images, indices, transform)
        of_views: list[Tensor] = [backbone(view).float() for view in views]
        if len(of_views) == 1:
            return of_views[0]
        if transform.view_features == "separate":
            return torch.cat(of_views, 1)
        return torch.stack(of_views).mean(0)

    return _in_batches(backbone, features, images)


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

    def cells(indices: Tensor) -> Tensor:
        maps = backbone.maps(test_view(images, indices, transform))
        if maps.dim() != 4:
            raise ConfigError(
                "the earth mover's distance compares feature maps, (images, d, h, w), and this "
                f"backbone gives {tuple(maps.shape)}: choose a convolutional one, such as "
                "--set backbone=resnet18"
            )
        size = (min(side, maps.shape[2]), min(side, maps.shape[3]))
        return F.adaptive_avg_pool2d(maps, size).flatten(2).transpose(1, 2)

    return _in_batches(backbone, cells, images)


@torch.no_grad()
def _in_batches(
    backbone: Backbone, function: Callable[[Tensor], Tensor], images: ImageSet
) -> Tensor:
    """Apply a function of the backbone to the positions of all images, in evaluation mode."""
    if not isinstance(images, ImageSet):
        raise DataError(
            f"images must be an ImageSet, not of type {type(images).__name__}: make one with "
            "fewmore.data.from_python.image_set(images, [0] * len(images), ['?'], size), as "
            "docs/python.md does"
        )
    training = backbone.training
    backbone.eval()
    positions = torch.arange(len(images), device=images.device)
    batches = torch.split(positions, BATCH)
    outputs = [function(batch).float() for batch in batches]
    backbone.train(training)
    return torch.cat(outputs)
