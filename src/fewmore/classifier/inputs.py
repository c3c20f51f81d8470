"""Bring the images that a user gives, in any accepted form, into one list with labels.

Nothing is decoded here: paths stay paths until an image is needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fewmore.classifier.classes import clean_name
from fewmore.classifier.text import join_names
from fewmore.data.decode import ImageLike
from fewmore.data.folders import list_image_folder
from fewmore.data.images import ImageSet
from fewmore.errors import DataError

# A folder of class folders, an ImageSet, or a dict from class names to images.
ImagesByClass = str | Path | ImageSet | Mapping[str, Sequence[ImageLike]]


@dataclass(frozen=True, eq=False)
class LabeledImages:
    """List images of named classes, none of them decoded yet, ordered by class."""

    names: tuple[str, ...]  # of the classes
    labels: tuple[int, ...]
    images: Sequence[Any]
    titles: tuple[str, ...]  # what messages call each image

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self) -> Tensor:
        """Return the number of images of each class, (C,)."""
        labels = torch.tensor(self.labels, dtype=torch.int64)
        return torch.bincount(labels, minlength=len(self.names))


def collect_images(images: ImagesByClass) -> LabeledImages:
    """List the images of a folder, an `ImageSet` or a dict by class; class names must differ."""
    if isinstance(images, (str, Path)):
        listing = list_image_folder(Path(images))
        paths = [str(path) for path in listing.paths]  # a Path takes four times the memory
        return _by_class(listing.class_names, listing.labels, paths)
    if isinstance(images, ImageSet):
        return _by_class(images.class_names, images.labels.tolist(), ImageSetSequence(images))
    if not isinstance(images, Mapping):
        raise DataError(
            "images must come as a folder of class folders, or as a dict such as "
            f"{{'okapi': ['a.jpg', 'b.jpg']}}, not as {type(images).__name__}"
        )
    flat: list[ImageLike] = []
    labels: list[int] = []
    for label, (name, of_class) in enumerate(images.items()):
        sequence = as_image_sequence(of_class)
        if not len(sequence):
            raise DataError(f"class '{name}' has no images: give at least one")
        flat += sequence
        labels += [label] * len(sequence)
    return _by_class(tuple(images), labels, flat)


def as_image_sequence(images: Any) -> Sequence[ImageLike]:
    """Return a sequence of images; a single image becomes a list of one."""
    if isinstance(images, (str, Path, bytes, bytearray, Image.Image)):
        return [images]  # type: ignore[list-item]
    if isinstance(images, (np.ndarray, Tensor)) and images.ndim < 4:
        return [images]
    if isinstance(images, ImageSet):
        return ImageSetSequence(images)
    return list(images)


class ImageSetSequence(Sequence[Any]):
    """Give access to the images of an `ImageSet` one at a time."""

    def __init__(self, images: ImageSet) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        return self.images.image(index)


class _Permuted(Sequence[Any]):
    """Give access to a sequence in another order."""

    def __init__(self, images: Sequence[Any], order: Sequence[int]) -> None:
        self.images = images
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: Any) -> Any:
        return self.images[self.order[index]]


def _by_class(names: Sequence[str], labels: Sequence[int], images: Sequence[Any]) -> LabeledImages:
    clean = [clean_name(name) for name in names]
    if len(set(clean)) < len(clean):
        repeated = sorted({name for name in clean if clean.count(name) > 1})
        raise DataError(f"class names must differ; more than once: {join_names(repeated)}")
    counts = [0] * len(clean)
    order = sorted(range(len(labels)), key=labels.__getitem__)
    titles = []
    for position in order:
        label = labels[position]
        counts[label] += 1
        image = None if isinstance(images, ImageSetSequence) else images[position]
        if isinstance(image, (str, Path)):
            titles.append(str(image))
        else:
            titles.append(f"image {counts[label]} of {clean[label]}")
    if 0 in counts:
        raise DataError(f"class '{clean[counts.index(0)]}' has no images: give at least one")
    is_ordered = order == list(range(len(labels)))
    return LabeledImages(
        names=tuple(clean),
        labels=tuple(labels[position] for position in order),
        images=images if is_ordered else _Permuted(images, order),
        titles=tuple(titles),
    )
