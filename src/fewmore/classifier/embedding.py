"""From images of any kind to features, in a stream.

Images are decoded by threads a few batches ahead, made square, embedded and let go: however many there are, only those
few batches are in memory. An image's fingerprint tells it from others, so that none is counted twice.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fewmore.classifier.classes import clean_name, listed
from fewmore.data.augment import Transform, normalise
from fewmore.data.decode import ImageLike, as_rgb
from fewmore.data.files import in_order, list_classes
from fewmore.data.images import ImageSet
from fewmore.errors import DataError, FewmoreError, ImageError
from fewmore.nn.backbones import Backbone, for_inference

BATCH = {"cpu": 16, "cuda": 256}  # images; larger batches of wide maps leave a processor's cache
NAMED = 5  # broken images that a message names

Progress = Callable[[str, int, int], None]  # what is being done, done, in all
LabelledImages = str | Path | ImageSet | Mapping[str, Sequence[ImageLike]]


# What is shown


@dataclass(frozen=True, eq=False)
class Shown:
    """Images of named classes, none of them decoded yet; a class's images follow one another."""

    names: tuple[str, ...]
    labels: tuple[int, ...]
    images: Sequence[Any]
    titles: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self) -> Tensor:
        return torch.bincount(
            torch.tensor(self.labels, dtype=torch.int64), minlength=len(self.names)
        )


def shown(images: LabelledImages) -> Shown:
    """A folder of class folders, a set of images or a table of them, by class; names are cleaned and must differ."""
    if isinstance(images, (str, Path)):
        listing = list_classes(Path(images))
        return _by_class(
            listing.class_names, listing.labels, [str(path) for path in listing.paths]
        )  # a Path takes four times the memory
    if isinstance(images, ImageSet):
        return _by_class(images.class_names, images.labels.tolist(), Stored(images))
    if not isinstance(images, Mapping):
        raise DataError(
            f"images must come as a folder of class folders, or as a table such as {{'okapi': ['a.jpg', 'b.jpg']}}, "
            f"not as {type(images).__name__}"
        )
    flat: list[ImageLike] = []
    labels: list[int] = []
    for label, (name, own) in enumerate(images.items()):
        several = one_or_more(own)
        if not len(several):
            raise DataError(f"class '{name}' has no images: give at least one")
        flat += several
        labels += [label] * len(several)
    return _by_class(tuple(images), labels, flat)


def _by_class(names: Sequence[str], labels: Sequence[int], images: Sequence[Any]) -> Shown:
    clean = [clean_name(name) for name in names]
    if twice := sorted(
        {name for name in clean if clean.count(name) > 1} if len(set(clean)) < len(clean) else ()
    ):
        raise DataError(f"class names must differ; more than once: {listed(twice)}")
    counts = [0] * len(clean)
    order = sorted(range(len(labels)), key=labels.__getitem__)
    titles = []
    for position in order:
        label = labels[position]
        counts[label] += 1
        image = None if isinstance(images, Stored) else images[position]
        titles.append(
            str(image)
            if isinstance(image, (str, Path))
            else f"image {counts[label]} of {clean[label]}"
        )
    if empty := [name for name, count in zip(clean, counts, strict=True) if not count]:
        raise DataError(f"class '{empty[0]}' has no images: give at least one")
    in_order = images if order == list(range(len(labels))) else _Reordered(images, order)
    return Shown(
        tuple(clean), tuple(labels[position] for position in order), in_order, tuple(titles)
    )


def one_or_more(images: Any) -> Sequence[ImageLike]:
    """A list of images, also where a single one was given."""
    if isinstance(images, (str, Path, bytes, bytearray, Image.Image)):
        return [images]  # type: ignore[list-item]
    if isinstance(images, (np.ndarray, Tensor)) and images.ndim < 4:
        return [images]
    if isinstance(images, ImageSet):
        return Stored(images)
    return list(images)


class Stored(Sequence[Any]):
    """The images of a set, one at a time."""

    def __init__(self, images: ImageSet) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        return self.images.image(index)


class _Reordered(Sequence[Any]):
    """The same images in another order."""

    def __init__(self, images: Sequence[Any], order: Sequence[int]) -> None:
        self.images, self.order = images, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: Any) -> Any:
        return self.images[self.order[index]]


# Squares


def side(transform: Transform) -> int:
    """Of the square that is made of an image, before its centre is cut out."""
    return transform.resize or transform.size


def square(image: ImageLike, title: str, transform: Transform) -> Tensor:
    """An image's central square, (3, s, s) uint8, its short side scaled to that."""
    goal = side(transform)
    return _centre(as_rgb(image, title, goal), goal).contiguous()


def fingerprint(pixels: Tensor) -> int:
    """A number of 64 bits that other pixels do not have."""
    return int.from_bytes(
        hashlib.blake2b(pixels.numpy().data, digest_size=8).digest(), "big", signed=True
    )


def _centre(pixels: Tensor, side: int) -> Tensor:
    top, left = (pixels.shape[-2] - side) // 2, (pixels.shape[-1] - side) // 2
    return pixels[..., top : top + side, left : left + side]


@dataclass(frozen=True, eq=False)
class Batch:
    """A few images that follow one another, decoded."""

    start: int
    squares: Tensor  # (n, 3, s, s) uint8
    prints: tuple[int, ...]  # where they were asked for

    def __len__(self) -> int:
        return len(self.squares)


def squares(
    images: Sequence[Any],
    titles: Sequence[str],
    transform: Transform,
    batch: int,
    prints: bool = False,
) -> Iterator[Batch]:
    """All images in order, decoded a few batches ahead. Where some cannot be read, one error names them."""

    def decode(start: int) -> tuple[int, list[tuple[Tensor, int] | FewmoreError]]:
        found: list[tuple[Tensor, int] | FewmoreError] = []
        for position in range(start, min(start + batch, len(images))):
            try:
                pixels = square(images[position], titles[position], transform)
                found.append((pixels, fingerprint(pixels) if prints else 0))
            except FewmoreError as error:
                found.append(error)
        return start, found

    broken: list[FewmoreError] = []
    for start, found in in_order(decode, range(0, len(images), batch)):
        broken += [one for one in found if isinstance(one, FewmoreError)]
        good = [one for one in found if not isinstance(one, FewmoreError)]
        if not broken:  # else only the rest of the broken ones is looked for
            yield Batch(
                start,
                torch.stack([pixels for pixels, _ in good]),
                tuple(number for _, number in good) if prints else (),
            )
    if broken:
        raise broken_images(broken)


def broken_images(broken: Sequence[FewmoreError]) -> FewmoreError:
    """One error for images that cannot be used."""
    if len(broken) == 1:
        return broken[0]
    more = f" and {len(broken) - NAMED:,} more" if len(broken) > NAMED else ""
    return ImageError(
        f"{len(broken)} images cannot be used: {'; '.join(map(str, broken[:NAMED]))}{more}"
    )


# Features


class Embedder:
    """A frozen backbone and how images are shown to it. May be used by several threads at once."""

    def __init__(self, backbone: Backbone, transform: Transform, device: torch.device) -> None:
        self.backbone: Backbone = for_inference(backbone).to(device)
        self.transform, self.device, self.dim = transform, device, backbone.dim
        self.batch = BATCH.get(device.type, 64)

    @torch.no_grad()
    def features(self, squares: Tensor, turns: Sequence[int] = (0,)) -> Tensor:
        """Features of squares (n, 3, s, s), seen in each of these quarter turns: (turns, n, d) float32."""
        upright = _centre(squares.to(self.device), self.transform.size)
        turned = (torch.rot90(upright, turn, (2, 3)) for turn in turns)
        return torch.stack(
            [self.backbone(normalise(view, self.transform)).float() for view in turned]
        )

    def embedded(
        self, images: Sequence[Any], titles: Sequence[str], prints: bool = False
    ) -> tuple[Tensor, tuple[int, ...]]:
        """Features of images, (n, d), and their fingerprints where they are asked for."""
        features: list[Tensor] = []
        numbers: list[int] = []
        for batch in squares(images, titles, self.transform, self.batch, prints):
            features.append(self.features(batch.squares)[0])
            numbers += batch.prints
        return torch.cat(features) if features else torch.empty(
            0, self.dim, device=self.device
        ), tuple(numbers)
