"""Load the images of a benchmark and choose its split."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fewmore.data import cifar, cub200, glyphs, miniimagenet, paths, session_lists, splits
from fewmore.data.benchmarks import (
    FILE_SUFFIX,
    FOLDER_PREFIX,
    Benchmark,
    BenchmarkImages,
    ImageRequest,
    Progress,
    StoredSize,
    Task,
    choose_shape,
    find,
    folder_path,
)
from fewmore.data.cache import load_images
from fewmore.data.folders import Listing, list_train_test
from fewmore.data.images import ImageSet, check_apart
from fewmore.data.splits import Split
from fewmore.data.transform import Transform
from fewmore.errors import (
    BenchmarkError,
    ConfigError,
    FewmoreError,
    ImageError,
    MissingData,
    SplitError,
    describe,
)


def load_task(
    name: str,
    data_root: Path | None = None,
    base: int | None = None,
    way: int | None = None,
    shot: int | None = None,
    draw: int | None = None,
    class_order: int | None = None,
    on_progress: Progress | None = None,
    transforms: Sequence[Transform] = (),
) -> Task:
    """Load the images of a benchmark and its split.

    The split is the official one where its session lists are there and no other split is chosen.
    Otherwise it is sampled.

    Args:
        name: a benchmark, as `benchmarks.find` takes it.
        data_root: the folder of benchmarks.
        base: the number of base classes.
        way: the number of new classes per session.
        shot: the number of training images per new class.
        draw: the seed of the shots, by default 0.
        class_order: shuffles the classes by this seed; by default they come in label order.
        on_progress: called with the number of images done and in total.
        transforms: what the images are made ready for, by default the benchmark's transform; images
            of files are stored as large as the largest of them needs.
    """
    benchmark = find(name)
    root = paths.data_root(data_root)
    shape = (base, way, shot, class_order)
    _check_not_planned(benchmark, shape)
    images = load_benchmark_images(benchmark, root, on_progress, transforms)
    is_default = draw is None and all(option is None for option in shape)
    if is_default and session_lists.has_session_lists(benchmark, images, root):
        split = session_lists.official_split(benchmark, images, root)
        return Task(benchmark, images.train, images.test, split, images.test_files, data_root=root)
    _check_complete(benchmark, images)
    benchmark = _reshape(benchmark, images.train.class_counts().tolist(), *shape)
    split = draw_split(benchmark, images.train, images.keys, draw, class_order)
    return Task(benchmark, images.train, images.test, split, images.test_files, images.keys, root)


def reshape(
    benchmark: Benchmark,
    base: int | None = None,
    way: int | None = None,
    shot: int | None = None,
    class_order: int | None = None,
) -> Benchmark:
    """Return a benchmark with other sessions, as far as they can be had without its images."""
    shape = (base, way, shot, class_order)
    if all(option is None for option in shape):
        return benchmark
    _check_not_planned(benchmark, shape)
    counts: Sequence[int] = ()
    if benchmark.name.startswith(FOLDER_PREFIX):
        counts = list_train_test(folder_path(benchmark.name))[0].class_counts()
    reshaped = _reshape(benchmark, counts, *shape)
    if not benchmark.plan:
        splits.check_shape(benchmark.classes, reshaped.base, reshaped.way, reshaped.shot)
    return reshaped


def _check_not_planned(benchmark: Benchmark, shape: tuple[int | None, ...]) -> None:
    """Refuse other sessions for a benchmark whose sessions are fixed."""
    if benchmark.plan and any(option is not None for option in shape):
        raise SplitError(
            f"the sessions of {benchmark.name} are fixed: leave out --base, --way, --shot and "
            "--class-order"
        )


def _reshape(
    benchmark: Benchmark,
    counts: Sequence[int],
    base: int | None,
    way: int | None,
    shot: int | None,
    class_order: int | None,
) -> Benchmark:
    """Return a benchmark with other sessions; `counts` are the training images by class."""
    if benchmark.name.startswith(FOLDER_PREFIX):
        base, way, shot = choose_shape(counts, base, way, shot, class_order)
    return replace(
        benchmark,
        base=benchmark.base if base is None else base,
        way=benchmark.way if way is None else way,
        shot=benchmark.shot if shot is None else shot,
    )


def draw_split(
    benchmark: Benchmark,
    train: ImageSet,
    keys: Sequence[str] = (),
    draw: int | None = None,
    class_order: int | None = None,
) -> Split:
    """Make the split of a benchmark that is not read from official lists."""
    b = benchmark
    if b.plan:
        return splits.planned_split(b.name, train, b.plan, keys, draw)
    return splits.sample_split(train, b.base, b.way, b.shot, draw or 0, class_order)


def load_benchmark_images(
    benchmark: Benchmark,
    root: Path,
    on_progress: Progress | None = None,
    transforms: Sequence[Transform] = (),
) -> BenchmarkImages:
    """Load the training and the test images of a benchmark, whatever the split."""
    request = ImageRequest(root, stored_size(transforms or [benchmark.transform]), on_progress)
    return read_images(benchmark, request)


def read_images(benchmark: Benchmark, request: ImageRequest) -> BenchmarkImages:
    """Load the images of a benchmark by the function of its table or of its own."""
    if benchmark.load is None:
        return _READERS[benchmark.name.partition(":")[0]](benchmark, request)
    try:
        images = benchmark.load(request)
    except FewmoreError:
        raise
    except Exception as error:  # of a user's own code
        raise BenchmarkError(
            f"the load function of {benchmark.name} fails: {describe(error)}"
        ) from error
    if not isinstance(images, BenchmarkImages):
        raise BenchmarkError(
            f"loading {benchmark.name} gives a {type(images).__name__}: its load function must "
            "return BenchmarkImages"
        )
    if images.train.class_names != images.test.class_names:
        raise BenchmarkError(
            f"the training and the test images of {benchmark.name} must have the same class_names"
        )
    if not benchmark.plan and len(images.train.class_names) != benchmark.classes:
        raise BenchmarkError(
            f"{benchmark.name} says that it has {benchmark.classes} classes, and its images have "
            f"{len(images.train.class_names)}: set classes={len(images.train.class_names)} in the "
            "Benchmark, or load the images of all"
        )
    if not benchmark.name.endswith(FILE_SUFFIX):  # those of a file are checked by its folder
        check_apart(benchmark.name, images.train, images.test)
    return images


def stored_size(transforms: Sequence[Transform]) -> StoredSize:
    """Return the size that all transforms can work from.

    Views that are resized begin with images whose short side the transform says, by default that
    of a test image. A transform that takes the pixels as they are needs squares of the view's size.
    """
    sides = {transform: _short_side(transform) for transform in transforms}
    exact = {transform.size for transform, side in sides.items() if side is None}
    resized = [side for side in sides.values() if side is not None]
    if not exact:
        return StoredSize(short_side=max(resized))
    if resized or len(exact) > 1:
        raise ConfigError(
            "these methods cannot share images, because their transforms take stored images of "
            "different sizes: run them one by one"
        )
    return StoredSize(square=exact.pop())


def _short_side(transform: Transform) -> int | None:
    """Return the short side that images are stored with, or None for squares of the view's size."""
    if transform.crop == "pad" or transform.resize is None:
        return None
    return (
        transform.stored or (transform.enlarged if transform.has_large_views else transform).resize
    )


def _check_complete(benchmark: Benchmark, images: BenchmarkImages) -> None:
    """Raise MissingData where training images are missing: a sampled split may use any of them."""
    if images.missing:
        raise MissingData(
            f"{len(images.missing):,} training images of {benchmark.name} are missing, the first "
            f"of them {images.missing[0]}: put them there to draw a split, or take the official "
            f"one, with the lists from `fewmore data get {benchmark.name}` and without --base, "
            f"--way, --shot, --draw and --class-order"
        )


def _load_glyphs(benchmark: Benchmark, request: ImageRequest) -> BenchmarkImages:
    train, test = glyphs.load(paths.cache_folder() / "glyphs", on_progress=request.on_progress)
    return BenchmarkImages(train, test)


def _load_cifar100(benchmark: Benchmark, request: ImageRequest) -> BenchmarkImages:
    train, test = cifar.load(request.data_root / cifar.FOLDER)
    return BenchmarkImages(train, test, [str(index) for index in range(len(train))])


def _load_miniimagenet(benchmark: Benchmark, request: ImageRequest) -> BenchmarkImages:
    train, test, missing = miniimagenet.list_images(request.data_root, benchmark.base)
    return replace(load_listings(train, test, request), missing=missing)


def _load_cub200(benchmark: Benchmark, request: ImageRequest) -> BenchmarkImages:
    train, test = cub200.list_images(request.data_root)
    return load_listings(train, test, request)


def _load_folder(benchmark: Benchmark, request: ImageRequest) -> BenchmarkImages:
    train, test = list_train_test(folder_path(benchmark.name))
    return load_listings(train, test, request)


_READERS: dict[str, Callable[[Benchmark, ImageRequest], BenchmarkImages]] = {
    "glyphs": _load_glyphs,
    "cifar100": _load_cifar100,
    "miniimagenet": _load_miniimagenet,
    "cub200": _load_cub200,
    "folder": _load_folder,
}


def load_listings(train: Listing, test: Listing, request: ImageRequest) -> BenchmarkImages:
    """Load both sets, with one progress over both and one error for all broken images."""
    size, on_progress = request.size, request.on_progress

    def progress_from(start: int) -> Progress | None:
        return on_progress and (lambda done, _: on_progress(start + done, len(train) + len(test)))

    sets = []
    broken = []
    for listing, start in ((train, 0), (test, len(train))):
        try:
            sets.append(load_images(listing, size.short_side, size.square, progress_from(start)))
        except ImageError as error:
            broken.append(str(error))
    if broken:
        raise ImageError("; ".join(broken))
    return BenchmarkImages(sets[0], sets[1], train.keys(), test_files=test.keys())
