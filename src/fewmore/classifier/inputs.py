"""Bring the images that a user gives, in any accepted form, into one list with labels.

Nothing is decoded here: paths stay paths until an image is needed.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fewmore.classifier.classes import clean_name
from fewmore.classifier.text import count_noun, join_names
from fewmore.data.decode import CHANNELS, ImageLike
from fewmore.data.folders import find_images, list_image_folder, printable
from fewmore.data.images import ImageSet
from fewmore.data.manifests import is_manifest, list_manifest
from fewmore.errors import DataError

# A folder of class folders, a manifest, an ImageSet, a dict from class names to images, or a
# Hugging Face dataset (whose type is not imported here).
ImagesByClass = str | Path | ImageSet | Mapping[str, Sequence[ImageLike]] | Any


@dataclass(frozen=True, eq=False)
class LabeledImages:
    """List images of named classes, none of them decoded yet, ordered by class."""

    names: tuple[str, ...]  # of the classes
    labels: tuple[int, ...]
    images: Sequence[Any]
    titles: tuple[str, ...]  # what messages call each image: of a file, its printable path
    notes: tuple[str, ...] = ()  # what a user should know of them
    empty: tuple[tuple[str, str], ...] = ()  # class folders without images, and what they hold

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self) -> Tensor:
        """Return the number of images of each class, (C,)."""
        labels = torch.tensor(self.labels, dtype=torch.int64)
        return torch.bincount(labels, minlength=len(self.names))

    def files(self) -> list[int]:
        """Return the positions of the images that are files."""
        given = self.images.images if isinstance(self.images, _Permuted) else self.images
        if isinstance(given, (ImageSetSequence, _ImageColumn)):  # reading an image would decode it
            return []
        return [i for i, image in enumerate(self.images) if isinstance(image, (str, Path))]


def collect_images(images: ImagesByClass, skip_empty: bool = False) -> LabeledImages:
    """List images by class, whose names must differ.

    They come as a folder of class folders, a manifest (CSV or JSONL with the columns `path` and
    `label`), an `ImageSet`, a dict, or a Hugging Face dataset with the columns `image` and `label`.
    A class's folder without images is refused, or left out if `skip_empty`.
    """
    if isinstance(images, LabeledImages):
        return images
    if isinstance(images, (str, Path)):
        return _of_files(Path(images), skip_empty)
    if isinstance(images, ImageSet):
        return _by_class(images.class_names, images.labels.tolist(), ImageSetSequence(images))
    if hasattr(images, "column_names") and hasattr(images, "features"):
        return _of_dataset(images)
    if not isinstance(images, Mapping):
        raise DataError(
            "images must come as a folder of class folders, as a dict such as "
            f"{{'okapi': ['a.jpg', 'b.jpg']}}, or as a list with a list of labels, "
            f"not as {type(images).__name__}"
        )
    if not images:
        raise DataError("no classes were given: give each of them with some of its images")
    flat: list[ImageLike] = []
    labels: list[int] = []
    for label, (name, of_class) in enumerate(images.items()):
        sequence = as_image_sequence(of_class)
        if not len(sequence):
            raise DataError(f"class '{name}' has no images: give at least one")
        flat += sequence
        labels += [label] * len(sequence)
    return _by_class(tuple(images), labels, flat)


def check_several_classes(given: object, images: LabeledImages) -> None:
    """Refuse one class alone, and say where more of them may be."""
    if len(images.names) > 1:
        return
    (name,) = images.names
    if isinstance(given, (str, Path)) and Path(given).expanduser().is_dir():
        ((_, folders),) = sub_folders(Path(given), images).items()
        if "" not in folders and len(folders) > 1:
            depth = len(Path(given).expanduser().parts) + 1
            inner = Path(*Path(images.titles[0]).parts[:depth])
            raise DataError(
                f"the only sub-folder, {name}, has {len(folders)} folders with images: "
                f"did you mean `fewmore train {shlex.quote(str(inner))}`?"
            )
    raise DataError(f"one class was given, {name}, and at least 2 are needed to train: give more")


def label_images(images: Any, labels: Any) -> LabeledImages:
    """List images with a label each, scikit-learn's X and y; classes are in the order of labels."""
    sequence = as_batch(images)
    values, codes = np.unique(as_labels(labels, len(sequence)), return_inverse=True)
    if values.dtype.kind == "u" and values[-1] > np.iinfo(np.int64).max:
        raise DataError(
            f"a label has at most 64 bits, one of them its sign, and {values[-1]} has more: "
            "give texts, or other numbers"
        )
    given = [str(value) for value in values]
    listed = _by_class(given, codes.tolist(), sequence)
    pairs = zip(given, listed.names, strict=True)
    changed = [f"{label!a} is {name!a}" for label, name in pairs if label != name]
    if not changed:
        return listed
    note = (
        "labels are answered in composed form (NFC) and without spaces around them: "
        f"{join_names(changed)}; give them so, or they differ from what is predicted"
    )
    return replace(listed, notes=(note,))


def as_batch(images: Any) -> Sequence[ImageLike]:
    """Return a sequence of images; an array has one along its first axis, whatever its shape."""
    return list(images) if isinstance(images, (np.ndarray, Tensor)) else as_image_sequence(images)


def as_labels(labels: Any, images: int) -> np.ndarray:
    """Return the labels of so many images, texts or whole numbers, as an array."""
    array = np.asarray(labels)
    if array.dtype == object and all(isinstance(label, str) for label in array.flat):
        array = array.astype(str)
    if array.shape != (images,):
        given = count_noun(len(array), "label") if array.ndim == 1 else f"labels {array.shape}"
        raise DataError(
            f"{count_noun(images, 'image')} and {given} were given: give one label for each image "
            "(for features of your own there is fewmore.PrototypeClassifier)"
        )
    if not images:
        raise DataError("no images were given: give some of each class")
    if array.dtype.kind not in "iuU":
        raise DataError(f"labels must be texts or whole numbers, not {array.dtype}")
    return array


def _of_files(place: Path, skip_empty: bool) -> LabeledImages:
    is_list = is_manifest(place)
    listing = list_manifest(place) if is_list else list_image_folder(place, skip_empty)
    paths = [str(path) for path in listing.paths]  # a Path takes four times the memory
    images = _by_class(listing.class_names, listing.labels, paths)
    if is_list:
        return images
    notes = []
    nested = {name: folders - {""} for name, folders in sub_folders(place, images).items()}
    if count := sum(map(len, nested.values())):
        names = join_names([name for name, folders in nested.items() if folders])
        are = "sub-folder is no class" if count == 1 else f"{count:,} sub-folders are no classes"
        notes.append(f"images in sub-folders count for their class too: in {names}; the {are}")
    if listing.others:
        depth = len(place.expanduser().parts)
        kinds = join_names(sorted({path.suffix.lower() for path in listing.others}))
        names = join_names(sorted({path.parts[depth] for path in listing.others}))
        files = count_noun(len(listing.others), "file")
        notes.append(f"{files} of other kinds left out ({kinds}) in {names}: save them as JPEG")
    if loose := find_images(place.expanduser()):
        names = join_names([path.name for path in loose])
        files = count_noun(len(loose), "image")
        notes.append(f"{files} of no class left out ({names}): put each into a class's folder")
    return replace(images, notes=tuple(map(printable, notes)), empty=listing.empty)


def sub_folders(place: Path, images: LabeledImages) -> dict[str, set[str]]:
    """Return the sub-folders of each class's folder that have images; "" is that folder itself."""
    depth = len(place.expanduser().parts) + 1
    found: dict[str, set[str]] = {name: set() for name in images.names}
    for title, label in zip(images.titles, images.labels, strict=True):
        inside = Path(title).parts[depth:]
        found[images.names[label]].add(inside[0] if len(inside) > 1 else "")
    return found


def _of_dataset(dataset: Any) -> LabeledImages:
    for column in ("image", "label"):
        if column not in dataset.column_names:
            raise DataError(
                f"the dataset has the columns {', '.join(dataset.column_names)}, and no "
                f"'{column}': rename one with dataset.rename_column(…, '{column}')"
            )
    values = list(dataset["label"])
    if not values:
        raise DataError("the dataset has no rows: give one with some images of each class")
    names = getattr(dataset.features["label"], "names", None)
    if missing := sum(value is None or (bool(names) and value < 0) for value in values):
        have = "has" if missing == 1 else "have"
        raise DataError(
            f"{count_noun(missing, 'row')} of the dataset {have} no label: filter them out, "
            "or give another split"
        )
    present = sorted(set(values))  # a part of a dataset knows the classes of the whole
    label_of = {value: label for label, value in enumerate(present)}
    return _by_class(
        [names[value] if names else str(value) for value in present],
        [label_of[value] for value in values],
        _ImageColumn(dataset),
    )


def as_image_sequence(images: Any) -> Sequence[ImageLike]:
    """Return a sequence of images; a single image becomes a list of one.

    Of a folder these are all images in it. An array (n, height, width) holds n gray images, unless
    1, 3 or 4 at one of its ends says that these are the channels of one.
    """
    if isinstance(images, (str, Path)) and Path(images).expanduser().is_dir():
        files = find_images(Path(images).expanduser(), recursive=True)
        if not files:
            raise DataError(f"{images} has no images in it: give a folder that has some")
        return [str(path) for path in files]
    if isinstance(images, (str, Path, bytes, bytearray, Image.Image)):
        return [images]
    if isinstance(images, (np.ndarray, Tensor)) and not _is_batch(images):
        return [images]
    if isinstance(images, ImageSet):
        return ImageSetSequence(images)
    if not isinstance(images, Iterable) or hasattr(images, "read"):  # a file has lines, not images
        raise DataError(
            f"images were given as {type(images).__name__}: give a path, a file's bytes, a Pillow "
            "image, an array, or a list of them"
        )
    return list(images)


def _is_batch(array: np.ndarray | Tensor) -> bool:
    if isinstance(array, np.ndarray) and array.dtype.kind in "OUS":  # of paths, for example
        return True
    if array.ndim == 3:
        return array.shape[0] not in CHANNELS and array.shape[2] not in CHANNELS
    return array.ndim > 3


class _ImageColumn(Sequence[Any]):
    """Give access to the images of a Hugging Face dataset one row at a time."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]["image"]


class ImageSetSequence(Sequence[Any]):
    """Give access to the images of an `ImageSet` one at a time."""

    def __init__(self, images: ImageSet) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        return self.images.image(index)


class _Permuted(Sequence[Any]):
    """Give access to a sequence in another order."""

    def __init__(self, images: Sequence[Any], order: Sequence[int]) -> None:
        self.images = images
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: Any) -> Any:
        return self.images[self.order[index]]


def _by_class(names: Sequence[str], labels: Sequence[int], images: Sequence[Any]) -> LabeledImages:
    clean = [clean_name(name) for name in names]
    if len(set(clean)) < len(clean):
        repeated = sorted({name for name in clean if clean.count(name) > 1})
        raise DataError(f"class names must differ; more than once: {join_names(repeated)}")
    counts = [0] * len(clean)
    order = sorted(range(len(labels)), key=labels.__getitem__)
    titles = []
    in_memory = not isinstance(images, (ImageSetSequence, _ImageColumn))
    for position in order:
        label = labels[position]
        counts[label] += 1
        image = images[position] if in_memory else None
        if isinstance(image, (str, Path)):
            titles.append(printable(image))
        else:
            titles.append(f"image {counts[label]} of {clean[label]}")
    if 0 in counts:
        raise DataError(f"class '{clean[counts.index(0)]}' has no images: give at least one")
    is_ordered = order == list(range(len(labels)))
    return LabeledImages(
        names=tuple(clean),
        labels=tuple(labels[position] for position in order),
        images=images if is_ordered else _Permuted(images, order),
        titles=tuple(titles),
    )
