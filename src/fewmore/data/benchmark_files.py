"""Read a benchmark file: the classes and sessions of a user's own benchmark, in JSON.

This one shows all ways to say what a session holds:

    {
      "folder": "photos",
      "sessions": [
        {"classes": ["robin", "wren", "jay"]},
        {"classes": ["owl", "kite"], "shots": 5},
        {"classes": ["crow", "heron"], "shots": {"crow": 3, "heron": 1}},
        {"images": ["stork/07.jpg", "stork/12.jpg"]}
      ]
    }

docs/own-benchmark.md describes all keys. Importable without PyTorch: what is wrong in a file is
said at once.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fewmore.data import benchmarks, plans
from fewmore.data.benchmarks import Benchmark, BenchmarkImages, ImageRequest
from fewmore.data.folders import Listing, find_test_folder, list_train_test, listing_hash
from fewmore.data.plans import SessionPlan
from fewmore.data.text import read_lines
from fewmore.errors import ConfigError, MissingData, SplitError, UnknownName

KEYS = ("title", "folder", "benchmark", "test", "sessions")
SESSION_KEYS = ("classes", "shots", "images")


def read(name: str) -> Benchmark:
    """Return the benchmark that a file describes."""
    file = _BenchmarkFile(name)
    made = file.of_folder() if "folder" in file.content else file.of_benchmark()
    source = {"file": str(file.path), "sha256": file.digest.hexdigest()}
    return replace(made, name=name, title=file.title, plan=file.plan, lists=None, source=source)


class _BenchmarkFile:
    """Hold the content of a benchmark file, checked as far as no image is needed."""

    def __init__(self, name: str) -> None:
        self.path = Path(name).expanduser()
        self.name = name
        self.content = self._read()
        self._check_keys(self.content, KEYS, self.name)
        if ("folder" in self.content) == ("benchmark" in self.content):
            raise ConfigError(
                f"{name} must say where its images are, by one of 'folder' and 'benchmark'"
            )
        self.where = self._text("folder" if "folder" in self.content else "benchmark")
        self.title = self._text("title", f"Sessions of {name}")
        sessions = self.content.get("sessions")
        if not isinstance(sessions, list) or not sessions:
            raise ConfigError(f"{name}: 'sessions' must be a list, the base session first")
        self.plan = tuple(self._session(*each) for each in enumerate(sessions))

    def of_folder(self) -> Benchmark:
        """Return the benchmark of a folder, once all classes and images are found in it."""
        folder = self.path.parent / Path(self.where).expanduser()
        test_keys = self._test_keys(folder)
        named = [str(image) for session in self.plan for image in session.images]
        if test_keys is not None and (both := sorted(set(named) & set(test_keys))):
            raise SplitError(
                f"{self.name}: image {both[0]} is named to train and to test with: "
                "leave it out of one of them"
            )
        classes = [
            *(name for session in self.plan for name in session.classes),
            *(key.rpartition("/")[0] for key in named),
        ]
        train, test = list_train_test(
            folder, classes=list(dict.fromkeys(classes)), keep=named, test_keys=test_keys
        )
        sessions = plans.resolve(
            self.name, self.plan, train.labels, train.class_names, train.keys()
        )
        self._check_tested(test)
        self.digest.update(listing_hash(train, test).encode())
        base, way, shot = plans.shape(sessions)
        like = benchmarks.any_folder(len(train.class_names), base, way, shot)
        return replace(like, load=_listings_loader(train, test))

    def of_benchmark(self) -> Benchmark:
        """Return other sessions of a benchmark that has a name; its images are not loaded yet."""
        if "test" in self.content:
            raise ConfigError(f"{self.name}: 'test' is for a folder, {self.where} has test images")
        inner = benchmarks.find(self.where)
        if inner.plan:
            raise ConfigError(
                f"{self.name}: {self.where} has sessions of its own: "
                "name the folder or the benchmark that it takes its images from"
            )
        sizes = [len(session.classes) for session in self.plan]
        if not all(sizes):
            raise ConfigError(
                f"{self.name}, session {sizes.index(0)}: name its classes too, the images of "
                f"{self.where} do not tell them"
            )
        if inner.source:
            self.digest.update(inner.source["sha256"].encode())
        shots = [session.shot(name) or 1 for session in self.plan[1:] for name in session.classes]
        return replace(
            inner,
            classes=sum(sizes),
            base=sizes[0],
            way=max(sizes[1:], default=1),
            shot=max(shots, default=1),
            load=_benchmark_loader(inner),
        )

    def _read(self) -> dict[str, Any]:
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise MissingData(
                f"the benchmark file {self.name} cannot be read ({error.strerror}): "
                "give the path of a JSON file"
            ) from None
        self.digest = hashlib.sha256(data)  # and the lists that the file names, and the images
        try:
            content = json.loads(data)
        except ValueError as error:
            raise ConfigError(f"{self.name} is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise ConfigError(f"{self.name} must hold one object, with 'folder' and 'sessions'")
        return content

    def _check_keys(self, given: dict[str, Any], known: Sequence[str], place: str) -> None:
        for key in given:
            if key not in known:
                raise UnknownName("key", key, known, place)

    def _text(self, key: str, default: str = "") -> str:
        text = self.content.get(key, default)
        if not isinstance(text, str) or not text:
            raise ConfigError(f"{self.name}: '{key}' must be a text, not {text!r}")
        return text

    def _session(self, number: int, content: Any) -> SessionPlan:
        place = f"{self.name}, session {number}"
        if not isinstance(content, dict):
            raise ConfigError(f"{place} must be an object, with 'classes' or 'images'")
        self._check_keys(content, SESSION_KEYS, place)
        classes, shots = content.get("classes", []), content.get("shots")
        if not _is_list_of_texts(classes):
            raise ConfigError(f"{place}: 'classes' must be a list of names")
        by_class = shots if isinstance(shots, dict) else {"all": shots}
        if shots is not None and not all(type(shot) is int for shot in by_class.values()):
            raise ConfigError(f"{place}: 'shots' must be a number, or a number for each class")
        images = self._keys(content["images"], place) if "images" in content else []
        if "images" in content and not images:
            raise ConfigError(f"{place}: 'images' names no image")
        return SessionPlan(tuple(classes), shots, tuple(images))

    def _test_keys(self, folder: Path) -> list[str] | None:
        if "test" not in self.content:
            return None
        if test_folder := find_test_folder(folder):
            raise ConfigError(
                f"{self.name}: 'test' names test images, and {test_folder} holds some: "
                "leave out one of them"
            )
        return self._keys(self.content["test"], f"{self.name}, test")

    def _keys(self, value: Any, place: str) -> list[str]:
        """Return the names of images: a list, or the lines of a text file."""
        if isinstance(value, str):
            file = self.path.parent / Path(value).expanduser()
            if not file.is_file():
                raise MissingData(f"{place}: there is no file {file}, which should list its images")
            self.digest.update(b"\0" + file.read_bytes())
            value = read_lines(file)
        if not _is_list_of_texts(value):
            raise ConfigError(f"{place}: give a list of images, or a text file with one a line")
        is_folder = "folder" in self.content
        keys = [key.removeprefix("train/") if is_folder else key for key in value]
        for key in keys if is_folder else ():
            if key.count("/") != 1:
                raise ConfigError(f"{place}: image {key} must be named as CLASS/FILE")
        return keys

    def _check_tested(self, test: Listing) -> None:
        for name, count in zip(test.class_names, test.class_counts(), strict=True):
            if not count:
                raise SplitError(f"{self.name}: class '{name}' has no test image: add some")


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _listings_loader(train: Listing, test: Listing) -> Callable[[ImageRequest], BenchmarkImages]:
    def load(request: ImageRequest) -> BenchmarkImages:
        from fewmore.data.loading import load_listings

        return load_listings(train, test, request)

    return load


def _benchmark_loader(inner: Benchmark) -> Callable[[ImageRequest], BenchmarkImages]:
    def load(request: ImageRequest) -> BenchmarkImages:
        from fewmore.data.loading import read_images

        return read_images(inner, request)

    return load
