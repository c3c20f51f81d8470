"""Pack a run into a JSON text that any machine with the same fewmore can compute.

Python files of a user's own (file.py:Class) travel in it, with the modules of their folders that
they import; so do benchmark files that name no folder. Images do not: a worker loads its own, and
compares their content with what the text says.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from fewmore import plugins
from fewmore.data import paths
from fewmore.data.benchmarks import FILE_SUFFIX, FOLDER_PREFIX, Task, folder_path
from fewmore.data.text import read_lines
from fewmore.io import write_bytes
from fewmore.methods import find, find_features
from fewmore.research.experiment import Experiment
from fewmore.research.job import Job
from fewmore.research.machine import source_digest

CODE = "{code}/"  # stands for the folder of a user's files in a name
# The fields of RunOptions that hold on all machines.
OPTIONS = (
    "command",
    "checkpoint_every",
    "accel",
    "precision",
    "save_scores",
    "save_sessions",
    "loggers",
)


class Packer:
    """Pack the jobs of one call of run_plans; images are hashed once."""

    def __init__(self, gpus: float, threads: int) -> None:
        self.gpus = gpus
        self.threads = threads
        self.images: dict[tuple[int, int], str] = {}

    def pack(self, job: Job) -> str:
        """Return a job as a JSON text, with the user's files as they are now."""
        config = json.loads(job.plan.experiment.to_json())
        files: dict[str, str] = {}
        config["method"] = _pack_code(config["method"], files)
        config["recipe"]["features"] = _pack_code(config["recipe"]["features"], files)
        config["benchmark"] = _pack_benchmark(config["benchmark"], files)
        usual = job.task.data_root in (None, paths.data_root())
        request = {
            "config": config,
            "files": files,
            "seed": job.seed,
            "draw": job.draw,
            "home": str(job.folder.resolve()),
            "data_root": None if usual else str(job.task.data_root),
            "share_stage1": job.options.stage1_cache is not None,
            "device": "cuda" if self.gpus else "cpu",
            "gpus": self.gpus,
            "threads": self.threads,
            "options": {name: getattr(job.options, name) for name in OPTIONS},
            "source": source_digest(),
            "sources": sources(job.plan.experiment),
            "images": self._images(job.task),
            "shots": shots_hash(job.task),
        }
        return json.dumps(request)

    def _images(self, task: Task) -> str:
        key = id(task.train), id(task.test)  # draws of the shots share them
        if key not in self.images:
            self.images[key] = images_hash(task)
        return self.images[key]


def unpack_config(request: dict[str, Any]) -> str:
    """Write the user's files of a request into the cache folder; return the text of its config."""
    files, config = request["files"], request["config"]
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
    folder = paths.cache_folder() / "code" / digest
    for name, text in files.items():
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, text.encode())
    for group, key in ((config, "method"), (config, "benchmark"), (config["recipe"], "features")):
        group[key] = group[key].replace(CODE, f"{folder}/", 1)
    return json.dumps(config)


def sources(experiment: Experiment) -> list[str]:
    """Return the content hashes of a user's method and feature recipe."""
    found = (find(experiment.method).source, find_features(experiment.recipe.features).source)
    return [source["sha256"] if source else "" for source in found]


def images_hash(task: Task) -> str:
    """Return a content hash of a task's training and test images."""
    return task.train.content_hash() + task.test.content_hash()


def shots_hash(task: Task) -> str:
    """Return a hash of the classes and training images of each session."""
    digest = hashlib.sha256()
    for session in task.split.sessions:
        digest.update(repr(session.classes).encode())
        digest.update(np.ascontiguousarray(session.indices.cpu().numpy(), np.int64).tobytes())
    return digest.hexdigest()[:16]


def _pack_code(name: str, files: dict[str, str]) -> str:
    """Return a name in which a user's Python file is one of `files`; it is added to them."""
    where, colon, attribute = name.rpartition(":")
    if not colon or not where.endswith(".py"):
        return name
    found = plugins.files_of(Path(where))
    own = found[0]  # the file that a link leads to
    place = f"{len(files)}"
    for file in found:
        inside = file.relative_to(own.parent).as_posix()
        files[f"{place}/{inside}"] = file.read_text(encoding="utf-8")
    return f"{CODE}{place}/{own.name}:{attribute}"


def _pack_benchmark(name: str, files: dict[str, str]) -> str:
    """Return the name of a benchmark that holds on other machines too, as far as it can."""
    if name.startswith(FOLDER_PREFIX):
        return f"{FOLDER_PREFIX}{folder_path(name).resolve()}"
    if not name.endswith(FILE_SUFFIX):
        return _pack_code(name, files)
    path = Path(name).expanduser().resolve()
    content = json.loads(path.read_text(encoding="utf-8"))
    if "folder" in content:
        return str(path)
    for session in content["sessions"]:
        if isinstance(session.get("images"), str):  # the name of a list, which stays here
            session["images"] = read_lines(path.parent / Path(session["images"]).expanduser())
    place = f"{len(files)}/{path.name}"
    files[place] = json.dumps(content)
    return CODE + place


def run_options(request: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of RunOptions that a request holds."""
    return {**request["options"], "loggers": tuple(request["options"]["loggers"])}
