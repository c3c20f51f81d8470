"""Keep the features of training images on disk, so that none is embedded twice.

A training that was stopped, or that is repeated with another seed or more images, goes on from
there. A file holds one image's features in some rotations, under the hash of everything that
decides them: backbone, weights, transform, code, engine, versions and pixels.
"""

import hashlib
import math
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewmore.classifier import engines
from fewmore.classifier.embedding import Embedder
from fewmore.data.augment import Transform
from fewmore.data.paths import cache_folder
from fewmore.nn.backbones import Backbone
from fewmore.training.stage1_cache import source_digest

MAX_BYTES = 1_000_000_000  # of all files; those that were not used for longest go first
CHECKSUM = 8  # bytes at the beginning of a file


class CachedEmbedder(Embedder):
    """Embed images with a frozen backbone, but for those whose features are on disk."""

    def __init__(
        self,
        backbone: Backbone,
        transform: Transform,
        device: torch.device,
        engine: str = engines.AUTO,
    ) -> None:
        super().__init__(backbone, transform, device, engine=engine)
        self.folder = cache_folder() / "features"
        self.key = _key(self)
        self.room = MAX_BYTES  # for what this training adds

    def features(self, images: Tensor, rotations: Sequence[int] = (0,)) -> Tensor:
        """Return the features of squares (n, 3, s, s) in each rotation: (rotations, n, d)."""
        paths = [self._path(image, rotations) for image in images]
        known = [_read(path, (len(rotations), self.dim)) for path in paths]
        new = [i for i, features in enumerate(known) if features is None]
        if new:
            # A copy of all would take PyTorch's threads, which wait for those that decode.
            unknown = images if len(new) == len(images) else images[new]
            embedded = super().features(unknown, rotations).cpu()
            for place, i in enumerate(new):
                known[i] = embedded[:, place]
                self.room -= embedded[:, place].nbytes
                if self.room >= 0:
                    _write(paths[i], embedded[:, place])
        return torch.stack([one for one in known if one is not None], 1).to(self.device)

    def _path(self, image: Tensor, rotations: Sequence[int]) -> Path:
        digest = hashlib.blake2b(self.key + bytes(rotations), digest_size=16)
        digest.update(image.contiguous().cpu().numpy().data)
        name = digest.hexdigest()
        return self.folder / name[:2] / name

    def prune(self) -> None:
        """Remove the files that were not used for longest, beyond the size that is allowed."""
        files = []
        for path in self.folder.glob("*/*"):
            with suppress(OSError):  # another process may remove it
                files.append((path.stat().st_mtime, path.stat().st_size, path))
        size = 0
        for _, of_file, path in sorted(files, reverse=True):
            size += of_file
            if size > MAX_BYTES:
                path.unlink(missing_ok=True)


def _key(embedder: Embedder) -> bytes:
    """Hash what decides features besides the pixels, the code included."""
    versions = (torch.__version__, embedder.engine.name)
    about = (embedder.transform, embedder.device.type, *versions, source_digest())
    digest = hashlib.blake2b(repr(about).encode(), digest_size=16)
    digest.update(repr(embedder.backbone).encode())
    for name, tensor in embedder.backbone.state_dict().items():
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.digest()


def _read(path: Path, shape: tuple[int, int]) -> Tensor | None:
    """Read features; None if they are not there or damaged."""
    try:
        data = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    checksum, values = data[:CHECKSUM], data[CHECKSUM:]
    if len(values) != 4 * math.prod(shape) or _checksum(values) != checksum:
        return None
    return torch.from_numpy(np.frombuffer(values, np.float32).reshape(shape).copy())


def _write(path: Path, features: Tensor) -> None:
    """Write features; on a full disk they are computed again another time."""
    values = features.contiguous().numpy().tobytes()
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(_checksum(values) + values)
        os.replace(temporary, path)
    with suppress(OSError):
        temporary.unlink(missing_ok=True)


def _checksum(values: bytes) -> bytes:
    return hashlib.blake2b(values, digest_size=CHECKSUM).digest()
