"""Read a model file, and refuse one that is newer, damaged or hostile.

Before any tensor is read, the layout of the file is compared with what its metadata promise, and
that with what fewmore can hold: a hostile file costs no more memory than a small multiple of its
own size.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fewmore import __version__
from fewmore.classifier.calibration import Calibration
from fewmore.classifier.class_set import MAX_UNDO_STEPS, ClassSet
from fewmore.classifier.classes import KnownClass, clean_name
from fewmore.classifier.history import Change, UndoStep, class_sessions
from fewmore.classifier.model import Model
from fewmore.classifier.model_file.format import (
    DTYPE_CODES,
    FORMAT,
    MAX_IMAGE_SIZE,
    METADATA,
    NO_CHECKSUM,
    OLD_METADATA,
    Layout,
    expected_layout,
    with_current_names,
)
from fewmore.classifier.whitening import Whitening
from fewmore.data.augment import Transform
from fewmore.errors import ConfigError, FewmoreError, ModelFileError, first_line
from fewmore.nn.adapter import AdapterConfig

MAX_HEADER_BYTES = 100_000_000  # safetensors refuses more as well

Json = dict[str, Any]


def read(path: str | Path) -> Model:
    """Read a model, or say what is wrong with the file."""
    path = Path(path).expanduser()
    check_exists(path)
    with _refused(path), path.open("rb") as file:
        return _read(file)


def check_exists(path: Path) -> None:
    """Refuse a path without a model file; to be called before locking, which makes a file."""
    path = path.expanduser()
    if not path.exists():
        raise ModelFileError(
            f"there is no model file {path}: check its name, "
            f"or make one with `fewmore train PHOTOS -o {path}`"
        )
    with _refused(path), path.open("rb") as file:
        _read_header(file, os.fstat(file.fileno()).st_size)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Turn all that can be wrong with a file into a sentence."""
    try:
        yield
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read ({error.strerror or error}): give the path of a model file"
        ) from error
    except _NewerFormat as error:
        raise ModelFileError(
            f"{path} has format {error}, and fewmore {__version__} knows formats up to {FORMAT}: "
            "update it with pip install -U fewmore"
        ) from error
    except ConfigError as error:
        raise ModelFileError(f"{path} cannot be used here: {error}") from error
    except (
        SafetensorError,
        FewmoreError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        reason = first_line(error)
        raise ModelFileError(
            f"{path} is damaged, or not a model file of fewmore's ({reason}): "
            "take a copy of it that is whole, or train anew"
        ) from error


class _NewerFormat(Exception):
    """Report a format that this version does not know."""


def _read(file: IO[bytes]) -> Model:
    size = os.fstat(file.fileno()).st_size
    header = _read_header(file, size)
    entries = with_current_names(json.loads(header[8:]))
    metadata = _parse_metadata(entries.pop("__metadata__"))
    layout = _promised_layout(metadata, entries)
    content = sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout.values())
    if size != len(header) + content:
        raise ValueError("its size does not fit its content")
    data = header + file.read()
    _check_checksum(data, metadata["sha256"])
    tensors = with_current_names(load(data))
    if {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()} != layout:
        raise ValueError("its tensors are others than its backbone and classes need")
    return _to_model(metadata, tensors)


# Header and checksum


def _read_header(file: IO[bytes], size: int) -> bytes:
    """Read the safetensors header with its length before it, if the file has room for it."""
    first = file.read(8)
    if len(first) < 8:
        raise ValueError(f"it has only {size} bytes")
    (length,) = struct.unpack("<Q", first)
    if length > min(size - 8, MAX_HEADER_BYTES):
        raise ValueError(f"its header claims {length:,} bytes, and the file has {size:,}")
    return first + file.read(length)


def _parse_metadata(entry: dict[str, str]) -> Json:
    def refuse(text: str) -> float:
        raise ValueError(f"{text} is no number")

    text = entry.get(METADATA) or entry[OLD_METADATA]
    metadata: Json = json.loads(text, parse_constant=refuse, object_hook=with_current_names)
    if _integer(metadata["format"], least=1) > FORMAT:
        raise _NewerFormat(str(metadata["format"]))
    return metadata


def _promised_layout(metadata: Json, entries: Json) -> Layout:
    """Return the layout of all tensors that the metadata promise, if the header has the same."""
    dim = _integer(metadata["dim"], least=1)
    adapter = None if metadata["adapter"] is None else AdapterConfig(**metadata["adapter"])
    projected_dim = None
    if adapter is not None and "projection" in entries:
        projected_dim = _integer(entries["projection"]["shape"][1], least=1, most=dim)
    whitening = metadata.get("whitening")
    if whitening is not None:
        whitening = _integer(whitening, most=dim)
    own_classes = _integer(metadata.get("own_classes", 0), most=dim - 1)
    restored = (known for step in metadata["undo_steps"] for known in step["restore"])
    classes = [*metadata["classes"], *restored]
    hashes = sum(_integer(known["hashes"]) for known in classes)
    layout = expected_layout(
        _text(metadata["backbone"]),
        adapter,
        dim,
        projected_dim,
        whitening,
        own_classes,
        len(classes),
        hashes,
    )
    if entries.keys() != layout.keys():
        example = min(entries.keys() ^ layout.keys())
        raise ValueError(
            f"its tensors are others than its backbone and classes need, such as {example}"
        )
    for name, (shape, dtype) in layout.items():
        code = DTYPE_CODES[dtype]
        if tuple(entries[name]["shape"]) != shape or entries[name]["dtype"] != code:
            raise ValueError(f"its tensor {name} should be {code} of {shape}")
    return layout


def _check_checksum(data: bytes, claimed: object) -> None:
    claimed = _text(claimed)
    start = data.find(claimed.encode()) if len(claimed) == len(NO_CHECKSUM) else -1
    if start < 0:
        raise ValueError("it has no checksum")
    digest = hashlib.sha256(data[:start] + NO_CHECKSUM.encode())
    digest.update(memoryview(data)[start + len(NO_CHECKSUM) :])
    if digest.hexdigest() != claimed:
        raise ValueError("its checksum is not that of its content")


# Content


def _to_model(metadata: Json, tensors: dict[str, Tensor]) -> Model:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"its tensor {name} holds numbers that are not finite")
    adapter = metadata["adapter"]
    return Model(
        backbone=_text(metadata["backbone"]),
        transform=_to_transform(metadata["transform"]),
        weights=_with_prefix(tensors, "backbone/"),
        dim=metadata["dim"],
        class_set=_to_class_set(metadata, tensors),
        calibration=Calibration(**metadata["calibration"]),
        variance=_number(metadata["variance"]),
        whitening=_to_whitening(_with_prefix(tensors, "whitening/"), metadata),
        adapter=None if adapter is None else _with_prefix(tensors, "adapter/"),
        adapter_config=AdapterConfig(**(adapter or {})),
        projection=tensors.get("projection"),
        notes=tuple(map(_text, metadata["notes"])),
        origin=_to_origin(metadata["origin"]),
    )


def _to_whitening(tensors: dict[str, Tensor], metadata: Json) -> Whitening | None:
    if not tensors:
        return None
    power = _number(metadata.get("power", 1.0))
    if not 0 < power <= 1:
        raise ValueError(f"its features are raised to {power}")
    share = _number(metadata.get("share", 0.0))
    if not 0 <= share <= 1:
        raise ValueError(f"a share of {share}")
    return Whitening(**tensors, power=power, share=share)


def _to_class_set(metadata: Json, tensors: dict[str, Tensor]) -> ClassSet:
    feature_sums = iter(tensors.get("feature_sums", torch.empty(0, 0)))
    hashes = iter(tensors["hashes"].tolist())
    classes = tuple(_to_class(raw, feature_sums, hashes) for raw in metadata["classes"])
    if len({known.name for known in classes}) != len(classes):
        raise ValueError("two of its classes have the same name")
    undo_steps = tuple(
        UndoStep(
            tuple(map(_text, step["drop"])),
            tuple(
                (_integer(raw["at"]), _to_class(raw, feature_sums, hashes))
                for raw in step["restore"]
            ),
        )
        for step in metadata["undo_steps"]
    )
    history = tuple(
        Change(
            kind=_text(raw["kind"]),
            classes=tuple(map(_text, raw["classes"])),
            images=_integer(raw["images"]),
            when=_text(raw["when"]),
        )
        for raw in metadata["history"]
    )
    if not history or len(undo_steps) > MAX_UNDO_STEPS or len(undo_steps) >= len(history):
        raise ValueError("its history does not fit its changes")
    class_set = ClassSet(classes, history, undo_steps, _integer(metadata["version"], least=1))
    _check_history(class_set)
    return class_set


def _to_class(raw: Json, feature_sums: Iterator[Tensor], hashes: Iterator[int]) -> KnownClass:
    if clean_name(raw["name"]) != raw["name"]:
        raise ValueError(f"{raw['name']!r} is no class's name")
    return KnownClass(
        name=raw["name"],
        feature_sum=next(feature_sums).clone(),
        count=_integer(raw["count"], least=1),
        hashes=frozenset(islice(hashes, raw["hashes"])),
    )


def _check_history(class_set: ClassSet) -> None:
    """Refuse a history that does not lead to the classes, now and after each undo."""
    kinds = [change.kind for change in class_set.history]
    if kinds.count("fit") != 1 or kinds[0] != "fit":
        raise ValueError("its history does not begin with its training")
    try:
        leads_there = sorted(class_sessions(class_set.history)) == sorted(class_set.names)
    except (LookupError, ValueError):
        leads_there = False
    if not leads_there:
        raise ValueError("its history does not lead to its classes")
    if class_set.undo_steps:
        _check_history(class_set.undo()[0])


def _to_transform(raw: Json) -> Transform:
    values: Json = {
        name: tuple(map(_number, value)) if isinstance(value, list) else value
        for name, value in raw.items()
    }
    transform = Transform(**values)
    sizes = (transform.size, transform.pad, transform.resize or 0)
    lengths = (len(transform.mean), len(transform.std), len(transform.scale))
    if max(map(_integer, sizes)) > MAX_IMAGE_SIZE or lengths != (3, 3, 2):
        raise ValueError(f"a transform of {transform}")
    return transform


def _to_origin(raw: object) -> dict[str, str | int]:
    if not isinstance(raw, dict) or not all(isinstance(v, (str, int)) for v in raw.values()):
        raise ValueError("its origin is no table of texts and numbers")
    return raw


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


# Values


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _integer(value: object, least: int = 0, most: int = 2**53) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{value!r} is no whole number from {least} to {most}")
    return value


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)
