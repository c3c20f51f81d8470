"""Provide the model that `fewmore serve --demo` serves: A to Z, 0 to 9 and some more characters.

It comes with the package; benchmarks/demo_model.py has trained it. What people teach it goes into a
copy in the data folder.
"""

import shutil
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fewmore.classifier.embedding import image_hash
from fewmore.classifier.model_file import locked
from fewmore.data.paths import data_root
from fewmore.service.thumbnails import Thumbnails, thumbnail_folder

FOLDER = "demo-4"  # count up when the model changes
NAME = "letters and digits"  # the page shows it
SIDE = 24  # pixels of the drawings in demo.png


def demo_model(thumbnails: bool) -> Path:
    """Return the path of the copy in the data folder, and make it the first time."""
    path = data_root() / FOLDER / f"{NAME}.fewmore"
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        if not path.exists():  # else another process has just made it
            if thumbnails:
                _write_thumbnails(path)
            unfinished = path.with_name(f".{path.name}")
            with as_file(files("fewmore.cli") / "demo.fewmore") as model:
                shutil.copyfile(model, unfinished)
            unfinished.replace(path)
    return path


def _write_thumbnails(path: Path) -> None:
    """Store the drawings that the model was trained on and that come with it."""
    with as_file(files("fewmore.cli") / "demo.png") as file, Image.open(file) as sheet:
        pixels = torch.from_numpy(np.array(sheet.convert("RGB"))).permute(2, 0, 1)
    rows, columns = (side // SIDE for side in pixels.shape[1:])
    places = [(row * SIDE, column * SIDE) for row in range(rows) for column in range(columns)]
    tiles = [pixels[:, y : y + SIDE, x : x + SIDE].contiguous() for y, x in places]
    folder = Thumbnails(thumbnail_folder(path))
    folder.add((image_hash(tile), tile) for tile in tiles)
    folder.write()
