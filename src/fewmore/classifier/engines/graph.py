"""Turn a backbone into an ONNX graph, and keep it in the cache folder: tracing takes seconds.

A graph is found by the hash of everything that decides it, so all models with the same backbone
share one.
"""

import hashlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from fewmore.classifier.engines.pytorch import TorchEngine
from fewmore.data.paths import cache_folder
from fewmore.errors import ExportError, first_line
from fewmore.io import write_bytes
from fewmore.training.stage1_cache import source_digest

EXPORTER_LOGS = ("torch.onnx", "torch.fx.experimental.symbolic_shapes")
MAX_FILES = 16  # those that were not used for longest go first
EXAMPLES = 2  # images to trace with; with one, the length of a batch would become a constant


def onnx_graph(engine: TorchEngine) -> bytes:
    """Return the ONNX graph from images (n, 3, s, s) uint8 to features (n, d)."""
    return cached_graph(engine, "float", lambda: _trace(engine))


def cached_graph(engine: TorchEngine, kind: str, make: Callable[[], bytes]) -> bytes:
    """Return a graph of a kind from the cache folder, or make it."""
    path = cache_folder() / "engines" / f"{graph_key(engine)}-{kind}.onnx"
    with suppress(OSError):
        graph = path.read_bytes()
        os.utime(path)
        return graph
    graph = make()
    with suppress(OSError):  # on a full disk it is made again another time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, graph)
        _prune(path.parent)
    return graph


def _trace(engine: TorchEngine) -> bytes:
    size = engine.transform.size
    buffer = io.BytesIO()
    with without_warnings():
        try:
            # The exporter by torch.export takes ten times as long.
            torch.onnx.export(
                engine.eval(),
                (torch.zeros(EXAMPLES, 3, size, size, dtype=torch.uint8),),
                buffer,  # type: ignore[arg-type]
                input_names=["images"],
                output_names=["features"],
                dynamic_axes={"images": {0: "n"}, "features": {0: "n"}},
                dynamo=False,
            )
        except Exception as error:  # the exporter raises errors of many kinds
            reason = first_line(error)
            raise ExportError(
                f"PyTorch {torch.__version__} cannot turn the backbone into ONNX ({reason})"
            ) from error
    return buffer.getvalue()


def graph_key(engine: TorchEngine) -> str:
    """Return a hash of what decides a graph, the code included."""
    transform = engine.transform
    code = source_digest("classifier/engines", "classifier/int8.py")
    about = (torch.__version__, code, transform.size, transform.mean, transform.std)
    digest = hashlib.blake2b(repr((about, engine.backbone)).encode(), digest_size=16)
    for name, tensor in engine.backbone.state_dict().items():
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _prune(folder: Path) -> None:
    files = sorted(folder.glob("*.onnx"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[MAX_FILES:]:
        path.unlink(missing_ok=True)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence the warnings and log messages of PyTorch's exporter about its own internals."""
    logs = [logging.getLogger(name) for name in EXPORTER_LOGS]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
