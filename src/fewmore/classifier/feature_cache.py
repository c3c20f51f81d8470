"""Keep the features of training images on disk, so that none is embedded twice.

A training that was stopped, or that is repeated with another seed or more images, goes on from
there. A file holds one image's features, under the hash of everything that decides them: backbone,
weights, transform, code, engine, versions and pixels.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewmore.classifier import engines
from fewmore.classifier.embedding import Batch, Embedder, image_hash
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

    def features_of(self, batch: Batch) -> Tensor:
        """Return the features of decoded images, (n, d) float32."""
        paths = [self._path(digest) for digest in batch.hashes or map(image_hash, batch.images)]
        known = [_read(path, self.dim) for path in paths]
        new = [i for i, features in enumerate(known) if features is None]
        if new:
            # A copy of all would take PyTorch's threads, which wait for those that decode.
            unknown = batch.images if len(new) == len(batch) else batch.images[new]
            embedded = super().features_of(Batch(batch.start, unknown, ())).cpu()
            for i, features in zip(new, embedded, strict=True):
                known[i] = features
                self.room -= features.nbytes
                if self.room >= 0:
                    _write(paths[i], features)
        return torch.stack([one for one in known if one is not None]).to(self.device)

    def _path(self, digest: int) -> Path:
        about = self.key + digest.to_bytes(8, "big", signed=True)
        name = hashlib.blake2b(about, digest_size=16).hexdigest()
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


def _read(path: Path, dim: int) -> Tensor | None:
    """Read features; None if they are not there or damaged."""
    try:
        data = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    checksum, values = data[:CHECKSUM], data[CHECKSUM:]
    if len(values) != 4 * dim or _checksum(values) != checksum:
        return None
    return torch.from_numpy(np.frombuffer(values, np.float32).copy())


def _write(path: Path, features: Tensor) -> None:
    """Write features; what is not written, or in part, is computed again another time."""
    values = features.contiguous().numpy().tobytes()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_checksum(values) + values)


def _checksum(values: bytes) -> bytes:
    return hashlib.blake2b(values, digest_size=CHECKSUM).digest()
