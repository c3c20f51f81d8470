"""Read CIFAR-100 in the publisher's python version: pickled dicts of arrays and lists.

A pickle is a program. This unpickler gives it nothing but integer arrays, strings, bytes, numbers,
lists and dicts; a file that asks for anything else is refused.
"""

import hashlib
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewmore.data.images import ImageSet
from fewmore.data.sources import list_checksums
from fewmore.errors import DataError, MissingData

FOLDER = "cifar-100-python"
FETCH_AGAIN = "remove the folder and run `fewmore data get cifar100`"
BASE, WAY, SHOT, CLASS_SIZE = 60, 5, 5, 500  # of the published session lists


def load(folder: Path) -> tuple[ImageSet, ImageSet]:
    """Load the training and the test set, in the order of the files."""
    (names,) = _read_values(folder / "meta", "fine_label_names")
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(
            f"{folder / 'meta'} should hold the names of the classes, and does not: {FETCH_AGAIN}"
        )
    class_names = [name.decode() if isinstance(name, bytes) else name for name in names]
    return _load_part(folder / "train", class_names), _load_part(folder / "test", class_names)


def published_lists(labels: Sequence[int]) -> list[list[int]] | None:
    """Return the published session lists, as positions in the published training set.

    They show every class's images in one shuffled order, the same for all classes: new classes the
    first five of them. So they need not be stored. None is returned where the lists made from these
    labels do not have the published checksums: the images come in another order.
    """
    positions: list[list[int]] = [[] for _ in range(100)]
    for index, label in enumerate(labels):
        positions[label].append(index)
    if any(len(of_class) != CLASS_SIZE for of_class in positions):
        return None
    order = np.random.RandomState(1).permutation(CLASS_SIZE)
    shuffled = [[of_class[rank] for rank in order] for of_class in positions]
    lists = [[index for of_class in shuffled[:BASE] for index in of_class]]
    for first in range(BASE, 100, WAY):
        new = shuffled[first : first + WAY]
        lists.append([index for of_class in new for index in of_class[:SHOT]])
    for session, sha256 in zip(lists, list_checksums("cifar100").values(), strict=True):
        text = "".join(f"{index}\n" for index in session)
        if hashlib.sha256(text.encode()).hexdigest() != sha256:
            return None
    return lists


def _load_part(path: Path, class_names: list[str]) -> ImageSet:
    pixels, labels = _read_values(path, "data", "fine_labels")
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.ndim != 2
        or pixels.shape[1] != 3 * 32 * 32
    ):
        raise DataError(
            f"{path} should hold images as rows of 3,072 bytes, and does not: {FETCH_AGAIN}"
        )
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise DataError(f"{path} should hold a list of labels, and does not: {FETCH_AGAIN}")
    try:
        return ImageSet.from_images(pixels.reshape(-1, 3, 32, 32), labels, class_names)
    except DataError as error:
        raise DataError(f"{path}: {error}; {FETCH_AGAIN}") from error


def _read_values(path: Path, *keys: str) -> list[Any]:
    """Read the values of these keys, which Python 2 wrote as bytes."""
    if not path.is_file():
        raise MissingData(
            f"{path} is not there: run `fewmore data get cifar100`, "
            f"or give the folder that {FOLDER} lies in with --data-root"
        )
    try:
        with open(path, "rb") as file:
            content = _RestrictedUnpickler(file, encoding="bytes").load()
    except Exception as error:  # damaged bytes can make an unpickler raise anything
        raise DataError(
            f"{path} is not a file of CIFAR-100, or is damaged ({error}): {FETCH_AGAIN}"
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not a dict: {FETCH_AGAIN}")
    values = [content.get(key, content.get(key.encode())) for key in keys]
    values = [value.array if isinstance(value, _Array) else value for value in values]
    for key, value in zip(keys, values, strict=True):
        if value is None:
            raise DataError(
                f"{path} has no entry '{key}', which CIFAR-100's python version has: {FETCH_AGAIN}"
            )
    return values


class _RestrictedUnpickler(pickle.Unpickler):
    """Resolve the names that a pickled array needs to stand-ins from this file, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a name; numpy itself is out of reach."""
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, and data files have no need of it"
            ) from None


class _Array:
    """Stand in for numpy.ndarray: made empty, then filled by __setstate__."""

    array: np.ndarray = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, is_fortran, content = state
        if not isinstance(dtype, _IntegerType) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it holds an array of something else than integers")
        flat = np.frombuffer(content, dtype.byte_order + dtype.code)
        self.array = flat.reshape(shape, order="F" if is_fortran else "C").copy()


class _IntegerType:
    """Stand in for numpy.dtype: made with a type code, then given its byte order."""

    def __init__(self, code: str | bytes, *_options: object) -> None:
        self.code = _text(code)
        self.byte_order = "="
        if self.code not in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"):
            raise pickle.UnpicklingError(
                f"it holds an array of type '{self.code}', not of integers"
            )

    def __setstate__(self, state: Any) -> None:
        self.byte_order = _text(state[1])
        if self.byte_order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"it holds numbers in the byte order '{self.byte_order}'")


def _reconstruct(*_arguments: object) -> _Array:
    """Stand in for the numpy function that makes an empty array; a pickle varies no argument."""
    return _Array()


def _latin1(text: str, encoding: str | bytes) -> bytes:
    """Stand in for codecs.encode, by which Python 3 writes bytes that Python 2 can read."""
    if _text(encoding) != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


def _text(value: str | bytes) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else value


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _IntegerType,
    ("_codecs", "encode"): _latin1,
}
