"""List the image files of a folder with one sub-folder per class."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fewmore.errors import DataError, MissingData, UnknownName
from fewmore.io import file_hash

IMAGE_SUFFIXES = frozenset(
    {
        *(".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jpeg", ".jpg"),
        *(".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"),
    }
)
# Beside images, of which nobody expects that they are learnt: lists, notes, previews and films.
SIDE_SUFFIXES = frozenset(
    {
        *(".aae", ".csv", ".db", ".htm", ".html", ".ini", ".json", ".jsonl", ".log", ".md", ".pdf"),
        *(".avi", ".m4v", ".mov", ".mp4", ".mpg", ".thm", ".txt", ".xml", ".xmp", ".yaml", ".yml"),
    }
)
TEST_FOLDERS = ("test", "val")
MAX_NAMED = 5  # files that an error message names
_NO_UTF8 = re.compile(r"\\u(dc[89a-f][0-9a-f])")  # a byte in the text of a path


@dataclass(frozen=True)
class Listing:
    """Hold image files and their labels, not yet decoded."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    class_names: tuple[str, ...]
    others: tuple[Path, ...] = ()  # files of other kinds beside the images
    empty: tuple[tuple[str, str], ...] = ()  # class folders without images, and what they hold

    def __len__(self) -> int:
        return len(self.paths)

    def class_counts(self) -> tuple[int, ...]:
        """Return the number of images of each class."""
        counts = Counter(self.labels)
        return tuple(counts[label] for label in range(len(self.class_names)))

    def keys(self) -> tuple[str, ...]:
        """Return CLASS/FILE of each image, as the official session lists name it."""
        return tuple(
            f"{self.class_names[label]}/{path.name}"
            for path, label in zip(self.paths, self.labels, strict=True)
        )

    def select_classes(self, names: Sequence[str]) -> "Listing":
        """Return the images of these classes, which are labelled 0, 1, … in the order given."""
        label_of = {name: label for label, name in enumerate(names)}
        new = [label_of.get(self.class_names[label]) for label in self.labels]
        chosen = [
            (path, label) for path, label in zip(self.paths, new, strict=True) if label is not None
        ]
        return Listing(
            tuple(path for path, _ in chosen), tuple(label for _, label in chosen), tuple(names)
        )

    def subset(self, paths: set[Path]) -> "Listing":
        """Return the images whose paths are in a set; classes keep their labels."""
        chosen = [i for i, path in enumerate(self.paths) if path in paths]
        return Listing(
            tuple(self.paths[i] for i in chosen),
            tuple(self.labels[i] for i in chosen),
            self.class_names,
        )


def listing_hash(*listings: Listing) -> str:
    """Hash which images there are: class, name and size in bytes of each file.

    The files are not read, so an image that was replaced by one of the same size goes unnoticed.
    """
    digest = hashlib.sha256()
    for listing in listings:
        sizes = [path.stat().st_size for path in listing.paths]
        files = list(map(os.fsencode, listing.keys()))
        digest.update(repr((listing.class_names, files, sizes)).encode())
    return digest.hexdigest()


def list_image_folder(folder: Path, skip_empty: bool = False) -> Listing:
    """List all images of a folder with one sub-folder per class, of which there must be some.

    The folders inside a class's folder are read too. A class's folder without images is refused, or
    left out if `skip_empty`, unless all are.
    """
    folder = folder.expanduser()
    with _readable(folder):
        _check_not_split(folder)
        return _list_classes(folder, min_classes=1, recursive=True, skip_empty=skip_empty)


def find_images(folder: Path, recursive: bool = False) -> list[Path]:
    """List the images of a folder by name, without hidden ones.

    If recursive, the images of the folders inside it are listed too.
    """
    files = map(Path, walk_files(str(folder), recursive))
    return [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]


def printable(path: str | Path) -> str:
    """Return a path as text that can be printed and stored: bytes that are no UTF-8 as \\udcNN."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def from_printable(path: str | Path) -> Path:
    """Return the path that `printable` made a text of, if only that one is a file."""
    raw = _NO_UTF8.sub(lambda match: chr(int(match[1], 16)), str(path))
    # os.path: a path's own methods raise an error where a folder may not be entered.
    is_raw = raw != str(path) and os.path.isfile(raw) and not os.path.isfile(path)
    return Path(raw if is_raw else path)


def is_of_other_kind(path: Path) -> bool:
    """Say whether a file is neither an image nor one of those that lie beside images."""
    return path.suffix.lower() not in IMAGE_SUFFIXES | SIDE_SUFFIXES | {""}


def walk_files(folder: str, recursive: bool) -> Iterator[str]:
    """Yield the files of a folder by name, without hidden ones; links to folders are not followed.

    One folder at a time is in memory.
    """
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if recursive:
                yield from walk_files(entry.path, recursive)
        elif entry.is_file():
            yield entry.path


def list_train_test(
    folder: Path,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    keep: Collection[str] = (),
    test_keys: Collection[str] | None = None,
) -> tuple[Listing, Listing]:
    """List the training and the test images of a folder with one sub-folder per class.

    Where it has sub-folders `train` and `test` (or `val`), each of them has one sub-folder per
    class. Otherwise a fifth of each class, at least one image, is held out as test: which ones
    depends on the seed and the names of the files.

    Args:
        folder: the folder.
        seed: decides which images are held out.
        classes: the names of the classes to list, in order; by default all of them, sorted.
        keep: images that are not held out, as CLASS/FILE.
        test_keys: the test images, as CLASS/FILE, of a folder without `train`.
    """
    folder = folder.expanduser()
    with _readable(folder):
        test_folder = find_test_folder(folder)
        if test_folder:
            train = _list_classes(folder / "train")
            test = _list_classes(test_folder)
            _check_same_classes(train, test, folder / "train", test_folder)
        elif test_keys is not None:
            train, test = _take_out(_list_classes(folder), test_keys, folder)
        else:
            listing = _select_classes(_list_classes(folder), classes, folder)
            train, test = _hold_out(listing, seed, keep)
        train, test = (_select_classes(part, classes, folder) for part in (train, test))
        _check_overlap(train, test)
        return train, test


def find_test_folder(folder: Path) -> Path | None:
    """Return `test`, or else `val`, of a folder that has `train` beside it, or None."""
    parts = [folder / name for name in TEST_FOLDERS if (folder / name).is_dir()]
    return parts[0] if parts and (folder / "train").is_dir() else None


def _select_classes(listing: Listing, classes: Sequence[str] | None, folder: Path) -> Listing:
    """Return the images of these classes; None stands for all of them."""
    if classes is None:
        return listing
    for name in classes:
        if name not in listing.class_names:
            raise UnknownName(f"class in {folder}", name, listing.class_names)
    return listing.select_classes(classes)


def _take_out(
    listing: Listing, test_keys: Collection[str], folder: Path
) -> tuple[Listing, Listing]:
    """Split into train and test by the names of the test images."""
    path_of = dict(zip(listing.keys(), listing.paths, strict=True))
    for key in test_keys:
        if key not in path_of:
            raise MissingData(
                f"test image {key} is not among the {len(path_of):,} images in {folder}: "
                "add it, or leave it out"
            )
    test = {path_of[key] for key in test_keys}
    return listing.subset(set(listing.paths) - test), listing.subset(test)


def _check_not_split(folder: Path) -> None:
    """Refuse folders of training and of test images where folders of classes are needed."""
    test = find_test_folder(folder)
    parts = [] if test is None else [folder / "train", test]
    if parts and not any(find_images(part) for part in parts):
        raise DataError(
            f"{folder} is split into train and {parts[1].name}, and these are no classes: "
            f"give {parts[0]} to train with, and {parts[1]} to evaluate with"
        )


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Raise MissingData or DataError where a folder, or its content, cannot be listed."""
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "is not there"
        raise MissingData(
            f"{folder} {problem}: give a folder that has one sub-folder a class, "
            f"with that class's images in it"
        )
    try:
        yield
    except OSError as error:
        raise unreadable(error, folder) from error


def unreadable(error: OSError, folder: Path) -> DataError:
    """Return the error of a folder, or of what is in it, that the system does not let be read."""
    return DataError(
        f"{printable(error.filename or folder)} cannot be read ({error.strerror or error}): "
        "check who may read it"
    )


def _check_same_classes(
    train: Listing, test: Listing, train_folder: Path, test_folder: Path
) -> None:
    train_names = set(train.class_names)
    test_names = set(test.class_names)
    for part, absent in (
        (test_folder, train_names - test_names),
        (train_folder, test_names - train_names),
    ):
        if absent:
            raise DataError(
                f"{part} lacks the classes {', '.join(sorted(absent))}: "
                f"train and {test_folder.name} must have the same sub-folders"
            )


def _list_classes(
    folder: Path, min_classes: int = 2, recursive: bool = False, skip_empty: bool = False
) -> Listing:
    class_folders = sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if len(class_folders) < min_classes:
        needed = "class is" if min_classes == 1 else "classes are"
        raise DataError(
            f"{folder} has {len(class_folders)} sub-folders, and at least {min_classes} {needed} "
            f"needed: make one sub-folder a class, and put that class's images into it"
        )
    paths: list[Path] = []
    labels: list[int] = []
    names: list[str] = []
    others: list[Path] = []
    empty: list[Path] = []
    for class_folder in class_folders:
        files = list(map(Path, walk_files(str(class_folder), recursive)))
        images = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
        if not images:
            empty.append(class_folder)
            continue
        paths += images
        labels += [len(names)] * len(images)
        names.append(class_folder.name)
        others += [path for path in files if is_of_other_kind(path)]
    if empty and (not skip_empty or not names):
        raise DataError(
            f"class folder {empty[0]} has no images ({_content(empty[0])}): put images straight "
            f"into it ({', '.join(sorted(IMAGE_SUFFIXES))}), or remove it"
        )
    return Listing(
        tuple(paths),
        tuple(labels),
        tuple(names),
        tuple(others),
        tuple((path.name, _content(path)) for path in empty),
    )


def _content(class_folder: Path) -> str:
    """Describe what a folder without images holds."""
    visible = [path for path in class_folder.iterdir() if not path.name.startswith(".")]
    content = "only folders" if visible else "nothing"
    if kinds := sorted({path.suffix.lower() or path.name for path in visible if path.is_file()}):
        content = f"only files of other kinds: {', '.join(kinds[:MAX_NAMED])}"
    return content


def _hold_out(listing: Listing, seed: int, keep: Collection[str] = ()) -> tuple[Listing, Listing]:
    """Split into train and test.

    An image's rank in its class is a hash of names, so adding other images does not change it.
    """
    by_class: dict[int, list[Path]] = {}
    for path, label in zip(listing.paths, listing.labels, strict=True):
        by_class.setdefault(label, []).append(path)
    kept = set(keep)
    test: set[Path] = set()
    for label, paths in by_class.items():
        name = listing.class_names[label]
        if len(paths) < 2:
            raise DataError(
                f"class '{name}' has one image, {paths[0]}, and needs at least 2, one to train "
                f"and one to test with: add images, or remove the class's folder"
            )
        free = [path for path in paths if f"{name}/{path.name}" not in kept]
        if not free:
            raise DataError(
                f"all images of class '{name}' are named to train with, and none is left to test "
                "with: name fewer, or add images"
            )
        shuffled = sorted(
            free,
            key=lambda path: hashlib.sha256(os.fsencode(f"{seed}/{name}/{path.name}")).digest(),
        )
        test.update(shuffled[: max(1, len(paths) // 5)])
    return listing.subset(set(listing.paths) - test), listing.subset(test)


def _check_overlap(train: Listing, test: Listing) -> None:
    """Refuse an image that is in two classes, or in train and test.

    Only files of equal size are compared, by their content.
    """
    files = [
        (path, listing.class_names[label], part)
        for listing, part in ((train, "train"), (test, "test"))
        for path, label in zip(listing.paths, listing.labels, strict=True)
    ]
    by_size: dict[int, list[tuple[Path, str, str]]] = {}
    for file in files:
        by_size.setdefault(file[0].stat().st_size, []).append(file)
    candidates = [file for group in by_size.values() if len(group) > 1 for file in group]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        hashes = list(pool.map(lambda file: file_hash(file[0]), candidates))
    first_with_hash: dict[str, tuple[Path, str, str]] = {}
    for file, content_hash in zip(candidates, hashes, strict=True):
        path, class_name, part = file
        other, other_class, other_part = first_with_hash.setdefault(content_hash, file)
        if (class_name, part) != (other_class, other_part):
            places = "two classes" if class_name != other_class else "train and test"
            raise DataError(
                f"overlapping: {other} and {path} are the same image in {places}: "
                f"remove one of them"
            )
