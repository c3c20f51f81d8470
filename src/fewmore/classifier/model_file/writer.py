"""Write a model file atomically and durably.

The file is written beside its place, forced to the disk and moved there: after a kill at any
moment either the old file or the new one is there.
"""

import errno
import hashlib
import json
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from fewmore import __version__
from fewmore.classifier.classes import KnownClass
from fewmore.classifier.model import Model
from fewmore.classifier.model_file.format import FORMAT, METADATA, NO_CHECKSUM, TRANSFORM
from fewmore.errors import ModelFileError
from fewmore.io import write_bytes

STALE_SECONDS = 3600.0  # age at which a half-written file belongs to no running process


def write(path: str | Path, model: Model) -> None:
    """Write a model to a file, atomically."""
    path = Path(path).expanduser()
    metadata = json.dumps(
        _metadata(model), ensure_ascii=True, allow_nan=False, separators=(",", ":")
    )
    tensors = {
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in _tensors(model).items()
    }
    data = save(tensors, {METADATA: metadata})
    # The first match is the checksum's place: it comes before anything that a user could name.
    start = data.index(NO_CHECKSUM.encode())
    checksum = hashlib.sha256(data).hexdigest().encode()
    data = data[:start] + checksum + data[start + len(checksum) :]
    try:
        _remove_stale_files(path)
        write_bytes(path, data)
    except OSError as error:
        instead = "give the path of a file in a folder of yours"
        if error.errno == errno.ENOSPC:
            instead = f"make room for {len(data) / 1e6:,.1f} MB; what was there is as it was"
        raise ModelFileError(
            f"{path} cannot be written ({error.strerror or error}): {instead}"
        ) from error


def _tensors(model: Model) -> dict[str, Tensor]:
    classes = model.class_set.stored_classes
    tensors = {f"backbone/{name}": tensor for name, tensor in model.weights.items()}
    tensors |= {f"adapter/{name}": tensor for name, tensor in (model.adapter or {}).items()}
    if model.whitening is not None:
        whitening = model.whitening.tensors()
        tensors |= {f"whitening/{name}": tensor for name, tensor in whitening.items()}
    if model.projection is not None:
        tensors["projection"] = model.projection
    if classes:
        tensors["feature_sums"] = torch.stack([known.feature_sum for known in classes])
    hashes = [digest for known in classes for digest in sorted(known.hashes)]
    tensors["hashes"] = torch.tensor(hashes, dtype=torch.int64)
    return tensors


def _own_classes(model: Model) -> int:
    whitening = model.whitening
    return 0 if whitening is None or whitening.classifier is None else len(whitening.classifier)


def _metadata(model: Model) -> dict[str, Any]:
    class_set = model.class_set
    return {
        "format": FORMAT,
        "sha256": NO_CHECKSUM,
        "fewmore": __version__,
        "backbone": model.backbone,
        "transform": {name: getattr(model.transform, name) for name in TRANSFORM},
        "variance": model.variance,
        "whitening": None if model.whitening is None else model.whitening.damping.shape[1],
        "power": 1.0 if model.whitening is None else model.whitening.power,
        "own_classes": _own_classes(model),
        "share": 0.0 if model.whitening is None else model.whitening.share,
        "calibration": asdict(model.calibration),
        "adapter": None if model.adapter is None else asdict(model.adapter_config),
        "dim": model.dim,
        "version": class_set.version,
        "classes": [_class_metadata(known) for known in class_set.classes],
        "history": [asdict(change) for change in class_set.history],
        "undo_steps": [
            {
                "drop": step.drop,
                "restore": [
                    {"at": position, **_class_metadata(known)} for position, known in step.restore
                ],
            }
            for step in class_set.undo_steps
        ],
        "notes": model.notes,
        "origin": model.origin,
    }


def _class_metadata(known: KnownClass) -> dict[str, Any]:
    return {"name": known.name, "count": known.count, "hashes": len(known.hashes)}


def _remove_stale_files(path: Path) -> None:
    """Remove temporary files that killed processes left beside the file that a link leads to."""
    path = path.resolve()
    for temporary in path.parent.glob(f".{path.name.replace('[', '[[]')}.*-*"):
        with suppress(FileNotFoundError):  # another process has just moved it to its place
            if temporary.stat().st_mtime < time.time() - STALE_SECONDS:
                temporary.unlink()
