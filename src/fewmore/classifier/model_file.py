"""The model file: one `NAME.fewmore`, a classifier to the bit.

Inside it is a safetensors file. Its one metadata entry is JSON: format version, checksum, backbone, classes with their
numbers of images, history, and what the last changes replaced. Nothing in it is ever executed. It is written beside its
place, forced to the disk and moved there, so that after a kill at any moment the old file or the new one is there. Before
any tensor is read, the file's layout is compared with what its metadata promise, and that with what fewmore can hold: a
hostile file costs no more memory than a small multiple of its own size.
"""

import hashlib
import json
import math
import os
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fewmore import __version__
from fewmore.classifier.classes import (
    UNDOABLE,
    Change,
    Knowledge,
    KnownClass,
    Reversal,
    class_sessions,
    clean_name,
)
from fewmore.data.augment import Transform
from fewmore.errors import ConfigError, FewmoreError, ModelFileError
from fewmore.io import write_bytes
from fewmore.nn.adapter import Adapter, AdapterConfig
from fewmore.nn.backbones import BACKBONES, build

FORMAT = 1
LARGEST_HEADER = 100_000_000  # bytes; the library refuses more as well
LARGEST_VIEW = 4096  # pixels a side
PATIENCE = 10.0  # seconds that a process waits for another one's lock
STALE = 3600.0  # seconds after which a half-written file is nobody's any more

_UNSIGNED = "0" * 64  # stands where the checksum will


@dataclass(frozen=True)
class Calibration:
    """What held-out base images said; None where nothing was held out, or too little for that number."""

    temperature: float = 1.0
    threshold: float | None = None  # familiarity below which the answer is "none of these"
    closeness: float | None = (
        None  # of two classes' means, above which a new class is said to be close to a known one
    )
    held_out: int = 0  # images
    accuracy: float | None = None
    ece_before: float | None = None
    ece_after: float | None = None
    auroc: float | None = None
    sessions_plain: float | None = None  # accuracy in held-out pseudo-sessions, by the plain cosine
    sessions_adapted: float | None = None  # and by the adapter

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"a temperature of {self.temperature}")
        if any(value is not None and not math.isfinite(value) for value in asdict(self).values()):
            raise ValueError("a number that is not finite")


@dataclass(frozen=True, eq=False)
class Model:
    """All that a classifier is."""

    backbone: str
    transform: Transform
    weights: dict[str, Tensor]  # of the backbone
    dim: int  # features an image
    knowledge: Knowledge
    calibration: Calibration = field(default_factory=Calibration)
    spread: float = 0.0  # see `scoring.Head`
    adapter: dict[str, Tensor] | None = None
    adapter_config: AdapterConfig = field(default_factory=AdapterConfig)
    projection: Tensor | None = None  # (d, r)
    notes: tuple[str, ...] = ()
    origin: dict[str, str | int] = field(
        default_factory=dict
    )  # how it was trained: version, weights, seed, date


# Writing


def write(path: str | Path, model: Model) -> None:
    """Write a model, in one move."""
    path = Path(path).expanduser()
    stored = model.knowledge.kept
    prints = [number for known in stored for number in sorted(known.prints)]
    tensors = {f"backbone/{name}": tensor for name, tensor in model.weights.items()}
    tensors |= {f"adapter/{name}": tensor for name, tensor in (model.adapter or {}).items()}
    if model.projection is not None:
        tensors["projection"] = model.projection
    if stored:
        tensors["totals"] = torch.stack([known.total for known in stored])
    tensors["prints"] = torch.tensor(prints, dtype=torch.int64)
    described = json.dumps(
        _described(model), ensure_ascii=True, allow_nan=False, separators=(",", ":")
    )
    data = save(
        {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()},
        {"fewmore": described},
    )
    place = data.index(
        _UNSIGNED.encode()
    )  # the first: it stands before anything that a user could name
    data = data[:place] + hashlib.sha256(data).hexdigest().encode() + data[place + 64 :]
    try:
        _sweep(path)
        write_bytes(path, data)
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be written ({error.strerror or error}): give the path of a file in a folder of yours"
        ) from error


def _described(model: Model) -> dict[str, Any]:
    knowledge = model.knowledge
    return {
        "format": FORMAT,
        "sha256": _UNSIGNED,
        "fewmore": __version__,
        "backbone": model.backbone,
        "transform": asdict(model.transform),
        "spread": model.spread,
        "calibration": asdict(model.calibration),
        "adapter": None if model.adapter is None else asdict(model.adapter_config),
        "dim": model.dim,
        "version": knowledge.version,
        "classes": [_class_described(known) for known in knowledge.classes],
        "history": [asdict(change) for change in knowledge.history],
        "reversals": [
            {
                "drop": one.drop,
                "restore": [
                    {"at": place, **_class_described(known)} for place, known in one.restore
                ],
            }
            for one in knowledge.reversals
        ],
        "notes": model.notes,
        "origin": model.origin,
    }


def _class_described(known: KnownClass) -> dict[str, Any]:
    return {"name": known.name, "count": known.count, "prints": len(known.prints)}


def _sweep(path: Path) -> None:
    """Remove what killed processes left beside the file."""
    for left in path.parent.glob(f".{path.name.replace('[', '[[]')}.*-*"):
        if left.stat().st_mtime < time.time() - STALE:
            left.unlink(missing_ok=True)


# Reading

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]  # of tensors, by name


def read(path: str | Path) -> Model:
    """Read a model back, or say what is wrong with the file."""
    path = Path(path).expanduser()
    check_there(path)
    try:
        with path.open("rb") as file:
            return _read(file)
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read ({error.strerror or error}): give the path of a model file"
        ) from error
    except _Newer as error:
        raise ModelFileError(
            f"{path} has format {error}, and fewmore {__version__} knows formats up to {FORMAT}: update it with pip install -U fewmore"
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
        why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ModelFileError(
            f"{path} is damaged, or not a model file of fewmore's ({why}): take a copy of it that is whole, or train anew"
        ) from error


def check_there(path: Path) -> None:
    """Refuse a path without a file: by itself where the file is about to be locked, which would make a file beside it."""
    if not path.expanduser().exists():
        raise ModelFileError(
            f"there is no model file {path}: check its name, or make one with `fewmore train PHOTOS -o {path}`"
        )


class _Newer(Exception):
    """A format that this version does not know."""


def _read(file: IO[bytes]) -> Model:
    size = os.fstat(file.fileno()).st_size
    header = _header(file, size)
    entries = json.loads(header[8:])
    metadata = entries.pop("__metadata__")
    about = json.loads(metadata.get("fewmore") or metadata["cecil"], parse_constant=_no_number)
    if _whole(about["format"], least=1) > FORMAT:
        raise _Newer(str(about["format"]))
    layout = _layout(about, entries)
    if size != len(header) + sum(
        math.prod(shape) * dtype.itemsize for shape, dtype in layout.values()
    ):
        raise ValueError("its size does not fit its content")
    data = header + file.read()
    _check_sum(data, about["sha256"])
    tensors = load(data)
    if {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()} != layout:
        raise ValueError("its tensors are others than its backbone and classes need")
    return _model(about, tensors)


def _header(file: IO[bytes], size: int) -> bytes:
    """The safetensors header with its length before it, no longer than the file has room for."""
    first = file.read(8)
    if len(first) < 8:
        raise ValueError(f"it has only {size} bytes")
    (length,) = struct.unpack("<Q", first)
    if length > min(size - 8, LARGEST_HEADER):
        raise ValueError(f"its header claims {length:,} bytes, and the file has {size:,}")
    return first + file.read(length)


def _layout(about: dict[str, Any], entries: dict[str, Any]) -> Layout:
    """Names, shapes and types of all tensors as the metadata promise them; compared with the header before any is read."""
    dim = _whole(about["dim"], least=1)
    classes = [
        *about["classes"],
        *(known for one in about["reversals"] for known in one["restore"]),
    ]
    layout = {
        f"backbone/{name}": form
        for name, form in _form(_empty_backbone(_text(about["backbone"]))).items()
    }
    if about["adapter"] is not None:
        width = dim
        if "projection" in entries:
            width = _whole(entries["projection"]["shape"][1], least=1, most=dim)
            layout["projection"] = ((dim, width), torch.float32)
        with torch.device("meta"):
            layout |= {
                f"adapter/{name}": form
                for name, form in _form(Adapter(width, AdapterConfig(**about["adapter"]))).items()
            }
    if classes:
        layout["totals"] = ((len(classes), dim), torch.float64)
    layout["prints"] = ((sum(_whole(known["prints"]) for known in classes),), torch.int64)
    if entries.keys() != layout.keys():
        raise ValueError(
            f"its tensors are others than its backbone and classes need, such as {min(entries.keys() ^ layout.keys())}"
        )
    for name, (shape, dtype) in layout.items():
        if tuple(entries[name]["shape"]) != shape or entries[name]["dtype"] != _CODES[dtype]:
            raise ValueError(f"its tensor {name} should be {_CODES[dtype]} of {shape}")
    return layout


_CODES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}


def _empty_backbone(name: str) -> nn.Module:
    """A backbone without memory for its numbers, where that can be had."""
    if name not in BACKBONES:
        return build(name)
    with torch.device("meta"):
        return BACKBONES[name].build()


def _form(module: nn.Module) -> Layout:
    return {
        name: (tuple(tensor.shape), tensor.dtype) for name, tensor in module.state_dict().items()
    }


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _check_sum(data: bytes, claimed: object) -> None:
    claimed = _text(claimed)
    place = data.find(claimed.encode()) if len(claimed) == len(_UNSIGNED) else -1
    if place < 0:
        raise ValueError("it has no checksum")
    digest = hashlib.sha256(data[:place] + _UNSIGNED.encode())
    digest.update(memoryview(data)[place + len(_UNSIGNED) :])
    if digest.hexdigest() != claimed:
        raise ValueError("its checksum is not that of its content")


def _model(about: dict[str, Any], tensors: dict[str, Tensor]) -> Model:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"its tensor {name} holds numbers that are not finite")
    totals, prints = (
        iter(tensors.get("totals", torch.empty(0, 0))),
        _Pieces(tensors["prints"].tolist()),
    )

    def known(raw: dict[str, Any]) -> KnownClass:
        if clean_name(raw["name"]) != raw["name"]:
            raise ValueError(f"{raw['name']!r} is no class's name")
        return KnownClass(
            raw["name"],
            next(totals).clone(),
            _whole(raw["count"], least=1),
            frozenset(prints.take(raw["prints"])),
        )

    classes = tuple(known(raw) for raw in about["classes"])
    if len({one.name for one in classes}) != len(classes):
        raise ValueError("two of its classes have the same name")
    reversals = tuple(
        Reversal(
            tuple(map(_text, one["drop"])),
            tuple((_whole(raw["at"]), known(raw)) for raw in one["restore"]),
        )
        for one in about["reversals"]
    )
    history = tuple(
        Change(
            _text(raw["kind"]),
            tuple(map(_text, raw["classes"])),
            _whole(raw["images"] if "images" in raw else raw["pictures"]),
            _text(raw["when"]),
        )
        for raw in about["history"]
    )
    if not history or len(reversals) > UNDOABLE or len(reversals) >= len(history):
        raise ValueError("its history does not fit its changes")
    knowledge = Knowledge(classes, history, reversals, _whole(about["version"], least=1))
    _check_history(knowledge)
    if not isinstance(about["origin"], dict) or not all(
        isinstance(value, (str, int)) for value in about["origin"].values()
    ):
        raise ValueError("its origin is no table of texts and numbers")
    return Model(
        backbone=_text(about["backbone"]),
        transform=_transform(about["transform"]),
        weights=_part(tensors, "backbone/"),
        dim=about["dim"],
        knowledge=knowledge,
        calibration=Calibration(**about["calibration"]),
        spread=_number(about["spread"]),
        adapter=None if about["adapter"] is None else _part(tensors, "adapter/"),
        adapter_config=AdapterConfig(**(about["adapter"] or {})),
        projection=tensors.get("projection"),
        notes=tuple(map(_text, about["notes"])),
        origin=about["origin"],
    )


def _check_history(knowledge: Knowledge) -> None:
    """Refuse a history that does not lead to the classes: to those of now, and to those after each undo."""
    if [change.kind for change in knowledge.history].count("fit") != 1 or knowledge.history[
        0
    ].kind != "fit":
        raise ValueError("its history does not begin with its training")
    try:
        fits = sorted(class_sessions(knowledge.history)) == sorted(knowledge.names)
    except (LookupError, ValueError):
        fits = False
    if not fits:
        raise ValueError("its history does not lead to its classes")
    if knowledge.reversals:
        _check_history(knowledge.undone()[0])


class _Pieces:
    """A list that is taken in pieces from its beginning."""

    def __init__(self, values: Sequence[int]) -> None:
        self.values, self.at = values, 0

    def take(self, count: int) -> Sequence[int]:
        self.at += count
        return self.values[self.at - count : self.at]


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _transform(raw: dict[str, Any]) -> Transform:
    values: dict[str, Any] = {
        name: tuple(map(_number, value)) if isinstance(value, list) else value
        for name, value in raw.items()
    }
    transform = Transform(**values)
    sides = (transform.size, transform.pad, transform.resize or 0)
    if max(_whole(side) for side in sides) > LARGEST_VIEW or (
        len(transform.mean),
        len(transform.std),
        len(transform.scale),
    ) != (3, 3, 2):
        raise ValueError(f"a view of {transform}")
    return transform


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _whole(value: object, least: int = 0, most: int = 2**53) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{value!r} is no whole number from {least} to {most}")
    return value


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


# Two processes, one file


@contextmanager
def locked(path: str | Path, patience: float = PATIENCE) -> Iterator[None]:
    """Keep other processes' load-change-save away from a file, by a lock on NAME.lock beside it, which stays there."""
    path = Path(path).expanduser()
    beside = path.with_name(path.name + ".lock")
    try:
        file = beside.open("a+b")
    except OSError as error:
        raise ModelFileError(
            f"{beside} cannot be opened ({error.strerror or error}): the folder must be one that you may write to"
        ) from error
    with file:
        until = time.monotonic() + patience
        while not _lock(file):
            if time.monotonic() >= until:
                raise ModelFileError(f"another process is writing {path}: try again")
            time.sleep(0.02)
        try:
            yield
        finally:
            _unlock(file)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> bool:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
