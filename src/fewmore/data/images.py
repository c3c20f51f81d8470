"""ImageSet: labelled uint8 images, in memory, on a device or in a memory-mapped file.

Images of one size are one tensor; of several sizes, one flat buffer with offsets and shapes. An ImageSet is a view:
`rows` says which images of the storage it holds, so choosing classes or shots copies nothing. The rest of fewmore asks
for pixels by index and does not know which of the storages lies below.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewmore.errors import DataError


@dataclass(frozen=True)
class Ragged:
    """Images of several sizes: channel by channel, one after the other, in one buffer."""

    buffer: Tensor  # (bytes,) uint8
    offsets: Tensor  # (n,) int64: where an image begins
    heights: Tensor  # (n,) int64
    widths: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def device(self) -> torch.device:
        return self.buffer.device

    @classmethod
    def from_arrays(cls, arrays: Sequence[np.ndarray]) -> "Ragged":
        """From uint8 arrays of shape (3, height, width)."""
        sizes = torch.tensor([a.size for a in arrays], dtype=torch.int64)
        return cls(
            torch.from_numpy(
                np.concatenate([np.empty(0, np.uint8), *(a.reshape(-1) for a in arrays)])
            ),
            sizes.cumsum(0) - sizes,
            torch.tensor([a.shape[1] for a in arrays], dtype=torch.int64),
            torch.tensor([a.shape[2] for a in arrays], dtype=torch.int64),
        )

    def take(self, rows: Tensor) -> "Ragged":
        """These images alone, copied into a buffer of their own."""
        rows = rows.to(self.device)
        return Ragged.from_arrays([self.image(int(row)).cpu().numpy() for row in rows])._to(
            self.device
        )

    def image(self, row: int) -> Tensor:
        """One image, (3, height, width)."""
        start, height, width = int(self.offsets[row]), int(self.heights[row]), int(self.widths[row])
        return self.buffer[start : start + 3 * height * width].view(3, height, width)

    def _to(self, device: torch.device | str) -> "Ragged":
        return Ragged(
            *(t.to(device) for t in (self.buffer, self.offsets, self.heights, self.widths))
        )


Storage = Tensor | Ragged  # a Tensor is (n, 3, height, width) uint8


@dataclass(frozen=True)
class ImageSet:
    """Labelled images: a view of a storage."""

    storage: Storage
    rows: Tensor  # (n,) int64: which images of the storage
    labels: Tensor  # (n,) int64: index into class_names
    class_names: tuple[str, ...]

    @classmethod
    def of(
        cls,
        storage: Storage | np.ndarray,
        labels: Sequence[int] | Tensor | np.ndarray,
        class_names: Sequence[str],
    ) -> "ImageSet":
        """All images of a storage, checked."""
        if isinstance(storage, np.ndarray):
            storage = torch.from_numpy(storage)
        if isinstance(storage, Tensor) and (
            storage.dtype != torch.uint8 or storage.dim() != 4 or storage.shape[1] != 3
        ):
            raise DataError(
                f"images must be uint8 of shape (n, 3, height, width), not {storage.dtype} of {tuple(storage.shape)}"
            )
        labels = torch.as_tensor(labels, dtype=torch.int64)
        if len(labels) != len(storage):
            raise DataError(
                f"{len(storage)} images have {len(labels)} labels: there must be one label an image"
            )
        if len(set(class_names)) != len(class_names):
            twice = sorted({name for name in class_names if list(class_names).count(name) > 1})
            raise DataError(f"class names must differ; more than once: {', '.join(twice)}")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(class_names):
            raise DataError(
                f"labels must lie in 0 … {len(class_names) - 1}, not {int(labels.min())} … {int(labels.max())}"
            )
        return cls(
            storage,
            torch.arange(len(labels), device=storage.device),
            labels.to(storage.device),
            tuple(class_names),
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def device(self) -> torch.device:
        return self.storage.device

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width where all images share them, else None."""
        return (
            (self.storage.shape[2], self.storage.shape[3])
            if isinstance(self.storage, Tensor)
            else None
        )

    def counts(self) -> Tensor:
        """How many images each class has."""
        return torch.bincount(self.labels, minlength=len(self.class_names))

    def image(self, index: int) -> Tensor:
        """One image, (3, height, width) uint8."""
        row = int(self.rows[index])
        return self.storage[row] if isinstance(self.storage, Tensor) else self.storage.image(row)

    def select(self, indices: Tensor) -> "ImageSet":
        """The images at these positions; classes keep their numbers."""
        indices = indices.to(self.device)
        return replace(self, rows=self.rows[indices], labels=self.labels[indices])

    def only(self, classes: Sequence[int]) -> "ImageSet":
        """The images of these classes, which are numbered anew in the order given."""
        number = torch.full((len(self.class_names),), -1, device=self.device)
        number[list(classes)] = torch.arange(len(classes), device=self.device)
        labels = number[self.labels]
        kept = (labels >= 0).nonzero().squeeze(1)
        return ImageSet(
            self.storage, self.rows[kept], labels[kept], tuple(self.class_names[c] for c in classes)
        )

    def compact(self) -> "ImageSet":
        """The same set with a storage that holds its own images and no others."""
        return self._moved(self.device, copy=True)

    def to(self, device: torch.device | str) -> "ImageSet":
        """The same set on a device; only its own images travel."""
        device = torch.empty(0, device=device).device  # with its number: "cuda" is cuda:0
        return self if device == self.device else self._moved(device, copy=False)

    def content_hash(self) -> str:
        """A short name of the content: the same images with the same labels have the same one."""
        digest = hashlib.sha256(repr((len(self), self.class_names)).encode())
        digest.update(self.labels.cpu().numpy().tobytes())
        for start in range(0, len(self), 4096):
            for index in (
                range(start, min(start + 4096, len(self)))
                if isinstance(self.storage, Ragged)
                else ()
            ):
                digest.update(self.image(index).cpu().contiguous().numpy().tobytes())
            if isinstance(self.storage, Tensor):
                digest.update(
                    self.storage[self.rows[start : start + 4096]]
                    .cpu()
                    .contiguous()
                    .numpy()
                    .tobytes()
                )
        return digest.hexdigest()[:16]

    def state(self) -> dict[str, Any]:
        """The set as a dict of tensors and JSON values."""
        own = self.compact().storage
        pixels = {"pixels": own} if isinstance(own, Tensor) else dict(vars(own))
        return {**pixels, "labels": self.labels, "class_names": list(self.class_names)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "ImageSet":
        """The set that gave this state."""
        keys = ("buffer", "offsets", "heights", "widths")
        storage = state["pixels"] if "pixels" in state else Ragged(*(state[key] for key in keys))
        return cls.of(storage, state["labels"], state["class_names"])

    def _moved(self, device: torch.device, copy: bool) -> "ImageSet":
        whole = len(self) == len(self.storage) and bool(
            (self.rows == torch.arange(len(self), device=self.device)).all()
        )
        storage: Storage
        if isinstance(self.storage, Tensor):
            storage = (self.storage if whole and not copy else self.storage[self.rows]).to(device)
        else:
            storage = (self.storage if whole and not copy else self.storage.take(self.rows))._to(
                device
            )
        return ImageSet(
            storage,
            torch.arange(len(self), device=device),
            self.labels.to(device),
            self.class_names,
        )


def concatenate(sets: Sequence[ImageSet]) -> ImageSet:
    """Sets of different classes one after the other; classes are numbered on."""
    names = tuple(name for one in sets for name in one.class_names)
    starts = np.cumsum([0, *(len(one.class_names) for one in sets)])
    labels = torch.cat(
        [one.labels.cpu() + int(start) for one, start in zip(sets, starts, strict=False)]
    )
    storages = [one.compact().to("cpu").storage for one in sets]
    if (
        all(isinstance(s, Tensor) for s in storages)
        and len({s.shape[2:] for s in storages if isinstance(s, Tensor)}) == 1
    ):
        whole: Storage = torch.cat([s for s in storages if isinstance(s, Tensor)])
    else:
        whole = Ragged.from_arrays(
            [one.image(i).cpu().numpy() for one in sets for i in range(len(one))]
        )
    return ImageSet.of(whole, labels, names).to(sets[0].device)
