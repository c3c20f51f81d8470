"""Show each image of a batch several times: in several random views, rotated, or recolored.

Copies follow each other as blocks: first the whole batch, then the whole batch once more. A step
then has so many times the images of its batch.
"""

import torch
from torch import Generator, Tensor

from fewmore.data.augment import Transform, train_view
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError

ROTATIONS = (1, 2, 4)  # copies of an image, of which the first is not rotated
COLOR_ORDERS = (1, 3)  # copies of an image, of which the first has its colors in order


def several_views(
    images: ImageSet, indices: Tensor, transform: Transform, generator: Generator, count: int
) -> tuple[Tensor, Tensor]:
    """Return `count` random views of each image, (count · n, 3, s, s), and their labels."""
    repeated = indices.repeat(count)
    return train_view(images, repeated, transform, generator), images.labels[repeated]


def rotation_copies(view: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return each image in `count` rotations, (count · n, 3, s, s), each with a label of its own.

    One is the image itself, two are 0° and 180°, four are 0°, 90°, 180° and 270°,
    counter-clockwise. Rotation k of class c has the label c · count + k.
    """
    if count not in ROTATIONS:
        raise ConfigError(f"there are 1, 2 or 4 rotations of an image, and not {count}")
    if count == 1:
        return view, labels
    copies = [torch.rot90(view, 4 // count * k, (2, 3)) for k in range(count)]
    rotated = torch.cat(copies).contiguous(memory_format=torch.channels_last)
    return rotated, torch.cat([labels * count + k for k in range(count)])


def permuted_colors(view: Tensor, by: int) -> Tensor:
    """Return images whose channels moved up: by 1 to green, blue, red; by 2 to blue, red, green."""
    return view.roll(-by, 1).contiguous(memory_format=torch.channels_last)


def color_copies(view: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return each image in `count` orders of its colors, each with a label of its own.

    Three are red, green, blue; green, blue, red; and blue, red, green. Order k of class c has the
    label c · count + k; after `rotation_copies`, c is the label of a rotation.
    """
    if count not in COLOR_ORDERS:
        raise ConfigError(f"there are 1 or 3 orders of an image's colors, and not {count}")
    if count == 1:
        return view, labels
    copies = torch.cat([permuted_colors(view, k) for k in range(count)])
    return copies, torch.cat([labels * count + k for k in range(count)])


def unrotated(prototypes: Tensor, count: int) -> Tensor:
    """Return the prototypes of the classes themselves, out of those of `count` rotations each."""
    return prototypes[::count]
