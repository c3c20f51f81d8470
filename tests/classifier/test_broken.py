"""Image files that cannot be read: all are named, or left out; the others are decoded once."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fewmore import IncrementalClassifier
from fewmore.data import decode
from fewmore.data.folders import printable
from fewmore.errors import DataError, ImageError

Photos = Callable[..., Path]


@pytest.fixture
def folder(photos: Photos) -> Path:
    """Write two classes, of which each has four broken files."""
    folder = photos("photos", {"robin": 8, "wren": 9})
    for name in ("robin", "wren"):
        for i in range(4):
            (folder / name / f"{i:02}.png").write_bytes(b"no image")
    return folder


def test_all_broken_images_are_named_at_once(folder: Path, weights: Path) -> None:
    with pytest.raises(ImageError, match=r"^8 images cannot be read: .* --skip-broken") as caught:
        IncrementalClassifier("resnet8", weights).fit(folder)
    _, *lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines] == [
        str(folder / name / f"{i:02}.png") for name in ("robin", "wren") for i in range(4)
    ]


def test_an_image_is_decoded_once(
    photos: Photos, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos("photos", {"robin": 8, "wren": 9})
    decoded = []
    pixels = decode._pixels
    monkeypatch.setattr(decode, "_pixels", lambda *a: (decoded.append(1), pixels(*a))[1])
    classifier = IncrementalClassifier("resnet8", weights)
    for step, use in enumerate((classifier.fit, classifier.learn, classifier.evaluate), 1):
        use(folder)
        assert len(decoded) == 17 * step


def test_broken_images_can_be_skipped(folder: Path, weights: Path) -> None:
    classifier = IncrementalClassifier("resnet8", weights).fit(folder, skip_broken=True)
    assert classifier.info()["classes"] == {"robin": 4, "wren": 5}
    (note,) = [note for note in classifier.notes_ if "left out" in note]
    assert note.startswith("8 broken images left out: ")
    assert note.count(".png") == 8
    result = classifier.learn({"owl": sorted((folder / "wren").iterdir())}, skip_broken=True)
    assert classifier.info()["classes"]["owl"] == 5
    assert result.warnings[0].startswith("4 broken images left out: ")
    evaluation = classifier.evaluate(folder, skip_broken=True)
    assert (evaluation.images, evaluation.learnt) == (9, 9)
    assert evaluation.notes[0].startswith("8 broken images left out: ")


def test_a_class_of_broken_images_alone_is_named(folder: Path, weights: Path) -> None:
    for i in range(4, 8):
        (folder / "robin" / f"{i:02}.png").unlink()
    with pytest.raises(DataError, match="none of the images of robin can be read"):
        IncrementalClassifier("resnet8", weights).fit(folder, skip_broken=True)


def test_printed_names_and_paths_that_cannot_be_looked_at(photos: Photos, weights: Path) -> None:
    folder = photos("photos", {"robin": 4, "wren": 4})
    odd = Path(os.fsdecode(os.fsencode(folder) + b"/jay\xe9.png"))
    try:
        (folder / "wren" / "00.png").rename(odd)
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    images = {name: sorted((folder / name).iterdir()) for name in ("robin", "wren")}
    images["wren"] += [printable(odd), folder / "gone.png", folder / ("a" * 300)]
    classifier = IncrementalClassifier("resnet8", weights).fit(images, skip_broken=True)
    assert classifier.info()["classes"] == {"robin": 4, "wren": 4}
    (note,) = [note for note in classifier.notes_ if "left out" in note]
    assert "gone.png (is not there)" in note
    assert "(File name too long)" in note


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_among_the_images_is_named_and_not_waited_for(photos: Photos, weights: Path) -> None:
    folder = photos("photos", {"robin": 4, "wren": 4})
    pipe = folder / "pipe.png"
    os.mkfifo(pipe)
    classifier = IncrementalClassifier("resnet8", weights).fit(
        {name: sorted((folder / name).iterdir()) for name in ("robin", "wren")}
    )
    with pytest.raises(ImageError, match=r"pipe\.png cannot be read as an image \(it is no file\)"):
        classifier.learn({"owl": [pipe]})
