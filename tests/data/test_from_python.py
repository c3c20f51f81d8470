"""Build tasks from arrays, lists of images and Hugging Face datasets, and run a method on them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from datasets import Image as ImageColumn
from PIL import Image

from fewmore.data.benchmarks import Benchmark, StoredSize, Task
from fewmore.data.from_python import (
    Sessions,
    dataset_images,
    image_set,
    task_from_dataset,
    task_from_images,
)
from fewmore.data.images import ImageSet
from fewmore.data.plans import SessionPlan
from fewmore.data.transform import Transform
from fewmore.errors import DataError, ImageError, MissingData, SplitError, UnknownName
from fewmore.methods import find
from fewmore.research import protocol
from fewmore.training.runtime import Runtime

Pair = tuple[Any, Any]
BIRDS = ("wren", "jay", "robin", "owl", "kite", "crow")


@pytest.fixture
def parts(tiny_images: Callable[..., ImageSet]) -> tuple[Pair, Pair]:
    """Return training and test images of six classes as arrays, and their labels as names."""

    def part(per_class: int, seed: int) -> Pair:
        images = tiny_images(6, per_class, seed=seed)
        names = [BIRDS[label] for label in images.labels.tolist()]
        return images.storage.numpy(), names

    return part(8, 0), part(4, 1)


def session_names(task: Task) -> list[list[str]]:
    sessions = task.split.sessions
    return [[task.train.class_names[label] for label in session.classes] for session in sessions]


def run_method(task: Task, small_recipe: Callable[..., Any]) -> float:
    """Return the accuracy of decoupled-cosine after the last session."""
    runtime = Runtime()
    recipe = small_recipe("quick", task.benchmark, "decoupled-cosine")
    method = find("decoupled-cosine").build(recipe, runtime, seed=0)
    outcome = protocol.run(method, task, runtime)
    assert outcome.sessions == len(task.split.sessions)
    return float(outcome.summary().accuracy[-1])


def test_a_task_of_arrays_runs(parts: tuple[Pair, Pair], small_recipe: Callable[..., Any]) -> None:
    plan = [["wren", "jay", "robin"], SessionPlan(("owl",), 2), SessionPlan(("kite", "crow"), 5)]
    task = task_from_images("birds", *parts, Sessions(plan))
    assert session_names(task) == [["wren", "jay", "robin"], ["owl"], ["kite", "crow"]]
    assert [len(session.indices) for session in task.split.sessions] == [24, 2, 10]
    benchmark = task.benchmark
    assert (benchmark.name, benchmark.base, benchmark.way, benchmark.shot) == ("birds", 3, 2, 5)
    assert (benchmark.transform.size, benchmark.transform.crop) == (8, "pad")
    assert task.train.class_names == tuple(sorted(BIRDS))
    assert run_method(task, small_recipe) > 50


def test_sessions_by_numbers(parts: tuple[Pair, Pair]) -> None:
    task = task_from_images("birds", *parts)
    assert [len(session.classes) for session in task.split.sessions] == [4, 2]
    task = task_from_images("birds", *parts, Sessions(base=2, way=2, shot=3, draw=4, class_order=1))
    assert [len(session.indices) for session in task.split.sessions] == [16, 6, 6]
    assert task.split.name == "draw 4: 2 base, 2-way 3-shot, class order 1"
    listed = Sessions([BIRDS[:4], BIRDS[4:]], shot=3, draw=2)
    task = task_from_images("birds", *parts, listed)
    assert [len(session.indices) for session in task.split.sessions] == [32, 6]
    assert task.split.name.startswith("draw 2: 4 base, then 2, sessions ")
    with pytest.raises(DataError, match="a plan fixes the sessions: leave out base, way"):
        task_from_images("birds", *parts, Sessions([BIRDS], base=3))
    with pytest.raises(DataError, match="session 1 is the text 'owl'"):
        task_from_images("birds", *parts, Sessions([BIRDS[:2], "owl"]))
    with pytest.raises(UnknownName, match="no class is named 'hen'"):
        task_from_images("birds", *parts, Sessions([["hen"]]))
    with pytest.raises(SplitError, match="class 'owl' has 8 training images, and 9 are needed"):
        task_from_images("birds", *parts, Sessions([BIRDS[:2], ["owl"]], shot=9))


def test_images_of_every_form(parts: tuple[Pair, Pair], tmp_path: Path) -> None:
    """Check that arrays, tensors, Pillow images and files give the same pixels."""
    (pixels, labels), _ = parts
    last = pixels.transpose(0, 2, 3, 1)
    paths = [tmp_path / f"{index}.png" for index in range(len(pixels))]
    for path, image in zip(paths, last, strict=True):
        Image.fromarray(image).save(path)
    names = sorted(BIRDS)
    expected = image_set(pixels, labels, names)
    assert expected.labels.tolist() == [names.index(label) for label in labels]
    forms = {
        "channels last": last,
        "tensor": torch.from_numpy(pixels),
        "list of arrays": list(last),
        "Pillow images": [Image.fromarray(image) for image in last],
        "paths": paths,
        "texts": list(map(str, paths)),
        "floats": pixels.astype(np.float32) / 255,
    }
    for form, images in forms.items():
        made = image_set(images, expected.labels, names)
        assert torch.equal(made.storage, expected.storage), form
        assert torch.equal(made.labels, expected.labels), form
    small = image_set(last, labels, names, StoredSize(square=4))
    assert small.size == (4, 4)
    ragged = image_set([last[0], np.zeros((9, 5, 3), np.uint8)], labels[:2], names)
    assert ragged.image(1).shape == (3, 9, 5)
    assert image_set(last, labels, names, StoredSize(short_side=16)).size == (8, 8)
    large = np.zeros((2, 40, 60, 3), np.uint8)
    assert image_set(large, [0, 1], names, StoredSize(short_side=20)).size == (20, 30)


def test_numbers_as_labels(parts: tuple[Pair, Pair]) -> None:
    (pixels, labels), (test_pixels, test_labels) = parts
    numbers = [10 * BIRDS.index(label) for label in labels]
    test_numbers = np.array([10 * BIRDS.index(label) for label in test_labels])
    task = task_from_images("birds", (pixels, numbers), (test_pixels, test_numbers))
    assert task.train.class_names == ("0", "10", "20", "30", "40", "50"), "in the order of numbers"
    positions = [number // 10 for number in numbers]
    named = task_from_images(
        "birds", (pixels, positions), (test_pixels, test_numbers // 10), class_names=BIRDS
    )
    assert named.train.class_names == BIRDS
    assert named.train.labels.tolist() == positions
    for listed in (list(np.array(positions)), list(torch.tensor(positions))):
        assert image_set(pixels, listed, BIRDS).labels.tolist() == positions
    assert image_set(pixels, list(np.array(labels)), BIRDS).labels.tolist() == positions


def test_photos_are_stored_as_large_as_the_transform_needs(photos: Callable[..., Path]) -> None:
    folder = photos("birds", {"wren": 4, "jay": 4}, size=120)
    paths = sorted(folder.rglob("*.png"))
    labels = [path.parent.name for path in paths]
    train, test = slice(0, None, 2), slice(1, None, 2)
    pairs = ((paths[train], labels[train]), (paths[test], labels[test]))
    task = task_from_images("birds", *pairs)
    assert (task.benchmark.transform.size, task.train.image(0).shape[1]) == (84, 92)
    transform = Transform(48, (0.5,) * 3, (0.5,) * 3, "resized", resize=64)
    task = task_from_images("birds", *pairs, transform=transform, backbone="resnet8")
    assert task.train.image(0).shape[1] == 64
    assert (task.benchmark.backbone, task.benchmark.transform) == ("resnet8", transform)
    with pytest.raises(DataError, match=r"00\.png is among the training and the test images"):
        task_from_images("birds", pairs[0], (paths[:3], labels[:3]))
    with pytest.raises(MissingData, match=r"nowhere\.png"):
        task_from_images("birds", pairs[0], ([folder / "nowhere.png"], ["jay"]))


def test_wrong_images_and_labels(parts: tuple[Pair, Pair]) -> None:
    (pixels, labels), test = parts
    train = (pixels, labels)
    with pytest.raises(DataError, match="birds, test image 1 has the label 'hen', which is not"):
        task_from_images("birds", train, (test[0], [test[1][0], "hen", *test[1][2:]]))
    with pytest.raises(DataError, match="48 images have 47 labels"):
        task_from_images("birds", (pixels, labels[:-1]), test)
    with pytest.raises(DataError, match="class 'crow' has no test image"):
        task_from_images("birds", train, (test[0][:4], ["jay", "wren", "robin", "owl"]))
    with pytest.raises(DataError, match="there is no training image"):
        task_from_images("birds", ([], []), test)
    with pytest.raises(DataError, match="images are of type int"):
        task_from_images("birds", (3, []), test)
    with pytest.raises(ImageError, match="image 1 is of type NoneType"):
        image_set([pixels[0], None], ["jay", "jay"], BIRDS)


# Hugging Face datasets


def make_rows(pair: Pair, image: str = "image", label: str = "label") -> Dataset:
    pixels, labels = pair
    images = [Image.fromarray(array) for array in pixels.transpose(0, 2, 3, 1)]
    kinds = Features({image: ImageColumn(), label: ClassLabel(names=list(BIRDS))})
    return Dataset.from_dict({image: images, label: labels}, kinds)


def test_a_task_of_a_dataset_runs(
    parts: tuple[Pair, Pair], small_recipe: Callable[..., Any]
) -> None:
    dataset = DatasetDict({"train": make_rows(parts[0]), "test": make_rows(parts[1])})
    task = task_from_dataset("birds", dataset, Sessions([BIRDS[:4], BIRDS[4:]], shot=3))
    assert task.train.class_names == BIRDS, "as the dataset orders them"
    assert torch.equal(task.train.storage, torch.from_numpy(parts[0][0]))
    assert [BIRDS[label] for label in task.test.labels] == list(parts[1][1])
    assert run_method(task, small_recipe) > 50
    transform = Transform(4, (0.5,) * 3, (0.5,) * 3, pad=1)
    assert task_from_dataset("birds", dataset, transform=transform).train.size == (4, 4)


def test_datasets_with_other_splits_and_columns(parts: tuple[Pair, Pair]) -> None:
    rows = [make_rows(part, "img", "fine_label") for part in parts]
    dataset = {"train": rows[0], "validation": rows[1]}
    images = dataset_images(dataset, "img", "fine_label")
    assert (len(images.train), len(images.test)) == (48, 24)
    texts = {
        part: each.cast_column("fine_label", Value("string")) for part, each in dataset.items()
    }
    named = dataset_images(texts, "img", "fine_label")
    assert named.train.class_names == tuple(sorted(named.train.class_names))
    assert len(named.train.class_names) == 6


def test_wrong_datasets(parts: tuple[Pair, Pair]) -> None:
    rows = make_rows(parts[0])
    with pytest.raises(DataError, match="must be a DatasetDict with the splits"):
        task_from_dataset("birds", rows)
    with pytest.raises(DataError, match="has the splits train, extra, and none to test with"):
        task_from_dataset("birds", DatasetDict({"train": rows, "extra": rows}))
    with pytest.raises(DataError, match=r"has the columns image, label, and no 'img'"):
        task_from_dataset("birds", DatasetDict({"train": rows, "test": rows}), image="img")
    empty = DatasetDict({"train": rows.select([]), "test": rows})
    with pytest.raises(DataError, match="there is no training image"):
        task_from_dataset("birds", empty)
    hidden = rows.cast_column("label", Value("int64")).map(lambda row: {"label": -1})
    hidden = hidden.cast_column("label", ClassLabel(names=list(BIRDS)))
    with pytest.raises(DataError, match="row of 'test' 0 has the label -1"):
        task_from_dataset("birds", DatasetDict({"train": rows, "test": hidden}))


def test_the_core_does_not_import_datasets() -> None:
    program = (
        "import sys, fewmore.data.from_python, fewmore.research.runner; "
        "assert 'datasets' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_benchmark_of_ones_own_keeps_its_description(parts: tuple[Pair, Pair]) -> None:
    task = task_from_images("birds", *parts)
    assert isinstance(task.benchmark, Benchmark)
    assert task.benchmark.describe_sessions() == "4 base classes, then 1 session of 2-way 5-shot"


def test_tasks_of_other_images_are_told_apart(parts: tuple[Pair, Pair]) -> None:
    (images, labels), test = parts
    first = task_from_images("birds", *parts).benchmark.source or {}
    assert first["file"] == "birds"
    assert task_from_images("birds", *parts, Sessions(base=2)).benchmark.source == first
    other = task_from_images("birds", (255 - images, labels), test).benchmark.source or {}
    assert other["sha256"] != first["sha256"]


def test_test_images_are_no_training_images(parts: tuple[Pair, Pair]) -> None:
    (images, labels), (test_images, test_labels) = parts
    sentence = r"of the 24 test images of birds are training images too: leave them out"
    with pytest.raises(DataError, match=rf"^24 {sentence}"):
        task_from_images("birds", (images, labels), (images[::2], labels[::2]))
    some = test_images.copy()
    some[:2] = images[:2]
    with pytest.raises(DataError, match=rf"^2 {sentence}"):
        task_from_images("birds", (images, labels), (some, test_labels))
    some[0] = test_images[0]
    one = task_from_images("birds", (images, labels), (some, test_labels))
    assert len(one.test) == 24, "a single copy may be one of the data set's own"
