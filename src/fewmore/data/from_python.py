"""Build benchmarks from Python: from arrays, lists of images, and Hugging Face image datasets.

`task_from_images` and `task_from_dataset` return a task to run methods on. `image_set` and
`dataset_images` load images for a Benchmark of one's own, which commands can then name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewmore.data import loading, plans
from fewmore.data.benchmarks import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Benchmark,
    BenchmarkImages,
    StoredSize,
    Task,
    any_folder,
    choose_shape,
)
from fewmore.data.cache import load_images
from fewmore.data.decode import decode_image, suppress_warnings, try_decode
from fewmore.data.folders import Listing
from fewmore.data.images import ImageSet, Ragged, check_apart
from fewmore.data.plans import SessionPlan
from fewmore.data.transform import Transform
from fewmore.errors import DataError, ImageError

Labels = Sequence[int] | Sequence[str] | np.ndarray | Tensor
LARGEST_TAKEN_AS_IT_IS = 64  # pixels: smaller squares are neither cropped nor enlarged


@dataclass(frozen=True)
class Sessions:
    """Say which sessions a task has.

    Attributes:
        plan: the sessions, the base session first: each a list of class names, or a SessionPlan.
            Without a plan they are chosen by `base`, `way` and `class_order`.
        base: the number of base classes, by default about three fifths of all.
        way: the number of new classes per session, by default 5 or what comes nearest.
        shot: the number of training images per new class, by default 5 or as many as there are;
            in a plan, of the sessions that are lists of names.
        draw: the seed of the shots.
        class_order: shuffles the classes by this seed; by default they come in label order.
    """

    plan: Sequence[Sequence[str] | SessionPlan] = ()
    base: int | None = None
    way: int | None = None
    shot: int | None = None
    draw: int | None = None
    class_order: int | None = None


def task_from_images(
    name: str,
    train: tuple[Any, Labels],
    test: tuple[Any, Labels],
    sessions: Sessions | None = None,
    class_names: Sequence[str] | None = None,
    transform: Transform | None = None,
    backbone: str = "resnet18",
) -> Task:
    """Build a task from images and labels.

    Args:
        name: what results and run folders call the benchmark.
        train: the training images and their labels; images are an array or tensor, or a list of
            paths, Pillow images or arrays, as `image_set` takes them.
        test: the test images and their labels.
        sessions: the sessions, by default as for a folder of images.
        class_names: the names of the labels 0, 1, …; by default labels are names themselves.
        transform: how images become inputs of the network. By default, where the first training
            image is a small square, all are taken as squares of its size, and otherwise as those
            of a folder. Images are stored as large as it needs.
        backbone: the backbone that recipes take.
    """
    labels = {"train": _list_labels(train[1]), "test": _list_labels(test[1])}
    class_names, labels = _name_classes(class_names, labels)
    _check_paths(train[0], test[0])
    transform = transform or _choose_transform(next(iter(_iterate(train[0])), None))
    size = loading.stored_size([transform])
    images = BenchmarkImages(
        image_set(train[0], labels["train"], class_names, size, f"{name}, training image"),
        image_set(test[0], labels["test"], class_names, size, f"{name}, test image"),
    )
    return _make_task(name, images, sessions or Sessions(), transform, backbone)


def task_from_dataset(
    name: str,
    dataset: Any,
    sessions: Sessions | None = None,
    image: str = "image",
    label: str = "label",
    transform: Transform | None = None,
    backbone: str = "resnet18",
) -> Task:
    """Build a task from a Hugging Face image dataset.

    Args:
        name: what results and run folders call the benchmark.
        dataset: a DatasetDict, or any mapping of datasets, with `train`, and with `test` or
            `validation`.
        sessions: the sessions, by default as for a folder of images.
        image: the column of the images.
        label: the column of the labels, numbers or names.
        transform: how images become inputs of the network, as in `task_from_images`.
        backbone: the backbone that recipes take.
    """
    _find_parts(dataset, (image, label))
    transform = transform or _choose_transform(next(iter(dataset["train"]), {image: None})[image])
    images = dataset_images(dataset, image, label, loading.stored_size([transform]))
    return _make_task(name, images, sessions or Sessions(), transform, backbone)


def dataset_images(
    dataset: Any, image: str = "image", label: str = "label", size: StoredSize | None = None
) -> BenchmarkImages:
    """Load the training and the test images of a Hugging Face image dataset."""
    parts = _find_parts(dataset, (image, label))
    known = getattr(parts["train"].features[label], "names", None)
    values = {name: list(rows[label]) for name, rows in parts.items()}
    class_names, labels = _name_classes(known, values)
    train, test = (
        image_set((row[image] for row in rows), labels[name], class_names, size, f"row of '{name}'")
        for name, rows in parts.items()
    )
    return BenchmarkImages(train, test)


def _find_parts(dataset: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Return the split to train with and the split to test with, once they have these columns."""
    if not isinstance(dataset, Mapping) or "train" not in dataset:
        raise DataError(
            "a dataset must be a DatasetDict with the splits 'train' and 'test': load it without "
            "split=…, or give {'train': …, 'test': …}"
        )
    part = next((name for name in ("test", "validation", "val") if name in dataset), None)
    if part is None:
        raise DataError(
            f"the dataset has the splits {', '.join(dataset)}, and none to test with: make one, "
            "as by dataset['train'].train_test_split(0.2)"
        )
    parts = {name: dataset[name] for name in ("train", part)}
    for name, rows in parts.items():
        for column in columns:
            if column not in rows.column_names:
                raise DataError(
                    f"the split '{name}' has the columns {', '.join(rows.column_names)}, and no "
                    f"'{column}': name the columns with image= and label="
                )
    return parts


def image_set(
    images: Any,
    labels: Labels,
    class_names: Sequence[str],
    size: StoredSize | None = None,
    what: str = "image",
) -> ImageSet:
    """Make an ImageSet of images and labels.

    Args:
        images: an array or tensor of images, or paths, Pillow images, arrays or tensors.
        labels: one for each image, a position in `class_names` or one of them.
        class_names: the names of the classes, all different.
        size: the size that images are stored at, by default their own.
        what: what messages call an image; its position follows.
    """
    size = size or StoredSize()
    numbers = _label_numbers(_list_labels(labels), class_names, what)
    if isinstance(images, np.ndarray | Tensor) and images.dtype in (np.uint8, torch.uint8):
        stacked = _channels_first(torch.as_tensor(images))
        if stacked is not None and _fits(stacked, size):
            return ImageSet.from_images(stacked, numbers, class_names)
    if _are_paths(images):
        paths = tuple(Path(path).expanduser() for path in images)
        listing = Listing(paths, tuple(numbers), tuple(class_names))
        return load_images(listing, size.short_side, size.square)
    arrays = [_decode(each, size, f"{what} {index}") for index, each in enumerate(_iterate(images))]
    if not arrays:
        raise DataError(f"there is no {what}: give at least one image a class")
    same = len({array.shape for array in arrays}) == 1
    storage = torch.from_numpy(np.stack(arrays)) if same else Ragged.from_arrays(arrays)
    return ImageSet.from_images(storage, numbers, class_names)


def _iterate(images: Any) -> Iterable[Any]:
    if not isinstance(images, Iterable):
        raise DataError(
            f"images are of type {type(images).__name__}: give an array, or a list of paths, "
            "Pillow images or arrays"
        )
    return images


def _are_paths(images: Any) -> bool:
    return (
        isinstance(images, Sequence)
        and len(images) > 0
        and all(isinstance(image, str | Path) for image in images)
    )


def _list_labels(labels: Labels) -> list[Any]:
    if isinstance(labels, np.ndarray | Tensor):
        return labels.tolist()
    return [_plain(label) for label in labels]


def _plain(label: Any) -> Any:
    """Return a label of NumPy or PyTorch as Python's."""
    return label.item() if getattr(label, "ndim", None) == 0 else label


def _name_classes(
    class_names: Sequence[str] | None, labels: dict[str, list[Any]]
) -> tuple[Sequence[str], dict[str, list[Any]]]:
    """Return the names of the classes, and labels that are positions in them or names."""
    if class_names is not None:
        return class_names, labels
    names = [str(label) for label in sorted(set(labels["train"]))]
    return names, {part: [str(label) for label in values] for part, values in labels.items()}


def _label_numbers(labels: list[Any], class_names: Sequence[str], what: str) -> list[int]:
    """Return labels as positions in the names of the classes."""
    label_of = {name: number for number, name in enumerate(class_names)}
    numbers = []
    for index, label in enumerate(labels):
        number = label if isinstance(label, int) else label_of.get(label)
        if number is None or not 0 <= number < len(class_names):
            names = ", ".join(class_names[:5]) + (", …" if len(class_names) > 5 else "")
            raise DataError(
                f"{what} {index} has the label {label!r}, which is not one of the "
                f"{len(class_names)} classes ({names})"
            )
        numbers.append(number)
    return numbers


def _channels_first(images: Tensor) -> Tensor | None:
    """Return stacked images as (n, 3, height, width), or None where they are of another form."""
    if images.dim() == 4 and images.shape[1] == 3:
        return images
    if images.dim() == 4 and images.shape[3] == 3:
        return images.permute(0, 3, 1, 2).contiguous()
    return None


def _fits(images: Tensor, size: StoredSize) -> bool:
    """Return whether stacked images are stored as they are."""
    height, width = images.shape[2:]
    if size.square is not None:
        return bool(height == width == size.square)
    return size.short_side is None or min(height, width) <= size.short_side


def _decode(image: Any, size: StoredSize, name: str) -> np.ndarray:
    """Decode one image of any form at the size that it is stored at."""
    from PIL import Image

    if not isinstance(image, Image.Image):
        pixels = decode_image(image, name).numpy()
        if size == StoredSize():
            return pixels
        image = Image.fromarray(pixels.transpose(1, 2, 0))
    with suppress_warnings():
        decoded = try_decode(image, size.short_side, size.square, False)
    if isinstance(decoded, str):
        raise ImageError(f"{name} cannot be read ({decoded}): replace it, or leave it out")
    return decoded


def _choose_transform(first: Any) -> Transform:
    """Return a transform that takes small squares as they are, and other images as photos."""
    if first is None:
        raise DataError("there is no training image: give at least one of each class")
    height, width = decode_image(first, "the first training image").shape[1:]
    if height == width <= LARGEST_TAKEN_AS_IT_IS:
        return Transform(height, IMAGENET_MEAN, IMAGENET_STD, "pad", pad=height // 8)
    return any_folder(1, 1, 1, 1).transform


def _check_paths(train: Any, test: Any) -> None:
    if _are_paths(train) and _are_paths(test):
        both = {Path(path).resolve() for path in train} & {Path(path).resolve() for path in test}
        if both:
            raise DataError(
                f"{min(both)} is among the training and the test images: leave it out of one"
            )


def _check_tested(name: str, test: ImageSet) -> None:
    for class_name, count in zip(test.class_names, test.class_counts().tolist(), strict=True):
        if not count:
            raise DataError(f"{name}: class '{class_name}' has no test image: add some")


def _make_task(
    name: str,
    images: BenchmarkImages,
    sessions: Sessions,
    transform: Transform,
    backbone: str,
) -> Task:
    """Choose the sessions, and describe the benchmark."""
    train = images.train
    _check_tested(name, images.test)
    check_apart(name, train, images.test)
    counts = train.class_counts().tolist()
    plan = tuple(_session_plan(number, each, sessions) for number, each in enumerate(sessions.plan))
    if plan:
        given = (sessions.base, sessions.way, sessions.class_order)
        if any(value is not None for value in given):
            raise DataError("a plan fixes the sessions: leave out base, way and class_order")
        labels = train.labels.tolist()
        base, way, shot = plans.shape(plans.resolve(name, plan, labels, train.class_names))
    else:
        base, way, shot = choose_shape(
            counts, sessions.base, sessions.way, sessions.shot, sessions.class_order
        )
    benchmark = Benchmark(
        name,
        f"Images of {name}",
        len(counts),
        base,
        way,
        shot,
        backbone,
        pretrained=False,
        transform=transform,
        plan=plan,
        source={"file": name, "sha256": train.content_hash() + images.test.content_hash()},
    )
    split = loading.draw_split(benchmark, train, (), sessions.draw, sessions.class_order)
    return Task(benchmark, train, images.test, split)


def _session_plan(
    number: int, session: Sequence[str] | SessionPlan, sessions: Sessions
) -> SessionPlan:
    if isinstance(session, SessionPlan):
        return session
    if isinstance(session, str):
        raise DataError(f"session {number} is the text '{session}': give a list of class names")
    return SessionPlan(tuple(session), sessions.shot or 5 if number else None)
