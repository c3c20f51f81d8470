"""Describe the format of a model file.

A model file is a safetensors file. Its one metadata entry, "fewmore", is JSON:

    format        version of the format
    sha256        checksum of the file, computed with zeros in its place
    fewmore       version of the program that wrote the file
    backbone      name of the network; its weights are the tensors "backbone/…"
    transform     image size and normalization: TRANSFORM
    variance      of features within classes
    whitening     number of damped directions, or null: "whitening/center", "whitening/damping"
    power         that features are raised to before whitening
    own_classes   of the backbone's classifier in the tensor "whitening/classifier", or 0
    share         of their probabilities in a cosine
    calibration   temperature, thresholds and what held-out images said
    adapter       settings of the adapter, or null; its weights are the tensors "adapter/…"
    dim           features of an image
    version       number of the last change
    classes       name, number of images and number of content hashes of each class
    history       kind, classes, number of images and time of each change
    undo_steps    for the last changes: classes to drop, and classes to restore, each with its
                  position "at"
    notes         what training decided
    origin        how the model was trained

The tensor "feature_sums" has a row for each class of `classes` and then for each class to restore;
"hashes" has their content hashes in the same order. "projection" is there if the adapter works on
fewer dimensions than the backbone gives. Nothing in the file is ever executed.
"""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import nn

from fewmore.nn.adapter import Adapter, AdapterConfig
from fewmore.nn.backbones import build_without_memory

FORMAT = 5  # 1: without whitening; 2: a power; 3: removed images; 4: own classes
METADATA = "fewmore"  # name of the metadata entry
NO_CHECKSUM = "0" * 64  # stands in the place of the checksum while it is computed
MAX_IMAGE_SIZE = 4096  # pixels a side, before the center is cropped

# Files from before the first release, when the project was called cecil, use other names.
OLD_METADATA = "cecil"
OLD_NAMES = {
    "prints": "hashes",
    "totals": "feature_sums",
    "spread": "variance",
    "reversals": "undo_steps",
    "pictures": "images",
    "sessions_adapted": "sessions_chosen",
}

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]  # shape and dtype of tensors, by name
DTYPE_CODES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}

# Fields of a transform that are written; augmentations beyond them are for training alone.
TRANSFORM = ("size", "mean", "std", "crop", "pad", "scale", "flip", "resize")

T = TypeVar("T")


def with_current_names(table: Mapping[str, T]) -> dict[str, T]:
    """Rename keys from before the first release."""
    return {OLD_NAMES.get(name, name): value for name, value in table.items()}


def expected_layout(
    backbone: str,
    adapter: AdapterConfig | None,
    dim: int,
    projected_dim: int | None,
    whitening: int | None,
    own_classes: int,
    classes: int,
    hashes: int,
) -> Layout:
    """Return the names, shapes and dtypes of all tensors of a model, without allocating them.

    `projected_dim` is None if there is no projection, and `whitening`, the number of its
    directions, if there is none. `dim` includes the `own_classes` of the backbone's classifier.
    `classes` and `hashes` are numbers that include what undo steps restore.
    """
    layout = _layout(build_without_memory(backbone), "backbone/")
    if adapter is not None:
        with torch.device("meta"):
            layout |= _layout(Adapter(projected_dim or dim, adapter), "adapter/")
        if projected_dim is not None:
            layout["projection"] = ((dim, projected_dim), torch.float32)
    if whitening is not None:
        given = dim - own_classes
        layout["whitening/center"] = ((given,), torch.float32)
        layout["whitening/damping"] = ((given, whitening), torch.float32)
        if own_classes:
            layout["whitening/classifier"] = ((own_classes, given + 1), torch.float32)
    if classes:
        layout["feature_sums"] = ((classes, dim), torch.float64)
    layout["hashes"] = ((hashes,), torch.int64)
    return layout


def _layout(module: nn.Module, prefix: str) -> Layout:
    return {
        prefix + name: (tuple(tensor.shape), tensor.dtype)
        for name, tensor in module.state_dict().items()
    }
