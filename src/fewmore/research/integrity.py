"""Check, while a method runs, that it keeps to the protocol.

Scores of an image must not depend on the other images of its batch, scoring must not change what
was learnt, and no more images may be kept than declared. These are checks against accidents; what
Python cannot stop is named in docs/protocol.md.
"""

import hashlib
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
GPU_TOLERANCE = 2e-2
# Of so many images one may differ by more: rounding can turn a vote or a ranking around.
ONE_IN = 16
_RANDOM_STATE = 5056  # bytes of the state of a torch.Generator, which is no image


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
    if held > declared:
        raise MethodError(
            f"{name} holds {held} images and declares {declared}: images_kept() must count every "
            "image that it keeps, float copies included"
        )
    if held and method.keeps is None:
        raise MethodError(
            f"{name} holds {held} images and its `keeps` is None: say there what it keeps, "
            'such as keeps = "five images a class"'
        )
    return declared


def count_images(method: Method, state: State, session: ImageSet) -> int:
    """Count the images in a method's state, or in the object itself where there are more."""
    counter = _Counter(session, method.recipe.transform.size)
    inside = counter.count(vars(method))
    counter.visited.clear()
    return max(inside, counter.count(state))


class _Counter:
    """Count images of the sizes that a method is shown, whatever their type of number."""

    def __init__(self, session: ImageSet, view: int) -> None:
        sizes = {(view, view)}
        if isinstance(session.storage, Ragged):
            storage = session.storage
            sizes.update(zip(storage.heights.tolist(), storage.widths.tolist(), strict=True))
        elif session.size is not None:
            sizes.add(session.size)
        self.shapes = {(3, *size) for size in sizes} | {(*size, 3) for size in sizes}
        self.smallest = min(3 * height * width for height, width in sizes)
        self.weights: set[tuple[int, ...]] = set()  # shapes of parameters, which are no images
        self.visited: set[object] = set()

    def count(self, value: object) -> int:
        """Count the images reachable from a value."""
        if isinstance(value, nn.Parameter):
            self.weights.add(tuple(value.shape))
            return 0
        if isinstance(value, Tensor):
            return self._count_once((value.data_ptr(), tuple(value.shape), value.dtype), value)
        if isinstance(value, np.ndarray):
            key = (value.ctypes.data, value.shape, str(value.dtype))
            return 0 if value.dtype.kind not in "fiub" else self._count_once(key, value)
        if id(value) in self.visited or isinstance(value, Runtime | Recipe):
            return 0
        self.visited.add(id(value))
        if isinstance(value, Ragged):
            return len(value)
        if isinstance(value, dict):
            if {"buffer", "offsets", "heights", "widths"} <= value.keys():  # a Ragged's state
                return len(value["offsets"])
            return sum(map(self.count, value.values()))
        if isinstance(value, list | tuple | set | frozenset):
            return sum(self.count(inner) for inner in value if not isinstance(inner, int | float))
        if isinstance(value, type | FunctionType | MethodType | ModuleType):
            return 0
        return self.count(vars(value)) if hasattr(value, "__dict__") else 0

    def _count_once(self, key: object, array: Tensor | np.ndarray) -> int:
        if key in self.visited:
            return 0
        self.visited.add(key)
        shape = tuple(array.shape)
        numbers = int(np.prod(shape))
        if array.dtype in (torch.uint8, np.uint8):
            if len(shape) == 4 and 3 in (shape[1], shape[3]):
                return int(shape[0])
            is_random_state = len(shape) == 1 and numbers == _RANDOM_STATE
            return 0 if is_random_state else numbers // self.smallest
        if shape[-3:] not in self.shapes or shape in self.weights:
            return 0
        return numbers // int(np.prod(shape[-3:]))
