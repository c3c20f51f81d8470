"""The benchmarks: a table of what they are, and `load`, which gives one as images and a split.

    glyphs          drawn on this machine, nothing to download
    cifar100        DATA/cifar-100-python/{train, test, meta}
    miniimagenet    DATA/miniimagenet/images/*.jpg, and train.csv and test.csv in DATA/miniimagenet/split
    cub200          DATA/CUB_200_2011/{images/, images.txt, image_class_labels.txt, train_test_split.txt}
    folder:PATH     any folder with one sub-folder a class

The official session lists are DATA/index_list/{cifar100, mini_imagenet, cub200}/session_N.txt.
"""

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fewmore.data import cifar, files, glyphs, splits
from fewmore.data.augment import Transform
from fewmore.data.files import Listing, Progress
from fewmore.data.images import ImageSet
from fewmore.data.splits import Split
from fewmore.errors import ConfigError, DataError, ImageError, MissingData, SplitError, UnknownName

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FOLDER = "folder:"


@dataclass(frozen=True)
class Benchmark:
    """One row of the table."""

    name: str
    title: str
    classes: int
    base: int
    way: int
    shot: int
    backbone: str
    pretrained: bool  # whether the backbone starts from ImageNet weights
    transform: Transform
    lists: str | None = None  # the folder of its official session lists, below index_list

    @property
    def sessions(self) -> int:
        """How many sessions there are, the base session among them."""
        return 1 + (self.classes - self.base) // self.way


@dataclass(frozen=True)
class BenchmarkImages:
    """All images of a benchmark that are there."""

    train: ImageSet
    test: ImageSet
    keys: Sequence[str] = ()  # how the official lists name each training image
    missing: Sequence[Path] = ()  # training images of new classes that are not there


@dataclass(frozen=True)
class Task:
    """A benchmark to run: its images, and who is shown when."""

    benchmark: Benchmark
    train: ImageSet
    test: ImageSet
    split: Split


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="glyphs",
            title="Characters drawn in many fonts, built in",
            classes=100,
            base=60,
            way=5,
            shot=5,
            backbone="resnet8",
            pretrained=False,
            transform=Transform(32, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "pad", pad=2, flip=False),
        ),
        Benchmark(
            name="cifar100",
            title="CIFAR-100 (Krizhevsky, 2009)",
            classes=100,
            base=60,
            way=5,
            shot=5,
            backbone="resnet20",
            pretrained=False,
            transform=Transform(32, (0.507, 0.487, 0.441), (0.267, 0.256, 0.276), "pad", pad=4),
            lists="cifar100",
        ),
        Benchmark(
            name="miniimagenet",
            title="miniImageNet (Vinyals et al., 2016)",
            classes=100,
            base=60,
            way=5,
            shot=5,
            backbone="resnet18",
            pretrained=False,
            transform=Transform(84, IMAGENET_MEAN, IMAGENET_STD, "resized", resize=92),
            lists="mini_imagenet",
        ),
        Benchmark(
            name="cub200",
            title="Caltech-UCSD Birds-200-2011 (Wah et al., 2011)",
            classes=200,
            base=100,
            way=10,
            shot=5,
            backbone="resnet18",
            pretrained=True,
            transform=Transform(224, IMAGENET_MEAN, IMAGENET_STD, "resized", resize=256),
            lists="cub200",
        ),
    )
}


def find(name: str) -> Benchmark:
    """A benchmark by its name; `folder:PATH` makes one of any folder with one sub-folder a class."""
    if name.startswith(FOLDER):
        train, _ = files.list_folder(_folder_path(name))
        base, way, shot = _shape(train.counts(), None, None, None, None)
        transform = Transform(84, IMAGENET_MEAN, IMAGENET_STD, "resized", resize=92)
        return Benchmark(
            name,
            f"Images in {name.removeprefix(FOLDER)}",
            len(train.class_names),
            base,
            way,
            shot,
            "resnet18",
            False,
            transform,
        )
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if Path(name).expanduser().is_dir():
        raise ConfigError(f"'{name}' is a folder, not the name of a benchmark: type {FOLDER}{name}")
    raise UnknownName("benchmark", name, [*BENCHMARKS, f"{FOLDER}PATH"])


def load(
    name: str,
    data_root: Path | None = None,
    base: int | None = None,
    way: int | None = None,
    shot: int | None = None,
    draw: int | None = None,
    class_order: int | None = None,
    on_progress: Progress | None = None,
) -> Task:
    """A benchmark's images and split.

    The split is the official one where its lists are there and nothing else is asked for; otherwise it is drawn from the
    seed `draw` (0), the classes in label order or shuffled by the seed `class_order`.
    """
    benchmark, root = find(name), files.data_root(data_root)
    found = images(benchmark, root, on_progress)
    if all(wish is None for wish in (base, way, shot, draw, class_order)) and has_lists(
        benchmark, root
    ):
        return Task(benchmark, found.train, found.test, official_split(benchmark, found, root))
    refuse_missing(benchmark, found)
    if name.startswith(FOLDER):
        base, way, shot = _shape(found.train.counts().tolist(), base, way, shot, class_order)
    chosen = replace(
        benchmark,
        base=benchmark.base if base is None else base,
        way=benchmark.way if way is None else way,
        shot=benchmark.shot if shot is None else shot,
    )
    split = splits.draw(found.train, chosen.base, chosen.way, chosen.shot, draw or 0, class_order)
    return Task(chosen, found.train, found.test, split)


def images(
    benchmark: Benchmark, root: Path, on_progress: Progress | None = None
) -> BenchmarkImages:
    """Both sets of a benchmark, whatever the split."""
    return _READERS[benchmark.name.partition(":")[0]](benchmark, root, on_progress)


# The official split


def has_lists(benchmark: Benchmark, root: Path) -> bool:
    """Whether the official session lists are there, or at least one of them."""
    return any(path.exists() for path in _list_files(benchmark, root))


def official_split(benchmark: Benchmark, found: BenchmarkImages, root: Path) -> Split:
    """The split that the session lists give, checked against the images."""
    position = {key: index for index, key in enumerate(found.keys)}
    lists = []
    for session, path in enumerate(_list_files(benchmark, root)):
        if not path.exists():
            raise MissingData(
                f"{path} is not there: run `fewmore data get {benchmark.name}` to fetch the session lists"
            )
        indices = []
        for number, line in enumerate(_lines(path), 1):
            key = "/".join(line.split("/")[-2:])
            if key not in position:
                raise DataError(
                    f"{path}, line {number}, names {line}, which is not among the {len(position):,} training images that are there: "
                    f"add the image, or remove {path.parent} and run `fewmore data get {benchmark.name}`"
                )
            indices.append(position[key])
        chosen = torch.tensor(indices, dtype=torch.int64)
        _check_session(
            benchmark,
            session,
            path,
            Counter(found.train.labels[chosen].tolist()),
            len(set(indices)) == len(indices),
        )
        lists.append(chosen)
    return splits.from_lists(found.train, lists)


def _list_files(benchmark: Benchmark, root: Path) -> list[Path]:
    if benchmark.lists is None:
        return []
    return [
        root / "index_list" / benchmark.lists / f"session_{session + 1}.txt"
        for session in range(benchmark.sessions)
    ]


def _check_session(
    benchmark: Benchmark, session: int, path: Path, shots: Counter[int], distinct: bool
) -> None:
    """A list has the benchmark's number of classes, and of images of each."""
    classes = benchmark.way if session else benchmark.base
    problem = None
    if not distinct:
        problem = "names an image twice"
    elif len(shots) != classes:
        problem = f"has images of {len(shots)} classes, and session {session} of {benchmark.name} has {classes}"
    elif session and set(shots.values()) != {benchmark.shot}:
        problem = f"has {min(shots.values())} to {max(shots.values())} images a class, and {benchmark.name} has {benchmark.shot}"
    if problem:
        raise SplitError(
            f"{path} {problem}: remove {path.parent} and run `fewmore data get {benchmark.name}`, or choose a split with --draw"
        )


def refuse_missing(benchmark: Benchmark, found: BenchmarkImages) -> None:
    """Any split but the official one draws from all training images, so all must be there."""
    if found.missing:
        raise MissingData(
            f"{len(found.missing):,} training images of {benchmark.name} are missing, the first of them {found.missing[0]}: "
            f"put them there to draw a split, or take the official one, "
            f"with the lists from `fewmore data get {benchmark.name}` and without --base, --way, --shot, --draw and --class-order"
        )


# Where the images are


def _glyphs(benchmark: Benchmark, root: Path, on_progress: Progress | None) -> BenchmarkImages:
    return BenchmarkImages(*glyphs.load(files.cache_folder() / "glyphs", on_progress=on_progress))


def _cifar100(benchmark: Benchmark, root: Path, on_progress: Progress | None) -> BenchmarkImages:
    train, test = cifar.load(root / cifar.FOLDER)
    return BenchmarkImages(train, test, [str(index) for index in range(len(train))])


def _miniimagenet(
    benchmark: Benchmark, root: Path, on_progress: Progress | None
) -> BenchmarkImages:
    """84 × 84 pixels as published; of the new classes, the images that the session lists name are enough."""
    images = root / "miniimagenet" / "images"
    if not images.is_dir():
        raise MissingData(
            f"{images} is not there: `fewmore data get miniimagenet` says where to get the images; "
            f"if you have them, give the folder that miniimagenet lies in with --data-root"
        )
    tables = {part: _table(root, part) for part in ("train", "test")}
    names = tuple(dict.fromkeys(label for _, label in tables["train"]))
    there = {path.name for path in images.iterdir()}
    label_of = {name: label for label, name in enumerate(names)}
    if twice := {file for file, _ in tables["train"]} & {file for file, _ in tables["test"]}:
        raise DataError(
            f"overlapping: {min(twice)} is in train.csv and in test.csv of miniimagenet: remove it from one of them"
        )
    if strange := {label for _, label in tables["test"]} - set(names):
        raise DataError(
            f"test.csv of miniimagenet has the class {min(strange)}, which train.csv does not have: fetch both files anew"
        )
    missing = [
        (images / file, label)
        for part in ("train", "test")
        for file, label in tables[part]
        if file not in there
    ]
    needed = {file for file, _ in tables["test"]}
    for path, label in missing:
        if path.name in needed or label_of[label] < benchmark.base:
            raise MissingData(
                f"{path} is not there, and {len(missing):,} images are missing in all: put the images of miniImageNet into {images}"
            )

    def listing(part: str) -> Listing:
        kept = [(images / file, label_of[label]) for file, label in tables[part] if file in there]
        return Listing(tuple(path for path, _ in kept), tuple(label for _, label in kept), names)

    return _read(
        listing("train"),
        listing("test"),
        on_progress,
        square=84,
        missing=[path for path, _ in missing],
    )


def _table(root: Path, part: str) -> list[tuple[str, str]]:
    """File and class of each image, from the benchmark's csv file, which people keep in one of three places."""
    places = [
        root / "miniimagenet" / "split",
        root / "miniimagenet",
        root / "index_list" / "mini_imagenet",
    ]
    path = next(
        (place / f"{part}.csv" for place in places if (place / f"{part}.csv").exists()), None
    )
    if path is None:
        raise MissingData(
            f"{places[0] / part}.csv is not there: run `fewmore data get miniimagenet`, which fetches train.csv and test.csv"
        )
    rows = list(csv.reader(_lines(path)))
    if wrong := next(
        (number for number, row in enumerate(rows, 1) if len(row) != 2 or "/" in row[0]), None
    ):
        raise DataError(
            f"{path}, line {wrong}, is not 'filename,label': remove it and run `fewmore data get miniimagenet`"
        )
    return [(file, label) for file, label in rows[1:]]


def _cub200(benchmark: Benchmark, root: Path, on_progress: Progress | None) -> BenchmarkImages:
    """Stored with a short side of 256 pixels, as both views of it begin with that."""
    folder = root / "CUB_200_2011"
    paths, labels, train = (
        _numbered(folder / f"{name}.txt")
        for name in ("images", "image_class_labels", "train_test_split")
    )
    if odd := next(
        iter(sorted((paths.keys() ^ labels.keys()) | (paths.keys() ^ train.keys()))), None
    ):
        raise DataError(
            f"image {odd} is not in all of images.txt, image_class_labels.txt and train_test_split.txt of {folder}: {_CUB_AGAIN}"
        )
    name_of = {int(labels[number]): path.split("/")[0] for number, path in paths.items()}
    names = tuple(name_of[label] for label in sorted(name_of))
    label_of = {name: label for label, name in enumerate(names)}

    def listing(chosen: str) -> Listing:
        kept = [path for number, path in paths.items() if train[number] == chosen]
        return Listing(
            tuple(folder / "images" / path for path in kept),
            tuple(label_of[path.split("/")[0]] for path in kept),
            names,
        )

    return _read(listing("1"), listing("0"), on_progress, short_side=256)


_CUB_AGAIN = "remove the folder and run `fewmore data get cub200`"


def _numbered(path: Path) -> dict[int, str]:
    """A file of lines `NUMBER VALUE`."""
    if not path.exists():
        raise MissingData(
            f"{path} is not there: run `fewmore data get cub200`, or give the folder that CUB_200_2011 lies in with --data-root"
        )
    pairs = [line.split() for line in _lines(path)]
    if wrong := next(
        (
            number
            for number, pair in enumerate(pairs, 1)
            if len(pair) != 2 or not pair[0].isdecimal()
        ),
        None,
    ):
        raise DataError(f"{path}, line {wrong}, is not a number and a value: {_CUB_AGAIN}")
    return {int(number): value for number, value in pairs}


def _folder(benchmark: Benchmark, root: Path, on_progress: Progress | None) -> BenchmarkImages:
    return _read(*files.list_folder(_folder_path(benchmark.name)), on_progress, short_side=92)


_READERS: dict[str, Callable[[Benchmark, Path, Progress | None], BenchmarkImages]] = {
    "glyphs": _glyphs,
    "cifar100": _cifar100,
    "miniimagenet": _miniimagenet,
    "cub200": _cub200,
    "folder": _folder,
}


def _read(
    train: Listing,
    test: Listing,
    on_progress: Progress | None,
    short_side: int | None = None,
    square: int | None = None,
    missing: Sequence[Path] = (),
) -> BenchmarkImages:
    """Decode both sets, with one progress over both and one report of all broken images."""

    def from_(start: int) -> Progress | None:
        return on_progress and (lambda done, _: on_progress(start + done, len(train) + len(test)))

    sets, broken = [], []
    for listing, start in ((train, 0), (test, len(train))):
        try:
            sets.append(files.read(listing, short_side, square, from_(start)))
        except ImageError as error:
            broken.append(str(error))
    if broken:
        raise ImageError("; ".join(broken))
    return BenchmarkImages(sets[0], sets[1], train.keys(), missing)


def _lines(path: Path) -> list[str]:
    """The lines of a text file that are not empty."""
    try:
        return [
            line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
        ]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not a text file ({error.reason}): remove it and fetch it again"
        ) from error


# A folder of one's own


def _folder_path(name: str) -> Path:
    path = name.removeprefix(FOLDER)
    if not path:
        raise ConfigError(
            f"'{name}' names no folder: type {FOLDER}PATH, where PATH has one sub-folder a class"
        )
    return Path(path).expanduser()


def _shape(
    counts: Sequence[int], base: int | None, way: int | None, shot: int | None, order: int | None
) -> tuple[int, int, int]:
    """Base, way and shot for any number of classes: about three fifths of them as base, then 5-way 5-shot or what comes nearest."""
    classes = len(counts)
    if way is not None and way < 1:
        raise SplitError(f"way must be at least 1, not {way}")
    if base is None:
        rest = min(round(0.4 * classes), classes - 2)
        if way is None:
            way = max(1, min(5, rest))
        base = classes - way * max(1, round(rest / way)) if rest else classes
        if base < 1:
            raise SplitError(
                f"{classes} classes are too few for a base session and a session of {way}: lower --way"
            )
    elif way is None:
        rest = classes - base
        way = next((w for w in (5, 4, 3, 2) if rest % w == 0), 1)
    if shot is None:
        new = splits.class_order(classes, order)[base:]
        shot = max(1, min([5, *(counts[label] for label in new)]))
    return base, way, shot
