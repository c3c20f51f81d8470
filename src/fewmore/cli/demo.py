"""Train the model that `fewmore serve --demo` serves: drawn characters."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fewmore.classifier.embedding import center_square, image_hash
from fewmore.classifier.estimator import IncrementalClassifier
from fewmore.classifier.model_file import locked
from fewmore.cli.terminal import stages
from fewmore.data import glyphs
from fewmore.data.benchmarks import BENCHMARKS
from fewmore.data.images import ImageSet
from fewmore.data.paths import data_root
from fewmore.research.recipes import quick
from fewmore.service.thumbnails import Thumbnails, thumbnail_folder

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from fewmore.methods.base import Recipe

FILE = "glyphs-demo-3.fewmore"  # count up when the training or its data change
IMAGES = 100  # of a class
EPOCHS = 10
THUMBNAILS = 3  # of a class
TRAINING_SECONDS = 600  # to wait for another process that trains the same model

# Stronger than the benchmark's: people draw with more variation than printers.
DIFFICULTY = replace(
    glyphs.DIFFICULTY, rotation=15.0, stretch=0.25, largest=0.9, stroke=4, noise=0.05
)


def demo_model(out: "Console", thumbnails: bool) -> Path:
    """Return the path of the model in the data folder, and train it the first time."""
    path = data_root() / "demo" / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with locked(path, timeout=TRAINING_SECONDS):
            if not path.exists():  # else another process has just trained it
                _train(out, path, thumbnails)
    return path


def _train(out: "Console", path: Path, thumbnails: bool) -> None:
    out.print("the demo's model is trained once, which takes a few minutes:")
    with stages(out) as progress:

        def report(done: int, total: int) -> None:
            progress("drawing characters", done, total)

        drawn = glyphs.render("train", IMAGES, on_progress=report, difficulty=DIFFICULTY)
        names = glyphs.CLASSES[: BENCHMARKS["glyphs"].base]
        images = {name: _images_of(drawn, label) for label, name in enumerate(names)}
        classifier = IncrementalClassifier(weights=None, recipe=_recipe()).fit(
            images, progress=progress
        )
    if thumbnails:
        folder = Thumbnails(thumbnail_folder(path))
        transform = classifier.embedder.transform
        for of_class in images.values():
            squares = [center_square(image, "", transform) for image in of_class[:THUMBNAILS]]
            folder.add((image_hash(square), square) for square in squares)
            folder.write()
    classifier.save(path)


def _recipe() -> "Recipe":
    recipe = quick(BENCHMARKS["glyphs"], "cec")
    return replace(recipe, pretrain=replace(recipe.pretrain, epochs=EPOCHS))


def _images_of(images: ImageSet, label: int) -> "list[Tensor]":
    """Return a class's images; they are ordered by class."""
    return [images.image(label * IMAGES + number) for number in range(IMAGES)]
