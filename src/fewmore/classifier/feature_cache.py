"""Keep the features of training images on disk, so that none is embedded twice.

A training that was stopped, or that is repeated with another seed or more images, goes on from
there. Each training writes one file, with a record for each image that it embedded: the content
hash, a checksum and the features. It is in a folder named by the hash of what else decides
features: backbone, weights, transform, code, engine and versions.
"""

import hashlib
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress

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
        self.key = _key(self)
        self.folder = cache_folder() / "features" / self.key.hex()
        self.file = self.folder / f"{time.time_ns()}-{uuid.uuid4().hex}"  # of this training
        self.room = MAX_BYTES  # in it
        self.record = np.dtype([("hash", "i8"), ("checksum", "u8"), ("features", "f4", self.dim)])
        self.places = dict(self._find())  # of records, by content hash
        self._writing = threading.Lock()

    def features_of(self, batch: Batch) -> Tensor:
        """Return the features of decoded images, (n, d) float32."""
        hashes = batch.hashes or tuple(map(image_hash, batch.images))
        known = [self._read(digest) for digest in hashes]
        new = [i for i, features in enumerate(known) if features is None]
        if new:
            # A copy of all would take PyTorch's threads, which wait for those that decode.
            unknown = batch.images if len(new) == len(batch) else batch.images[new]
            embedded = super().features_of(Batch(batch.start, unknown, ())).cpu()
            self._write([hashes[i] for i in new], embedded.numpy())
            for i, features in zip(new, embedded, strict=True):
                known[i] = features
        return torch.stack([one for one in known if one is not None]).to(self.device)

    def _find(self) -> Iterator[tuple[int, tuple[np.ndarray, int]]]:
        """Yield the content hash of each record, and its place: a file, and a number in it."""
        for path in sorted(self.folder.glob("*")):  # the newest last, which counts
            with suppress(OSError):  # another process may remove it
                count = path.stat().st_size // self.record.itemsize  # the last one may be cut off
                if not count:  # which cannot be mapped
                    continue
                os.utime(path)
                records = np.memmap(path, self.record, "r", shape=(count,))
                for number, digest in enumerate(records["hash"].tolist()):
                    yield digest, (records, number)

    def _read(self, digest: int) -> Tensor | None:
        """Read features; None if they are not there or damaged."""
        if digest not in self.places:
            return None
        records, number = self.places[digest]
        features = records[number]["features"].copy()
        is_whole = records[number]["checksum"] == _checksum(digest, features)
        return torch.from_numpy(features) if is_whole else None

    def _write(self, hashes: Sequence[int], features: np.ndarray) -> None:
        """Write features; what is not written is computed again another time."""
        with self._writing:
            count = min(len(hashes), self.room // self.record.itemsize)
            records = np.empty(count, self.record)
            records["hash"] = hashes[:count]
            records["features"] = features[:count]
            records["checksum"] = list(map(_checksum, hashes[:count], features))
            self.room -= records.nbytes
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with open(self.file, "ab") as file:
                    file.write(records.tobytes())
            except OSError:
                self.room = 0  # a full disk: after a part of a record, none would be in its place

    def prune(self) -> None:
        """Remove the files that were not used for longest, beyond the size that is allowed."""
        files = []
        for path in self.folder.parent.glob("*/*"):
            with suppress(OSError):  # another process may remove it
                files.append((path.stat().st_mtime, path.stat().st_size, path))
        size = 0
        for _, of_file, path in sorted(files, reverse=True):
            size += of_file
            if size > MAX_BYTES:
                with suppress(OSError):
                    path.unlink()
                    path.parent.rmdir()  # if it is empty now


def _key(embedder: Embedder) -> bytes:
    """Hash what decides features besides the pixels, the code included."""
    versions = (torch.__version__, embedder.engine.name)
    code = source_digest("classifier/engines", "classifier/embedding.py")
    about = (embedder.transform, embedder.device.type, *versions, code)
    digest = hashlib.blake2b(repr(about).encode(), digest_size=16)
    digest.update(repr(embedder.backbone).encode())
    for name, tensor in embedder.backbone.state_dict().items():
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.digest()


def _checksum(digest: int, features: np.ndarray) -> int:
    data = digest.to_bytes(8, "big", signed=True) + features.tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
