"""Check how folders of class folders are listed, split and refused."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewmore.data.folders import list_train_test, listing_hash
from fewmore.errors import DataError, MissingData


def save(path: Path, seed: int = 0) -> Path:
    """Write a small image of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def write_classes(folder: Path, counts: dict[str, int], start: int = 0) -> Path:
    """Write this many images of each class, all different."""
    for number, (name, count) in enumerate(counts.items()):
        for index in range(count):
            save(folder / name / f"{index}.png", start + 1000 * number + index)
    return folder


def test_a_fifth_of_each_class_is_held_out(tmp_path: Path) -> None:
    train, test = list_train_test(write_classes(tmp_path, {"cow": 10, "ant": 4, "bee": 26}))
    assert train.class_names == test.class_names == ("ant", "bee", "cow")
    assert train.class_counts() == (3, 21, 8)
    assert test.class_counts() == (1, 5, 2)
    assert not set(train.paths) & set(test.paths)
    assert all(
        path.parent.name == train.class_names[label]
        for path, label in zip(train.paths, train.labels, strict=True)
    )
    assert train.keys()[0] == f"ant/{train.paths[0].name}"


def test_the_held_out_images_depend_on_the_seed_and_not_on_other_classes(tmp_path: Path) -> None:
    folder = write_classes(tmp_path, {"ant": 25, "bee": 25})
    before = list_train_test(folder)[1]
    assert list_train_test(folder)[1] == before
    assert list_train_test(folder, seed=1)[1].paths != before.paths
    write_classes(folder, {"auk": 25}, start=5000)
    assert [path for path in list_train_test(folder)[1].paths if path.parent.name != "auk"] == list(
        before.paths
    )


def test_the_hash_of_images_changes_with_their_names_sizes_and_classes(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "one", {"ant": 3, "bee": 3})

    def hashed(of: Path = folder) -> str:
        return listing_hash(*list_train_test(of))

    first = hashed()
    assert hashed(write_classes(tmp_path / "two", {"ant": 3, "bee": 3})) == first, "a copy"
    image = folder / "ant" / "0.png"
    image.write_bytes(image.read_bytes() + b"more")
    assert hashed() != first
    write_classes(folder, {"ant": 3, "bee": 3})
    assert hashed() == first
    image.rename(folder / "ant" / "9.png")
    assert hashed() != first
    (folder / "ant" / "9.png").unlink()
    assert hashed() != first


def test_train_and_test_folders_are_used_as_such(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"ant": 3, "bee": 2})
    write_classes(tmp_path / "test", {"ant": 1, "bee": 2}, start=5000)
    train, test = list_train_test(tmp_path)
    assert (train.class_counts(), test.class_counts()) == ((3, 2), (1, 2))


def test_train_and_test_must_have_the_same_classes(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"ant": 3, "bee": 2, "cow": 2, "dog": 2})
    write_classes(tmp_path / "test", {"ant": 1, "bee": 2}, start=5000)
    with pytest.raises(
        DataError,
        match=r"test lacks the classes cow, dog: train and test must have the same sub-folders",
    ):
        list_train_test(tmp_path)


def test_other_files_are_ignored(tmp_path: Path) -> None:
    folder = write_classes(tmp_path, {"ant": 3, "bee": 3})
    for name in (".hidden/a.png", "ant/.a.png", "ant/notes.txt", "ant/Thumbs.db", "readme.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("nothing to see")
    save(folder / "ant" / "LOUD.PNG", 77)
    train, test = list_train_test(folder)
    assert train.class_names == ("ant", "bee")
    assert len(train) + len(test) == 7


@pytest.mark.parametrize(
    ("inside", "content"),
    [
        (None, "nothing"),
        ("photo.psd", "only files of other kinds: .psd"),
        ("deeper/", "only folders"),
    ],
)
def test_an_empty_class_is_named_with_a_remedy(
    tmp_path: Path, inside: str | None, content: str
) -> None:
    folder = write_classes(tmp_path, {"ant": 3, "bee": 3})
    (folder / "cow").mkdir()
    if inside and inside.endswith("/"):
        (folder / "cow" / inside).mkdir()
    elif inside:
        (folder / "cow" / inside).touch()
    with pytest.raises(
        DataError,
        match=rf"cow has no images \({content}\): put images straight into it .* or remove it",
    ):
        list_train_test(folder)


def test_fewer_than_two_classes(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match="has 1 sub-folders, and at least 2 classes are needed: make one sub-folder a class",
    ):
        list_train_test(write_classes(tmp_path, {"ant": 3}))


def test_one_image_cannot_be_both_train_and_test(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"class 'bee' has one image, .*0\.png, and needs at least 2"
    ):
        list_train_test(write_classes(tmp_path, {"ant": 3, "bee": 1}))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="is not there: give a folder"):
        list_train_test(tmp_path / "nowhere")
    with pytest.raises(MissingData, match="is a file, not a folder"):
        list_train_test(save(tmp_path / "a.png"))


def test_the_same_image_in_two_classes_is_overlapping(tmp_path: Path) -> None:
    folder = write_classes(tmp_path, {"ant": 3, "bee": 3})
    (folder / "bee" / "copy.png").write_bytes((folder / "ant" / "1.png").read_bytes())
    with pytest.raises(
        DataError, match=r"overlapping: .* are the same image in two classes: remove one of them"
    ) as caught:
        list_train_test(folder)
    assert str(folder / "ant" / "1.png") in str(caught.value)
    assert str(folder / "bee" / "copy.png") in str(caught.value)


def test_the_same_image_in_train_and_test_is_overlapping(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"ant": 3, "bee": 2})
    write_classes(tmp_path / "test", {"ant": 1, "bee": 2}, start=5000)
    (tmp_path / "test" / "ant" / "copy.png").write_bytes(
        (tmp_path / "train" / "ant" / "1.png").read_bytes()
    )
    with pytest.raises(DataError, match=r"overlapping: .* are the same image in train and test"):
        list_train_test(tmp_path)


def test_the_same_image_twice_in_training_is_allowed(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"ant": 3, "bee": 2})
    write_classes(tmp_path / "test", {"ant": 1, "bee": 2}, start=5000)
    (tmp_path / "train" / "ant" / "copy.png").write_bytes(
        (tmp_path / "train" / "ant" / "1.png").read_bytes()
    )
    assert list_train_test(tmp_path)[0].class_counts() == (4, 2)
