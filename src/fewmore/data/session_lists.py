"""Read the official split of a benchmark from its published session lists.

The lists are DATA/index_list/{cifar100, mini_imagenet, cub200}/session_N.txt, one training image
per line. Those of CIFAR-100 need not be there: cifar.py makes them.
"""

from collections import Counter
from pathlib import Path

import torch

from fewmore.data import cifar, splits
from fewmore.data.benchmarks import Benchmark, BenchmarkImages
from fewmore.data.splits import Split
from fewmore.data.text import read_lines
from fewmore.errors import DataError, MissingData, SplitError


def has_session_lists(benchmark: Benchmark, images: BenchmarkImages, root: Path) -> bool:
    """Return True where at least one of the session lists is there, or where they can be made."""
    return _has_files(benchmark, root) or _made_lists(benchmark, images) is not None


def _has_files(benchmark: Benchmark, root: Path) -> bool:
    return any(path.exists() for path in _list_files(benchmark, root))


def _made_lists(benchmark: Benchmark, images: BenchmarkImages) -> list[list[int]] | None:
    if benchmark.lists != "cifar100":
        return None
    return cifar.published_lists(images.train.labels.tolist())


def official_split(benchmark: Benchmark, images: BenchmarkImages, root: Path) -> Split:
    """Read the session lists and check them against the images, or make them."""
    if not _has_files(benchmark, root) and (made := _made_lists(benchmark, images)):
        lists = [torch.tensor(indices, dtype=torch.int64) for indices in made]
        return splits.split_from_lists(images.train, lists)
    index_of = {key: index for index, key in enumerate(images.keys)}
    lists = []
    for session, path in enumerate(_list_files(benchmark, root)):
        if not path.exists():
            raise MissingData(
                f"{path} is not there: run `fewmore data get {benchmark.name}` "
                f"to fetch the session lists"
            )
        indices = torch.tensor(_read_list(benchmark, path, index_of), dtype=torch.int64)
        shots = Counter(images.train.labels[indices].tolist())
        is_distinct = len(set(indices.tolist())) == len(indices)
        _check_session(benchmark, session, path, shots, is_distinct)
        lists.append(indices)
    return splits.split_from_lists(images.train, lists)


def _list_files(benchmark: Benchmark, root: Path) -> list[Path]:
    if benchmark.lists is None:
        return []
    folder = root / "index_list" / benchmark.lists
    return [folder / f"session_{session + 1}.txt" for session in range(benchmark.sessions)]


def _read_list(benchmark: Benchmark, path: Path, index_of: dict[str, int]) -> list[int]:
    """Return the training index of each line."""
    indices = []
    for number, line in enumerate(read_lines(path), 1):
        key = "/".join(line.split("/")[-2:])
        if key not in index_of:
            raise DataError(
                f"{path}, line {number}, names {line}, which is not among the {len(index_of):,} "
                f"training images that are there: add the image, "
                f"or remove {path.parent} and run `fewmore data get {benchmark.name}`"
            )
        indices.append(index_of[key])
    return indices


def _check_session(
    benchmark: Benchmark, session: int, path: Path, shots: Counter[int], is_distinct: bool
) -> None:
    """Raise SplitError where a list has other classes or shots than the benchmark."""
    classes = benchmark.way if session else benchmark.base
    problem = None
    if not is_distinct:
        problem = "names an image twice"
    elif len(shots) != classes:
        problem = (
            f"has images of {len(shots)} classes, "
            f"and session {session} of {benchmark.name} has {classes}"
        )
    elif session and set(shots.values()) != {benchmark.shot}:
        problem = (
            f"has {min(shots.values())} to {max(shots.values())} images a class, "
            f"and {benchmark.name} has {benchmark.shot}"
        )
    if problem:
        raise SplitError(
            f"{path} {problem}: remove {path.parent} and run `fewmore data get {benchmark.name}`, "
            f"or choose a split with --draw"
        )
