"""CIFAR-100 in the publisher's python version: pickled dicts, read by an unpickler that builds plain values only.

A pickle is a program. This reader runs it with nothing at hand but integer arrays, strings, bytes, numbers, lists and
dicts; a file that asks for anything else is refused.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fewmore.data.images import ImageSet
from fewmore.errors import DataError, MissingData

FOLDER = "cifar-100-python"
AGAIN = "remove the folder and run `fewmore data get cifar100`"


def load(folder: Path) -> tuple[ImageSet, ImageSet]:
    """The training and the test set, in the order of the files."""
    names = _entry(folder / "meta", "fine_label_names")
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(
            f"{folder / 'meta'} should hold the names of the classes, and does not: {AGAIN}"
        )
    class_names = [name.decode() if isinstance(name, bytes) else name for name in names]
    return _part(folder / "train", class_names), _part(folder / "test", class_names)


def _part(path: Path, class_names: list[str]) -> ImageSet:
    pixels, labels = _entry(path, "data", "fine_labels")
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.ndim != 2
        or pixels.shape[1] != 3 * 32 * 32
    ):
        raise DataError(f"{path} should hold images as rows of 3,072 bytes, and does not: {AGAIN}")
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise DataError(f"{path} should hold a list of labels, and does not: {AGAIN}")
    try:
        return ImageSet.of(pixels.reshape(-1, 3, 32, 32), labels, class_names)
    except DataError as error:
        raise DataError(f"{path}: {error}; {AGAIN}") from error


def _entry(path: Path, *keys: str) -> Any:
    """The values of these keys, which Python 2 wrote as bytes; of one key, the value itself."""
    if not path.is_file():
        raise MissingData(
            f"{path} is not there: run `fewmore data get cifar100`, or give the folder that {FOLDER} lies in with --data-root"
        )
    try:
        with open(path, "rb") as file:
            content = _Plain(file, encoding="bytes").load()
    except Exception as error:  # damaged bytes can make an unpickler raise anything
        raise DataError(
            f"{path} is not a file of CIFAR-100, or is damaged ({error}): {AGAIN}"
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not a dict: {AGAIN}")
    values = [content.get(key, content.get(key.encode())) for key in keys]
    values = [value.array if isinstance(value, _Array) else value for value in values]
    if absent := [key for key, value in zip(keys, values, strict=True) if value is None]:
        raise DataError(
            f"{path} has no entry '{absent[0]}', which CIFAR-100's python version has: {AGAIN}"
        )
    return values if len(values) > 1 else values[0]


class _Plain(pickle.Unpickler):
    """Knows the names that a pickled array needs, each bound to a stand-in from this file; numpy itself is out of reach."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _NAMES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, and data files have no need of it"
            ) from None


class _Array:
    """An array: made empty, then given its state."""

    array: np.ndarray = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, columns_first, content = state
        if not isinstance(kind, _Integers) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it holds an array of something else than integers")
        self.array = (
            np.frombuffer(content, kind.order + kind.code)
            .reshape(shape, order="F" if columns_first else "C")
            .copy()
        )


class _Integers:
    """The type of an array's numbers: made with its code, then told the byte order."""

    def __init__(self, code: str | bytes, *_options: object) -> None:
        self.code = _text(code)
        self.order = "="
        if self.code not in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"):
            raise pickle.UnpicklingError(
                f"it holds an array of type '{self.code}', not of integers"
            )

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])
        if self.order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"it holds numbers in the byte order '{self.order}'")


def _reconstruct(*_arguments: object) -> _Array:
    """What numpy calls to make an empty array; in a pickle, the arguments are always the same."""
    return _Array()


def _latin1(text: str, encoding: str | bytes) -> bytes:
    """Bytes, as Python 3 writes them into a pickle that Python 2 can read."""
    if _text(encoding) != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


def _text(value: str | bytes) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else value


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Integers,
    ("_codecs", "encode"): _latin1,
}
