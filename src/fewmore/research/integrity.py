"""Check, while a method runs, that it keeps to the protocol.

Scores of an image must not depend on the other images of its batch, scoring must not change what
was learnt, and no more images may be kept than declared. These are checks against accidents; what
Python cannot stop is named in docs/protocol.md.
"""

import hashlib
import json
from collections.abc import Iterable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fewmore.data.images import ImageSet, Ragged
from fewmore.errors import MethodError
from fewmore.methods.base import Method, Recipe
from fewmore.random import derive_seed
from fewmore.training.checkpoint import State
from fewmore.training.runtime import Runtime

# The names of the checks, in the order in which they are written into a result.
ORDER = "test images of all sessions in one order"
BATCH = "scores do not depend on the batch"
STATE = "scoring changes nothing"
KEPT = "images kept are counted"
CHECKS = (ORDER, BATCH, STATE, KEPT)

SAMPLE = 64  # test images that are scored again
# The largest difference between two scores of an image that counts as rounding, as a fraction of
# the largest score. A GPU may choose a kernel of lower precision (TF32) for one size of batch only.
CPU_TOLERANCE = 1e-3
GPU_TOLERANCE = 1e-2
# Of so many images one may differ by more: rounding can turn a vote or a ranking around.
ONE_IN = 16
_RANDOM_STATE = 5056  # bytes of the state of a torch.Generator, which is no image
# What holds no images of a method: a recipe, the run's own objects, code, and plain values.
_NO_HOLDERS = (Runtime, Recipe, type, FunctionType, MethodType, ModuleType, int, float, str, bytes)
_RAGGED = {"buffer", "offsets", "heights", "widths"}  # the parts of images of several sizes


def generator(content: str, *parts: object) -> torch.Generator:
    """Return a generator that depends on the test set's content hash: no method can know it."""
    return torch.Generator().manual_seed(derive_seed("test", content, *parts))


def sample_of(queries: Tensor, generator: torch.Generator) -> Tensor:
    """Choose the test images to score again: at most half, so that the batch is another one."""
    size = min(SAMPLE, max(1, len(queries) // 2))
    order = torch.randperm(len(queries), generator=generator)[:size]
    return queries[order.to(queries.device)]


def check_same_scores(method: Method, first: Tensor, again: Tensor) -> None:
    """Refuse scores that change when the same images are scored in another batch."""
    name = type(method).__name__
    if not isinstance(again, Tensor) or again.shape != first.shape:
        found = tuple(again.shape) if isinstance(again, Tensor) else type(again).__name__
        raise MethodError(
            f"{name} gave scores of shape {found} for a smaller batch of {len(first)} images; "
            f"{tuple(first.shape)} was expected"
        )
    first, again = first.double(), again.double()
    tolerance = CPU_TOLERANCE if first.device.type == "cpu" else GPU_TOLERANCE
    scale = first.abs().amax().clamp(min=1e-30)
    difference = (first - again).abs().amax(1) / scale
    differing = int((~(difference <= tolerance)).sum())  # NaN differs, too
    if differing > len(first) // ONE_IN:
        raise MethodError(
            f"{name}: the scores of an image depend on the other images of the batch, or on when "
            f"it is scored: {differing} of {len(first)} test images, scored again in another "
            f"batch, got other scores (by up to {float(difference.max()):.1%} of the largest "
            "score); take no statistics over a test batch, such as batch norm in training mode"
        )


def check_unchanged(method: Method, before: str) -> None:
    """Refuse a method whose state is another one after scoring; `before` is its hash."""
    if state_hash(method.state()) != before:
        raise MethodError(
            f"{type(method).__name__}: scoring test images changed its state; a method must learn "
            "in fit and learn alone, and embed and scores must change nothing"
        )


def check_state(method: Method, state: object, path: str = "") -> None:
    """Refuse a state that cannot be written; `path` says where in it one is."""
    if isinstance(state, dict):
        for key, inner in state.items():
            if not isinstance(key, str):
                raise MethodError(
                    f"{type(method).__name__}: state() has the key {key!r}"
                    f"{path and f' in {path}'}, and keys must be texts: write str(key)"
                )
            check_state(method, inner, f"{path}/{key}" if path else key)
    elif not isinstance(state, Tensor):
        try:
            json.dumps(state)
        except (TypeError, ValueError):
            raise MethodError(
                f"{type(method).__name__}: state() gives a {type(state).__name__}"
                f"{path and f' as {path}'}, and must be nested dicts of tensors and JSON values: "
                "make a tensor or a JSON value of it, or leave it out and make it anew in restore"
            ) from None


def state_hash(state: State) -> str:
    """Return the content hash of a state: about a second for a gigabyte."""
    digest = hashlib.sha256()

    def update(value: Any) -> None:
        if isinstance(value, Tensor):
            digest.update(repr((value.dtype, tuple(value.shape))).encode())
            data = value.detach().cpu().contiguous().flatten()
            digest.update(data.view(torch.uint8).numpy().data)
        elif isinstance(value, dict):
            for key, inner in value.items():
                digest.update(repr(key).encode())
                update(inner)
        else:
            digest.update(repr(value).encode())

    update(state)
    return digest.hexdigest()


def check_images_kept(method: Method, state: State, session: ImageSet) -> int:
    """Refuse a method that holds more images than it declares, and return how many it keeps.

    A method may keep images in a form that is not recognised, such as compressed ones: where it
    declares more than is found, its own number counts.
    """
    declared = method.images_kept()
    held = count_images(method, state, session)
    name = type(method).__name__
    images = "1 image" if held == 1 else f"{held} images"
    if held > declared:
        raise MethodError(
            f"{name} holds {images} and declares {declared}: images_kept() must count every "
            "image that it keeps, float copies included"
        )
    if held and method.keeps is None:
        raise MethodError(
            f"{name} holds {images} and its `keeps` is None: say there what it keeps, "
            'such as keeps = "five images a class"'
        )
    return declared


def count_images(method: Method, state: State, session: ImageSet) -> int:
    """Count the images in a method's state, or in the object itself where there are more."""
    inside, in_state = _Contents(vars(method)), _Contents(state)
    counter = _ImageCounter(session, method.recipe.transform.size, inside.weights)
    return max(
        sum(found.images.values()) + sum(map(counter.count, found.arrays.values()))
        for found in (inside, in_state)
    )


Array = Tensor | np.ndarray


class _Contents:
    """Find what is reachable from a value, each array once."""

    def __init__(self, value: object) -> None:
        self.arrays: dict[object, Array] = {}
        self.images: dict[int, int] = {}  # of several sizes: images by address of their buffer
        self.weights: set[tuple[int, ...]] = set()  # shapes of parameters
        visited: set[int] = set()
        waiting = [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, Tensor | np.ndarray):
                self._add(item)
            elif id(item) not in visited and not isinstance(item, _NO_HOLDERS):
                visited.add(id(item))
                waiting += self._parts(item)

    def _add(self, array: Array) -> None:
        if isinstance(array, nn.Parameter):
            self.weights.add(tuple(array.shape))
        elif isinstance(array, np.ndarray):
            self.arrays[array.ctypes.data, array.shape, array.dtype.str] = array
        elif array.layout == torch.strided and array.device.type != "meta":
            self.arrays[array.data_ptr(), tuple(array.shape), array.dtype] = array

    def _parts(self, item: object) -> Iterable[object]:
        if isinstance(item, dict):
            if item.keys() >= _RAGGED:
                self.images[item["buffer"].data_ptr()] = len(item["offsets"])
                return ()
            return item.values()
        if isinstance(item, list | tuple | set | frozenset):
            return item
        return (vars(item),) if hasattr(item, "__dict__") else ()


class _ImageCounter:
    """Count the images in arrays: those of the sizes that a method is shown."""

    def __init__(self, session: ImageSet, view: int, weights: set[tuple[int, ...]]) -> None:
        storage = session.storage
        if isinstance(storage, Ragged):
            stored = set(zip(storage.heights.tolist(), storage.widths.tolist(), strict=True))
        else:
            stored = {(storage.shape[2], storage.shape[3])}
        self.largest = max(3 * height * width for height, width in stored)
        sizes = stored | {(view, view)}
        self.shapes = {(3, *size) for size in sizes} | {(*size, 3) for size in sizes}
        self.weights = weights

    def count(self, array: Array) -> int:
        """Count the images in an array.

        Of bytes in a row, as many are counted as there are images of the largest size in them. In
        other numbers an image is known by its shape, unless the network has weights of this shape.
        """
        shape = tuple(array.shape)
        numbers = int(np.prod(shape))
        if array.dtype in (torch.uint8, np.uint8):
            if len(shape) == 4 and 3 in (shape[1], shape[3]):
                return int(shape[0])
            is_random_state = shape == (_RANDOM_STATE,)
            return 0 if is_random_state else numbers // self.largest
        if shape[-3:] not in self.shapes or shape in self.weights:
            return 0
        return numbers // int(np.prod(shape[-3:]))
