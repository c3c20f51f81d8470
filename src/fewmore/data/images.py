"""Hold labelled uint8 images, in memory, on a device or in a memory-mapped file.

Images of one size are one tensor; of several sizes, one flat buffer with offsets and shapes. An
ImageSet is a view: `indices` says which images of the storage it holds, so selecting classes or
shots copies nothing. Code that reads pixels by index need not know which storage lies below.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewmore.errors import DataError

HASH_CHUNK = 4096  # images that are hashed at a time
HASH_BYTES = 2**26  # of images of several sizes
# The part of the test images that may be training images too: published data sets hold some copies.
SHARED = 0.05


@dataclass(frozen=True)
class Ragged:
    """Hold images of several sizes in one buffer: channel by channel, one after the other."""

    buffer: Tensor  # (bytes,) uint8
    offsets: Tensor  # (n,) int64: start of each image in the buffer
    heights: Tensor  # (n,) int64
    widths: Tensor  # (n,) int64
    # The longest of the images' short sides, known here so that no training step asks the device.
    short_side: int = field(init=False)

    def __post_init__(self) -> None:
        shortest = torch.minimum(self.heights, self.widths)
        object.__setattr__(self, "short_side", int(shortest.max()) if len(self) else 0)

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def device(self) -> torch.device:
        """Return the device of the buffer."""
        return self.buffer.device

    @classmethod
    def from_arrays(cls, arrays: Sequence[np.ndarray]) -> "Ragged":
        """Concatenate uint8 arrays of shape (3, height, width)."""
        sizes = torch.tensor([a.size for a in arrays], dtype=torch.int64)
        pixels = np.concatenate([np.empty(0, np.uint8), *(a.reshape(-1) for a in arrays)])
        return cls(
            torch.from_numpy(pixels),
            sizes.cumsum(0) - sizes,
            torch.tensor([a.shape[1] for a in arrays], dtype=torch.int64),
            torch.tensor([a.shape[2] for a in arrays], dtype=torch.int64),
        )

    def select(self, indices: Tensor) -> "Ragged":
        """Copy the images at these positions into a new buffer."""
        indices = indices.to(self.device)
        arrays = [self.image(int(index)).cpu().numpy() for index in indices]
        return Ragged.from_arrays(arrays).to(self.device)

    def image(self, index: int) -> Tensor:
        """Return one image of shape (3, height, width)."""
        start = int(self.offsets[index])
        height = int(self.heights[index])
        width = int(self.widths[index])
        return self.buffer[start : start + 3 * height * width].view(3, height, width)

    def to(self, device: torch.device | str) -> "Ragged":
        """Move all tensors to a device."""
        return Ragged(*(tensor.to(device) for tensor in self.tensors().values()))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, in the order in which a new storage takes them."""
        return {name: getattr(self, name) for name in _RAGGED}


_RAGGED = ("buffer", "offsets", "heights", "widths")


Storage = Tensor | Ragged  # a Tensor is (n, 3, height, width) uint8


@dataclass(frozen=True)
class ImageSet:
    """Hold labelled images as a view of a storage."""

    storage: Storage
    indices: Tensor  # (n,) int64: positions in the storage
    labels: Tensor  # (n,) int64: positions in class_names
    class_names: tuple[str, ...]

    @classmethod
    def from_images(
        cls,
        images: Storage | np.ndarray,
        labels: Sequence[int] | Tensor | np.ndarray,
        class_names: Sequence[str],
    ) -> "ImageSet":
        """Check images and labels, and make a set of all of them.

        Args:
            images: uint8 of shape (n, 3, height, width), or a Ragged storage.
            labels: one position in `class_names` per image.
            class_names: the names of the classes, all different.
        """
        storage = torch.from_numpy(images) if isinstance(images, np.ndarray) else images
        if isinstance(storage, Tensor) and (
            storage.dtype != torch.uint8 or storage.dim() != 4 or storage.shape[1] != 3
        ):
            raise DataError(
                f"images must be uint8 of shape (n, 3, height, width), "
                f"not {storage.dtype} of {tuple(storage.shape)}"
            )
        labels = torch.as_tensor(labels, dtype=torch.int64)
        if len(labels) != len(storage):
            raise DataError(
                f"{len(storage)} images have {len(labels)} labels: there must be one label an image"
            )
        if len(set(class_names)) != len(class_names):
            repeated = sorted({name for name in class_names if list(class_names).count(name) > 1})
            raise DataError(f"class names must differ; more than once: {', '.join(repeated)}")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(class_names):
            raise DataError(
                f"labels must lie in 0 … {len(class_names) - 1}, "
                f"not {int(labels.min())} … {int(labels.max())}"
            )
        indices = torch.arange(len(labels), device=storage.device)
        return cls(storage, indices, labels.to(storage.device), tuple(class_names))

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        pixels = "several sizes" if self.size is None else f"{self.size[0]} × {self.size[1]} pixels"
        return f"ImageSet({len(self):,} images of {pixels}, {len(self.class_names)} classes)"

    @property
    def device(self) -> torch.device:
        """Return the device of the storage."""
        return self.storage.device

    @property
    def size(self) -> tuple[int, int] | None:
        """Return height and width where all images share them, else None."""
        if isinstance(self.storage, Ragged):
            return None
        return self.storage.shape[2], self.storage.shape[3]

    @property
    def short_side(self) -> int:
        """Return the longest short side of the storage's images, in pixels."""
        if isinstance(self.storage, Ragged):
            return self.storage.short_side
        return min(self.storage.shape[2:])

    def class_counts(self) -> Tensor:
        """Return the number of images of each class."""
        return torch.bincount(self.labels, minlength=len(self.class_names))

    def image(self, index: int) -> Tensor:
        """Return one image of shape (3, height, width), uint8."""
        position = int(self.indices[index])
        if isinstance(self.storage, Tensor):
            return self.storage[position]
        return self.storage.image(position)

    def select(self, indices: Tensor) -> "ImageSet":
        """Select the images at these positions; classes keep their labels."""
        indices = indices.to(self.device)
        return replace(self, indices=self.indices[indices], labels=self.labels[indices])

    def select_classes(self, classes: Sequence[int]) -> "ImageSet":
        """Select the images of these classes and relabel them 0, 1, … in the order given."""
        new_label = torch.full((len(self.class_names),), -1, device=self.device)
        new_label[list(classes)] = torch.arange(len(classes), device=self.device)
        labels = new_label[self.labels]
        chosen = (labels >= 0).nonzero().squeeze(1)
        names = tuple(self.class_names[label] for label in classes)
        return ImageSet(self.storage, self.indices[chosen], labels[chosen], names)

    def compact(self) -> "ImageSet":
        """Copy the images into a storage that holds no others."""
        return self._copy_to(self.device, share=False)

    def to(self, device: torch.device | str) -> "ImageSet":
        """Move the set to a device; other images of the storage stay behind."""
        device = torch.empty(0, device=device).device  # with its number: "cuda" is cuda:0
        if device == self.device:
            return self
        try:
            return self._copy_to(device, share=True)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise DataError(
                f"{len(self):,} images of {self._count_bytes() / 1e9:.1f} GB do not fit into the "
                f"memory of {device}: store them smaller (--set transform.stored=PIXELS), or use a "
                f"device with more memory"
            ) from error

    def _count_bytes(self) -> int:
        """Count the bytes of the set's pixels."""
        if isinstance(self.storage, Tensor):
            return len(self) * self.storage[0].numel()
        pixels = self.storage.heights * self.storage.widths
        return 3 * int(pixels[self.indices].sum())

    def content_hash(self) -> str:
        """Return a content hash: equal images with equal labels have the same one."""
        return self._content_hash

    @cached_property
    def _content_hash(self) -> str:
        digest = hashlib.sha256(repr((len(self), self.class_names)).encode())
        digest.update(self.labels.cpu().numpy().tobytes())
        if isinstance(self.storage, Tensor):
            for chunk in torch.split(self.indices, HASH_CHUNK):
                digest.update(self.storage[chunk].cpu().contiguous().numpy().tobytes())
        elif self._is_whole():
            for part in torch.split(self.storage.buffer, HASH_BYTES):
                digest.update(part.cpu().numpy().data)
        else:
            for index in range(len(self)):
                digest.update(self.image(index).cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def state(self) -> dict[str, Any]:
        """Return the set as a dict of tensors and JSON values."""
        storage = self.compact().storage
        pixels = {"pixels": storage} if isinstance(storage, Tensor) else storage.tensors()
        return {**pixels, "labels": self.labels, "class_names": list(self.class_names)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "ImageSet":
        """Make the set that `state()` returned."""
        if "pixels" in state:
            storage = state["pixels"]
        else:
            storage = Ragged(*(state[name] for name in _RAGGED))
        return cls.from_images(storage, state["labels"], state["class_names"])

    def _is_whole(self) -> bool:
        """Return whether the set is all of its storage, in order."""
        in_order = torch.arange(len(self), device=self.device)
        return len(self) == len(self.storage) and bool((self.indices == in_order).all())

    def _copy_to(self, device: torch.device, share: bool) -> "ImageSet":
        """Copy to a device; with `share`, keep a storage that holds exactly these images."""
        storage: Storage
        if share and self._is_whole():
            storage = self.storage.to(device)
        elif isinstance(self.storage, Tensor):
            storage = self.storage[self.indices].to(device)
        else:
            storage = self.storage.select(self.indices).to(device)
        indices = torch.arange(len(self), device=device)
        return ImageSet(storage, indices, self.labels.to(device), self.class_names)


def check_apart(name: str, train: ImageSet, test: ImageSet) -> None:
    """Refuse test images of a user's own of which many are training images too."""
    known = set(_pixel_hashes(train))
    shared = sum(pixels in known for pixels in _pixel_hashes(test))
    if shared > SHARED * len(test):
        raise DataError(
            f"{shared:,} of the {len(test):,} test images of {name} are training images too: "
            "leave them out of one of the two"
        )


def _pixel_hashes(images: ImageSet) -> Iterator[int]:
    """Yield a hash of the shape and the pixels of each image."""
    for index in range(len(images)):
        image = images.image(index).cpu().numpy()
        yield hash((image.shape, image.tobytes()))


def concatenate(sets: Sequence[ImageSet]) -> ImageSet:
    """Concatenate sets of different classes; labels continue from one set to the next."""
    class_names = tuple(name for images in sets for name in images.class_names)
    first_labels = np.cumsum([0, *(len(images.class_names) for images in sets)])
    labels = torch.cat(
        [
            images.labels.cpu() + int(first)
            for images, first in zip(sets, first_labels, strict=False)
        ]
    )
    on_cpu = [images.compact().to("cpu") for images in sets]
    storages = [images.storage for images in on_cpu]
    tensors = [storage for storage in storages if isinstance(storage, Tensor)]
    storage: Storage
    if len(tensors) == len(storages) and len({tensor.shape[2:] for tensor in tensors}) == 1:
        storage = torch.cat(tensors)
    else:
        storage = Ragged.from_arrays(
            [images.image(i).numpy() for images in on_cpu for i in range(len(images))]
        )
    return ImageSet.from_images(storage, labels, class_names).to(sets[0].device)
