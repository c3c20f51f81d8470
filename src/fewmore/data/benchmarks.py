"""Describe the benchmarks: a table of frozen records.

    glyphs          rendered on this machine, nothing to download
    cifar100        DATA/cifar-100-python/{train, test, meta}
    miniimagenet    DATA/miniimagenet/images/*.jpg, and {train, test}.csv in DATA/miniimagenet/split
    cub200          DATA/CUB_200_2011/{images/, images.txt, image_class_labels.txt,
                    train_test_split.txt}
    folder:PATH     any folder with one sub-folder per class

`loading.py` loads one of them, `session_lists.py` reads its official split. The table is importable
without PyTorch: `fewmore benchmarks` answers at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fewmore.data.folders import list_train_test
from fewmore.data.transform import Transform
from fewmore.errors import ConfigError, SplitError, UnknownName

if TYPE_CHECKING:  # these import PyTorch
    from fewmore.data.images import ImageSet
    from fewmore.data.splits import Split

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
FOLDER_PREFIX = "folder:"


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

    @property
    def sessions(self) -> int:
        """Return the number of sessions, the base session included."""
        return 1 + (self.classes - self.base) // self.way


@dataclass(frozen=True)
class BenchmarkImages:
    """Hold all images of a benchmark that are there."""

    train: "ImageSet"
    test: "ImageSet"
    keys: Sequence[str] = ()  # the official lists' names of the training images
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
    """Return the benchmark of this name; `folder:PATH` makes one of a folder of class folders."""
    if name.startswith(FOLDER_PREFIX):
        return _folder_benchmark(name)
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if Path(name).expanduser().is_dir():
        raise ConfigError(
            f"'{name}' is a folder, not the name of a benchmark: type {FOLDER_PREFIX}{name}"
        )
    raise UnknownName("benchmark", name, [*BENCHMARKS, f"{FOLDER_PREFIX}PATH"])


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
    train, _ = list_train_test(folder_path(name))
    base, way, shot = choose_shape(train.class_counts())
    return Benchmark(
        name=name,
        title=f"Images in {name.removeprefix(FOLDER_PREFIX)}",
        classes=len(train.class_names),
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
