"""List the images of Caltech-UCSD Birds-200-2011, in DATA/CUB_200_2011."""

from pathlib import Path

from fewmore.data.folders import Listing
from fewmore.data.text import read_lines
from fewmore.errors import DataError, MissingData

FOLDER = "CUB_200_2011"
FETCH_AGAIN = "remove the folder and run `fewmore data get cub200`"


def list_images(root: Path) -> tuple[Listing, Listing]:
    """List the training and the test images."""
    folder = root / FOLDER
    paths = _read_numbered(folder / "images.txt")
    labels = _read_numbered(folder / "image_class_labels.txt")
    is_train = _read_numbered(folder / "train_test_split.txt")
    incomplete = (paths.keys() ^ labels.keys()) | (paths.keys() ^ is_train.keys())
    if incomplete:
        raise DataError(
            f"image {min(incomplete)} is not in all of images.txt, image_class_labels.txt and "
            f"train_test_split.txt of {folder}: {FETCH_AGAIN}"
        )
    name_of = {int(labels[number]): path.split("/")[0] for number, path in paths.items()}
    class_names = tuple(name_of[label] for label in sorted(name_of))
    label_of = {name: label for label, name in enumerate(class_names)}

    def listing(flag: str) -> Listing:
        chosen = [path for number, path in paths.items() if is_train[number] == flag]
        return Listing(
            tuple(folder / "images" / path for path in chosen),
            tuple(label_of[path.split("/")[0]] for path in chosen),
            class_names,
        )

    return listing("1"), listing("0")


def _read_numbered(path: Path) -> dict[int, str]:
    """Read a file of lines `NUMBER VALUE`."""
    if not path.exists():
        raise MissingData(
            f"{path} is not there: run `fewmore data get cub200`, "
            f"or give the folder that {FOLDER} lies in with --data-root"
        )
    values: dict[int, str] = {}
    for line_number, line in enumerate(read_lines(path), 1):
        words = line.split()
        if len(words) != 2 or not words[0].isdecimal():
            raise DataError(
                f"{path}, line {line_number}, is not a number and a value: {FETCH_AGAIN}"
            )
        values[int(words[0])] = words[1]
    return values
