"""Plant errors into folders of small images, and look for them."""

import errno
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from fewmore import IncrementalClassifier
from fewmore.classifier.checking import CheckResult, check_folder, check_model
from fewmore.classifier.checking import measure as measure_module
from fewmore.classifier.checking.curves import gain_of_doubling, learning_curves
from fewmore.classifier.checking.labels import find_mislabelled, leave_one_out
from fewmore.data.folders import printable
from fewmore.errors import ConfigError, DataError

NAMES = ("daw", "jay", "owl", "robin", "tit", "wren")
COUNT = 12  # photos a class
SIZE = 64  # pixels


def write_photo(path: Path, name: str, number: int) -> Path:
    """Draw a noisy pattern that is the same for all photos of a class."""
    pattern = np.random.default_rng(list(name.encode())).integers(0, 256, (8, 8, 3))
    noise = np.random.default_rng([*name.encode(), number]).normal(0, 40, (8, 8, 3))
    image = Image.fromarray((pattern + noise).clip(0, 255).astype(np.uint8))
    path.parent.mkdir(parents=True, exist_ok=True)
    image.resize((SIZE, SIZE), Image.Resampling.NEAREST).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write six classes of twelve photos, all right."""
    for name in NAMES:
        for number in range(COUNT):
            write_photo(tmp_path / "photos" / name / f"{number:02}.png", name, number)
    return tmp_path / "photos"


@pytest.fixture
def check(weights: Path) -> Callable[[Path], CheckResult]:
    """Return a function that checks a folder with an untrained network."""
    return lambda folder: check_folder(folder, IncrementalClassifier("resnet8", weights))


def found(result: CheckResult, kind: str, folder: Path) -> list[list[str]]:
    """Return the images of all findings of a kind, as seen from the folder."""
    return [
        [str(Path(image).relative_to(folder)) for image in finding.images]
        for finding in result.of_kind(kind)
    ]


def test_nothing_is_found_where_nothing_is_wrong(
    folder: Path, check: Callable[[Path], CheckResult]
) -> None:
    result = check(folder)
    assert result.findings == ()
    assert result.images == 72
    assert result.class_counts == dict.fromkeys(NAMES, COUNT)


def test_planted_errors_are_found(folder: Path, check: Callable[[Path], CheckResult]) -> None:
    shutil.move(folder / "owl" / "03.png", folder / "tit" / "moved.png")
    write_photo(folder / "jay" / "wrong.png", "wren", 50)
    # Copies: the same bytes, re-saved, resized into another class.
    shutil.copy(folder / "jay" / "02.png", folder / "jay" / "again.png")
    with Image.open(folder / "wren" / "05.png") as image:
        image.save(folder / "wren" / "saved.jpg", quality=60)
    with Image.open(folder / "robin" / "07.png") as image:
        image.resize((40, 40)).save(folder / "daw" / "small copy.png")
    with Image.open(folder / "tit" / "01.png") as image:
        image.filter(ImageFilter.GaussianBlur(6)).save(folder / "tit" / "soft.png")
    write_photo(folder / "owl" / "99.png", "owl", 99)
    with Image.open(folder / "owl" / "99.png") as image:
        image.resize((10, 10)).save(folder / "owl" / "99.png")
    Image.new("RGB", (64, 64), "black").save(folder / "owl" / "dark.png")
    (folder / "daw" / "broken.jpg").write_bytes(b"not an image")
    write_photo(folder / "kiwi" / "only.png", "kiwi", 0)
    result = check(folder)
    assert sorted(found(result, "mislabelled", folder)) == [["jay/wrong.png"], ["tit/moved.png"]]
    looks_like = {finding.details["looks_like"] for finding in result.of_kind("mislabelled")}
    assert looks_like == {"owl", "wren"}
    assert found(result, "duplicate", folder) == [
        ["jay/02.png", "jay/again.png"],
        ["wren/05.png", "wren/saved.jpg"],
    ]
    assert [finding.details["exact"] for finding in result.of_kind("duplicate")] == [True, False]
    (two,) = result.of_kind("two classes")
    assert two.classes == ("daw", "robin")
    assert two.message.endswith("it looks more like robin")
    assert found(result, "blurred", folder) == [["tit/soft.png"]]
    assert found(result, "tiny", folder) == [["owl/99.png"]]
    assert found(result, "blank", folder) == [["owl/dark.png"]]
    (broken,) = result.of_kind("broken")
    assert broken.message == "cannot be read as an image (it is empty, or of no known image format)"
    (few,) = result.of_kind("too few")
    assert (few.classes, few.details) == (("kiwi",), {"photos": 1})
    kinds = list(dict.fromkeys(finding.kind for finding in result.findings))
    assert kinds[:3] == ["broken", "two classes", "mislabelled"], "the most important first"
    assert result.class_counts["daw"] == COUNT + 1, "a broken file is no photo of its class"


def test_images_may_be_arrays_and_one_class_is_enough(weights: Path) -> None:
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, (20, 24, 3), np.uint8) for _ in range(5)]
    classifier = IncrementalClassifier("resnet8", weights)
    result = check_folder({"owl": [*images, images[0]]}, classifier)
    (copies,) = result.findings
    assert (copies.kind, copies.images) == ("duplicate", ("image 1 of owl", "image 6 of owl"))


def test_images_may_be_bytes_that_may_change_and_printed_names(
    weights: Path, tmp_path: Path
) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/jay\xe9.png"))
    try:
        write_photo(odd, "jay", 1)
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    images = [bytearray(write_photo(tmp_path / "jay.png", "jay", 0).read_bytes()), printable(odd)]
    result = check_folder({"jay": images}, IncrementalClassifier("resnet8", weights))
    assert [finding.kind for finding in result.findings] == ["too few"]
    assert result.images == 2


def test_a_file_that_goes_away_meanwhile_is_broken(
    folder: Path, check: Callable[[Path], CheckResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> int:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(measure_module, "_short_side", gone)
    broken = check(folder).of_kind("broken")
    assert len(broken) == len(NAMES) * COUNT
    assert broken[0].message == "cannot be read as an image (No such file or directory)"


def test_photos_of_one_tint_are_no_copies_and_may_be_blank(weights: Path) -> None:
    generator = np.random.default_rng(0)
    tint = np.array([10, 90, 200])
    # Under water: little contrast in strong blue.
    images = [
        (tint + generator.normal(0, 5, (64, 64, 1)).repeat(3, 2)).clip(0, 255).astype(np.uint8)
        for _ in range(4)
    ]
    images = [np.kron(image[::8, ::8], np.ones((8, 8, 1), np.uint8)) for image in images]
    images.append(np.full((64, 64, 3), tint, np.uint8))
    result = check_folder({"fish": images}, IncrementalClassifier("resnet8", weights))
    assert [finding.kind for finding in result.findings] == ["blank"]
    assert result.findings[0].images == ("image 5 of fish",)


def test_a_folder_of_broken_files_alone_is_described(
    tmp_path: Path, check: Callable[[Path], CheckResult]
) -> None:
    (tmp_path / "photos" / "owl").mkdir(parents=True)
    (tmp_path / "photos" / "owl" / "a.jpg").write_bytes(b"")
    result = check(tmp_path / "photos")
    assert [finding.kind for finding in result.findings] == ["broken", "too few"]
    assert result.images == 0


def test_features_take_pretrained_weights(folder: Path) -> None:
    with pytest.raises(ConfigError, match="without pretrained weights"):
        check_folder(folder, IncrementalClassifier(weights=None))


def test_false_alarms_are_bounded() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(10).repeat_interleave(40)
    features = torch.randn(400, 16, generator=generator)  # no label means anything
    result = leave_one_out(features, labels, torch.ones(400, dtype=torch.bool), 10)
    assert result is not None
    named, more = find_mislabelled(result, labels)
    assert len(named) == math.ceil(0.03 * 400)
    assert more > 0
    margins = (result.other - result.own)[named]
    assert bool((margins.diff() <= 0).all()), "the clearest come first"


def test_an_image_does_not_vouch_for_itself() -> None:
    features = torch.eye(8) + 0.1
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    result = leave_one_out(features, labels, torch.ones(8, dtype=torch.bool), 2)
    assert result is not None
    assert float(result.own.max()) < 0, "each is unlike the three others of its class"


def test_learning_curves_rise_with_the_photos() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat_interleave(40)
    centers = torch.randn(6, 64, generator=generator)
    units = centers[labels] + 3 * torch.randn(240, 64, generator=generator)
    curves = learning_curves(torch.nn.functional.normalize(units, dim=1), labels, 6)
    assert list(curves) == list(range(6))
    for curve in curves.values():
        assert list(curve) == [1, 2, 4, 8, 16, 32]
        assert curve[32] > curve[1] + 0.1
    assert gain_of_doubling({1: 0.4, 2: 0.5, 4: 0.6, 8: 0.7}) == pytest.approx(0.1)
    assert gain_of_doubling({1: 0.2, 2: 0.9, 4: 0.99}) == pytest.approx(0.01)


# With a model


@pytest.fixture
def model(folder: Path, weights: Path) -> IncrementalClassifier:
    """Train on the folder, with a photo of another class and an odd one in it."""
    write_photo(folder / "jay" / "wrong.png", "wren", 50)
    write_photo(folder / "tit" / "odd.png", "kiwi", 0)
    return IncrementalClassifier("resnet8", weights).fit(folder)


def test_a_model_without_photos(model: IncrementalClassifier) -> None:
    result = check_model(model)
    assert result.class_counts["jay"] == COUNT + 1
    assert {finding.kind for finding in result.findings} <= {"confused"}
    assert "give photos too" in result.notes[0]


def test_learnt_photos_that_hurt(model: IncrementalClassifier, folder: Path) -> None:
    result = check_model(model, folder)
    hurting = found(result, "mislabelled", folder) + found(result, "pulls away", folder)
    assert ["jay/wrong.png"] in hurting
    assert ["tit/odd.png"] in hurting
    assert len(hurting) <= 4
    assert "74 learnt photos" in result.notes[-1]


def test_photos_that_were_not_learnt(model: IncrementalClassifier, tmp_path: Path) -> None:
    for number in range(20, 30):
        write_photo(tmp_path / "new" / "owl" / f"{number}.png", "owl", number)
        # Half of these are wrens: what the model should learn is up to the user.
        name = "jay" if number < 25 else "wren"
        write_photo(tmp_path / "new" / "jay" / f"{number}.png", name, number)
    result = check_model(model, tmp_path / "new")
    (confused,) = result.of_kind("confused")
    assert confused.message == "jay taken for wren: 5 of 10 photos"
    assert confused.classes == ("jay", "wren")
    assert confused.details == {"mistakes": 5, "share": 0.5}
    assert result.notes[-1].endswith("% of 20 photos that were not learnt are predicted right")


def test_learnt_photos_of_small_classes_are_not_judged(folder: Path, weights: Path) -> None:
    for name in ("kiwi", "emu"):
        for number in range(2):
            write_photo(folder / name / f"{number}.png", name, number)
    model = IncrementalClassifier("resnet8", weights).fit(folder)
    result = check_model(model, folder)
    assert not result.of_kind("confused"), "a photo alone is never close to its class"
    assert [note.partition(" learnt photos")[0] for note in result.notes[-2:]] == [
        "100.0 % of 72",
        "4",
    ]
    for name in NAMES[1:]:
        shutil.rmtree(folder / name)
    (alone,) = check_model(model, folder).notes[-1:]
    assert alone.startswith("16 learnt photos left out there: ")


def test_photos_of_unknown_classes_are_refused(
    model: IncrementalClassifier, tmp_path: Path
) -> None:
    write_photo(tmp_path / "new" / "okapi" / "a.png", "okapi", 0)
    with pytest.raises(DataError, match="the model has no class okapi"):
        check_model(model, tmp_path / "new")
