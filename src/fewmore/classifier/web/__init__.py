"""Export a classifier as a static web page, which also learns classes, in the browser.

The page runs the one-file export with onnxruntime-web, whose files are copied beside it: any server
of static files will do, and no photo leaves the browser. onnxruntime-web is fetched from npm once,
into the data root.
"""

import json
import os
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

from fewmore.classifier.embedding import Progress
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.export import check_folder
from fewmore.classifier.inputs import ImagesByClass
from fewmore.classifier.one_file import OneFile, describe, to_onnx_file
from fewmore.data.download import fetch_file
from fewmore.data.paths import data_root
from fewmore.data.sources import File
from fewmore.errors import DownloadError, ExportError
from fewmore.io import file_hash, write_bytes
from fewmore.nn.similarity import TEMPERATURE

PAGE = Path(__file__).parent / "page"
RUNTIME = File(
    "https://registry.npmjs.org/onnxruntime-web/-/onnxruntime-web-1.23.2.tgz",
    "onnxruntime-web-1.23.2.tgz",
    sha256="0b8707d7efab9a2bea63564d66cad79e897cfd0bd627e5ae000488ffc1c45c7d",
)
OWN_FILES = ("model.onnx", "model.js", "learning.js")  # in each export
RUNTIME_FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")


def to_web_page(
    classifier: IncrementalClassifier,
    folder: str | Path,
    int8: ImagesByClass | None = None,
    progress: Progress | None = None,
) -> OneFile:
    """Write a folder with a page, the model and what runs it; return the model's file.

    `int8` is that of `to_onnx_file`.
    """
    folder = Path(folder).expanduser()
    check_folder(folder, OWN_FILES)
    archive = _runtime_archive(progress)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # What is stopped half way leaves nothing that another try would take for a user's files.
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as name:
            unfinished = Path(name)
            file = to_onnx_file(classifier, unfinished / "model.onnx", int8, progress)
            _copy_runtime(archive, unfinished)
            for path in PAGE.iterdir():
                write_bytes(unfinished / path.name, path.read_bytes())
            about = json.dumps(_describe(classifier, file.path), indent=1, ensure_ascii=False)
            write_bytes(unfinished / "model.json", f"{about}\n".encode())
            for path in unfinished.iterdir():
                os.replace(path, folder / path.name)
    except OSError as error:
        raise ExportError(
            f"{folder} cannot be written ({error.strerror or error}): "
            "give a folder that you may write to"
        ) from error
    return replace(file, path=folder / file.path.name)


def _describe(classifier: IncrementalClassifier, path: Path) -> dict[str, object]:
    """Return what the page needs to know, as JSON values."""
    return {
        **describe(classifier),
        "hash": file_hash(path),
        "bytes": path.stat().st_size,
        "learns": classifier.scorer.head.adapter is None,
        "scale": TEMPERATURE,
        "growth": classifier.calibration.growth,
        "variance": classifier.scorer.head.variance,
    }


def _runtime_archive(progress: Progress | None) -> Path:
    """Return the archive of onnxruntime-web, downloaded if it is not there."""
    root = data_root()

    def report(done: int, total: int | None) -> None:
        if progress:
            progress("downloading onnxruntime-web", done, total or done)

    if fetch_file(RUNTIME, root, report) == "different":
        path = root / RUNTIME.path
        raise DownloadError(
            f"{path} is not the published file (its sha256 is {file_hash(path)}): remove it, "
            "and it is fetched again"
        )
    return root / RUNTIME.path


def _copy_runtime(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as files:
        for name in RUNTIME_FILES:
            member = files.extractfile(f"package/dist/{name}")
            assert member is not None  # by the archive's checksum
            write_bytes(folder / name, member.read())
