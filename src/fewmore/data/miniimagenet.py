"""List the images of miniImageNet.

Images are in DATA/miniimagenet/images: the published ones of 84 × 84 pixels, or the larger ones
that these were made of. Of the new classes, the images that the official session lists name are
enough.
"""

import csv
from pathlib import Path

from fewmore.data.folders import Listing
from fewmore.data.text import read_lines
from fewmore.errors import DataError, MissingData

Table = list[tuple[str, str]]  # file and class of each image


def list_images(root: Path, base: int) -> tuple[Listing, Listing, list[Path]]:
    """List training images, test images, and the training images that are missing.

    Args:
        root: the data root.
        base: the number of base classes, whose images must all be there.
    """
    folder = root / "miniimagenet" / "images"
    if not folder.is_dir():
        raise MissingData(
            f"{folder} is not there: `fewmore data get miniimagenet` says where to get the images; "
            f"if you have them, give the folder that miniimagenet lies in with --data-root"
        )
    train = _read_table(root, "train")
    test = _read_table(root, "test")
    class_names = tuple(dict.fromkeys(class_name for _, class_name in train))
    _check_tables(train, test)
    present = {path.name for path in folder.iterdir()}
    label_of = {name: label for label, name in enumerate(class_names)}

    def listing(table: Table) -> Listing:
        rows = [(folder / file, label_of[name]) for file, name in table if file in present]
        return Listing(
            tuple(path for path, _ in rows), tuple(label for _, label in rows), class_names
        )

    missing = [folder / file for file, _ in (*train, *test) if file not in present]
    required = {file for file, _ in test}
    required |= {file for file, name in train if label_of[name] < base}
    for path in missing:
        if path.name in required:
            raise MissingData(
                f"{path} is not there, and {len(missing):,} images are missing in all: "
                f"put the images of miniImageNet into {folder}"
            )
    return listing(train), listing(test), missing


def _check_tables(train: Table, test: Table) -> None:
    """Refuse an image that is in both tables, and a test class without training images."""
    if repeated := {file for file, _ in train} & {file for file, _ in test}:
        raise DataError(
            f"overlapping: {min(repeated)} is in train.csv and in test.csv of miniimagenet: "
            f"remove it from one of them"
        )
    if unknown := {name for _, name in test} - {name for _, name in train}:
        raise DataError(
            f"test.csv of miniimagenet has the class {min(unknown)}, which train.csv does not "
            f"have: fetch both files anew"
        )


def _read_table(root: Path, part: str) -> Table:
    """Read train.csv or test.csv, which may lie in one of three folders."""
    folders = [
        root / "miniimagenet" / "split",
        root / "miniimagenet",
        root / "index_list" / "mini_imagenet",
    ]
    paths = [folder / f"{part}.csv" for folder in folders]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        raise MissingData(
            f"{paths[0]} is not there: run `fewmore data get miniimagenet`, "
            f"which fetches train.csv and test.csv"
        )
    rows = list(csv.reader(read_lines(path)))
    for number, row in enumerate(rows, 1):
        if len(row) != 2 or "/" in row[0]:
            raise DataError(
                f"{path}, line {number}, is not 'filename,label': "
                f"remove it and run `fewmore data get miniimagenet`"
            )
    return [(file, name) for file, name in rows[1:]]
