"""Which forms of images `fit`, `learn` and `predict` take, and what they say of others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewmore import IncrementalClassifier
from fewmore.classifier.inputs import collect_images
from fewmore.data.manifests import list_manifest
from fewmore.errors import DataError


def test_no_classes_are_a_sentence(weights: Path) -> None:
    with pytest.raises(DataError, match="no classes were given"):
        IncrementalClassifier("resnet8", weights).fit({})


def test_no_images_are_a_sentence(clf: IncrementalClassifier) -> None:
    for nothing in (None, 3):
        with pytest.raises(DataError, match=f"given as {type(nothing).__name__}: give a path"):
            clf.predict(nothing)


def test_hugging_face_datasets(weights: Path) -> None:
    datasets = pytest.importorskip("datasets")
    images = [Image.fromarray(np.full((9, 9, 3), 20 * i, np.uint8)) for i in range(12)]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["jay", "robin", "wren"])}
    )
    labels = [2, 0] * 6
    dataset = datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)
    collected = collect_images(dataset)
    assert collected.names == ("jay", "wren"), "classes without images are left out"
    assert collected.labels == (0,) * 6 + (1,) * 6
    assert np.asarray(collected.images[0])[0, 0, 0] == 20, "ordered by class"
    assert collected.files() == []
    classifier = IncrementalClassifier("resnet8", weights).fit(dataset)
    assert classifier.info()["classes"] == {"jay": 6, "wren": 6}
    named = dataset.cast_column("label", datasets.Value("int64"))
    assert collect_images(named).names == ("0", "2")
    with pytest.raises(DataError, match=r"has the columns photo, label, and no 'image'"):
        collect_images(dataset.rename_column("image", "photo"))
    for missing in (-1, None):  # as in a split for testing
        rows = {"image": images, "label": [missing, missing, *labels[2:]]}
        with pytest.raises(DataError, match="2 rows of the dataset have no label: filter them out"):
            collect_images(datasets.Dataset.from_dict(rows, features=features))
    with pytest.raises(DataError, match="the dataset has no rows"):
        IncrementalClassifier("resnet8", weights).fit(dataset.select([]))


def test_a_manifest_in_python(photos: Callable[..., Path], tmp_path: Path) -> None:
    photos("photos", {"robin": 1, "wren": 1})
    lines = ["file_name,class", "photos/wren/00.png,wren", f"{tmp_path}/photos/robin/00.png,robin"]
    (tmp_path / "birds.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    collected = collect_images(tmp_path / "birds.csv")
    assert collected.names == ("robin", "wren")
    assert list(collected.images) == [
        str(tmp_path / "photos" / name / "00.png") for name in ("robin", "wren")
    ]
    assert collected.files() == [0, 1]
    spaced = [", ".join(line.split(",")) for line in lines]
    (tmp_path / "spaced.csv").write_text(" " + "\n".join(spaced))
    assert list(collect_images(tmp_path / "spaced.csv").images) == list(collected.images)
    assert collect_images(tmp_path / "spaced.csv").names == collected.names


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "path,label\r\none\u2028jay.png,jay\r\nb.png,wren\r\n"),
        (
            "a.jsonl",
            '{"path": "one\u2028jay.png", "label": "jay"}\n{"path": "b.png", "label": "wren"}',
        ),
    ],
)
def test_a_line_of_a_list_ends_where_csv_and_json_say(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode())
    listed = list_manifest(path)
    assert listed.class_names == ("jay", "wren")
    assert [each.name for each in listed.paths] == ["one\u2028jay.png", "b.png"]
