"""Describe the benchmarks: a table of frozen records.

Names of benchmarks, and where their images are:

    glyphs          rendered on this machine, nothing to download
    cifar100        DATA/cifar-100-python/{train, test, meta}
    miniimagenet    DATA/miniimagenet/images/*.jpg, and {train, test}.csv in DATA/miniimagenet/split
    cub200          DATA/CUB_200_2011/{images/, images.txt, image_class_labels.txt,
                    train_test_split.txt}
    folder:PATH     any folder with one sub-folder per class
    FILE.json       classes and sessions of one's own: benchmark_files.py
    file.py:NAME    a Benchmark of one's own; an installed package offers it by an entry point of
                    the group `fewmore.benchmarks`, and gives it a name

`loading.py` loads one of them, `session_lists.py` reads its official split. The table is importable
without PyTorch: `fewmore benchmarks` answers at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fewmore import plugins
from fewmore.data.folders import list_train_test, listing_hash
from fewmore.data.plans import SessionPlan
from fewmore.data.transform import Transform
from fewmore.errors import BenchmarkError, ConfigError, SplitError, UnknownName

if TYPE_CHECKING:  # these import PyTorch
    from fewmore.data.images import ImageSet
    from fewmore.data.splits import Split

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
FOLDER_PREFIX = "folder:"
FILE_SUFFIX = ".json"
GROUP = "fewmore.benchmarks"  # of entry points

Progress = Callable[[int, int], None]  # images done, images in total


@dataclass(frozen=True)
class StoredSize:
    """Hold the size that images of files are stored at: a short side, or that of a square."""

    short_side: int | None = None
    square: int | None = None


@dataclass(frozen=True)
class ImageRequest:
    """Hold what a benchmark's images are loaded with.

    Attributes:
        data_root: the folder of the data sets.
        size: the size that images of files are stored at.
        on_progress: called with the number of images done and in total.
    """

    data_root: Path
    size: StoredSize = StoredSize()
    on_progress: Progress | None = None


@dataclass(frozen=True)
class Benchmark:
    """Describe one benchmark."""

    name: str
    title: str
    classes: int
    base: int  # base classes
    way: int  # new classes per session
    shot: int  # training images per new class
    backbone: str
    pretrained: bool  # whether the backbone starts from ImageNet weights
    transform: Transform
    lists: str | None = None  # folder of the official session lists, below index_list
    # The sessions, where they are not base, way and shot; these say how large they are at most.
    plan: tuple[SessionPlan, ...] = ()
    # Loads the images of a benchmark that is not in the table.
    load: "Callable[[ImageRequest], BenchmarkImages] | None" = None
    # Of a user's benchmark: its file, or folder of images, and the hash of what is in it.
    source: Mapping[str, str] | None = None

    @property
    def sessions(self) -> int:
        """Return the number of sessions, the base session included."""
        return len(self.plan) or 1 + (self.classes - self.base) // self.way

    def describe_sessions(self) -> str:
        """Say how large the sessions are: "60 base classes, then 8 sessions of 5-way 5-shot"."""
        new = self.sessions - 1
        later = f"{new} session" + ("" if new == 1 else "s")
        size = f"{self.way}-way {self.shot}-shot"
        if self.plan:
            size = f"up to {self.way} classes"
        return f"{self.base} base classes, then {later} of {size}"


@dataclass(frozen=True)
class BenchmarkImages:
    """Hold all images of a benchmark that are there."""

    train: "ImageSet"
    test: "ImageSet"
    keys: Sequence[str] = ()  # the names of the training images, in official lists and in plans
    missing: Sequence[Path] = ()  # training images of new classes that are not there
    test_files: Sequence[str] = ()  # CLASS/FILE of each test image, if they are files


@dataclass(frozen=True)
class Task:
    """Hold a benchmark to run: its images and its split."""

    benchmark: Benchmark
    train: "ImageSet"
    test: "ImageSet"
    split: "Split"
    test_files: Sequence[str] = ()  # CLASS/FILE of each test image, if they are files
    keys: Sequence[str] = ()  # the names of the training images, if they have names
    data_root: Path | None = None  # where weights are looked for; None is the usual place


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
            transform=Transform(24, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "pad", pad=2, flip=False),
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
            # Of larger files, the smallest crop (8% of the area) has as many pixels as its view.
            transform=Transform(84, IMAGENET_MEAN, IMAGENET_STD, "resized", resize=92, stored=297),
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
    """Return a benchmark by its name.

    That is a name in the table or of an installed package's benchmark, `folder:PATH` for a folder
    of class folders, a benchmark file, or a user's Benchmark as `path/to/file.py:NAME` or
    `package.module:NAME`.
    """
    if name.startswith(FOLDER_PREFIX):
        return _folder_benchmark(name)
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    installed = plugins.installed(GROUP)
    if name in installed:
        plugins.check(installed[name], BenchmarkError)
        return _user_benchmark(name, installed[name].module, installed[name].attr)
    if name.endswith(FILE_SUFFIX):
        from fewmore.data import benchmark_files

        return benchmark_files.read(name)
    where, colon, attribute = name.rpartition(":")
    if colon and (where.endswith(".py") or plugins.is_module(where, BenchmarkError)):
        return _user_benchmark(name, where, attribute)
    if name.endswith(".py"):
        _refuse_file(name)
    if Path(name).expanduser().is_dir():
        raise ConfigError(
            f"'{name}' is a folder, not the name of a benchmark: type {FOLDER_PREFIX}{name}"
        )
    more = (f"{FOLDER_PREFIX}PATH", f"FILE{FILE_SUFFIX}", "path/to/file.py:NAME")
    raise UnknownName("benchmark", name, [*BENCHMARKS, *installed, *more])


def _refuse_file(path: str) -> NoReturn:
    """Say which benchmark of a file to name."""
    found = vars(plugins.load(path, "the benchmark", BenchmarkError))
    names = [f"{path}:{name}" for name, value in found.items() if isinstance(value, Benchmark)]
    if names:
        raise BenchmarkError(f"{path} is a file: name the benchmark, {' or '.join(names)}")
    raise BenchmarkError(
        f"{path} is a file without a benchmark: make one in it with "
        "fewmore.data.benchmarks.Benchmark(…)"
    )


def _user_benchmark(name: str, where: str, attribute: str) -> Benchmark:
    """Return the Benchmark of a user's module, under the name that it is called by."""
    module = plugins.load(where, attribute, BenchmarkError)
    benchmark: Any = getattr(module, attribute, None)
    if benchmark is None:
        known = [key for key, value in vars(module).items() if isinstance(value, Benchmark)]
        raise UnknownName(f"benchmark in {where}", attribute, known)
    if not isinstance(benchmark, Benchmark):
        raise BenchmarkError(
            f"{attribute} in {where} is of type {type(benchmark).__name__}, not a Benchmark: "
            "make it with fewmore.data.benchmarks.Benchmark(…)"
        )
    if benchmark.load is None:
        raise BenchmarkError(
            f"{attribute} in {where} does not say how its images are loaded: give the Benchmark "
            "load=, a function that takes an ImageRequest and returns BenchmarkImages"
        )
    return replace(benchmark, name=name, source=plugins.source_of(module))


def folder_path(name: str) -> Path:
    """Return PATH of `folder:PATH`."""
    path = name.removeprefix(FOLDER_PREFIX)
    if not path:
        raise ConfigError(
            f"'{name}' names no folder: type {FOLDER_PREFIX}PATH, "
            f"where PATH has one sub-folder a class"
        )
    return Path(path).expanduser()


def _folder_benchmark(name: str) -> Benchmark:
    path = folder_path(name)
    train, test = list_train_test(path)
    base, way, shot = choose_shape(train.class_counts())
    like = any_folder(len(train.class_names), base, way, shot)
    source = {"file": str(path), "sha256": listing_hash(train, test)}
    title = f"Images in {name.removeprefix(FOLDER_PREFIX)}"
    return replace(like, name=name, title=title, source=source)


def any_folder(classes: int, base: int, way: int, shot: int) -> Benchmark:
    """Return a benchmark for photos, with the backbone and the transform of folder:PATH."""
    return Benchmark(
        name="",
        title="",
        classes=classes,
        base=base,
        way=way,
        shot=shot,
        backbone="resnet18",
        pretrained=False,
        transform=Transform(84, IMAGENET_MEAN, IMAGENET_STD, "resized", resize=92),
    )


def choose_shape(
    counts: Sequence[int],
    base: int | None = None,
    way: int | None = None,
    shot: int | None = None,
    class_order: int | None = None,
) -> tuple[int, int, int]:
    """Choose base, way and shot for any number of classes, where they are None.

    About three fifths of the classes are base, then 5-way 5-shot or what comes nearest.

    Args:
        counts: the number of training images of each class.
        base: the number of base classes.
        way: the number of new classes per session.
        shot: the number of training images per new class.
        class_order: the seed that shuffles the classes.
    """
    classes = len(counts)
    if way is not None and way < 1:
        raise SplitError(f"way must be at least 1, not {way}")
    if base is None:
        new = min(round(0.4 * classes), classes - 2)
        if way is None:
            way = max(1, min(5, new))
        base = classes - way * max(1, round(new / way)) if new else classes
        if base < 1:
            raise SplitError(
                f"{classes} classes are too few for a base session and a session of {way}: "
                f"lower --way"
            )
    elif way is None:
        new = classes - base
        way = next((w for w in (5, 4, 3, 2) if new % w == 0), 1)
    if shot is None:
        from fewmore.data import splits

        new_labels = splits.class_order(classes, class_order)[base:]
        shot = max(1, min([5, *(counts[label] for label in new_labels)]))
    return base, way, shot
