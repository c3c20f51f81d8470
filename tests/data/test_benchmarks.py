"""Load benchmarks from small copies of the published layouts, intact and damaged."""

import io
import pickle
import struct
from dataclasses import replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fewmore.data import augment, cifar, sources
from fewmore.data.benchmarks import BENCHMARKS, BenchmarkImages, choose_shape, find
from fewmore.data.images import ImageSet
from fewmore.data.loading import load_task
from fewmore.data.session_lists import has_session_lists, official_split
from fewmore.data.splits import class_order
from fewmore.errors import (
    BenchmarkError,
    ConfigError,
    DataError,
    MissingData,
    SplitError,
    UnknownName,
)


def write_lists(root: Path, name: str, sessions: list[list[str]]) -> Path:
    folder = root / "index_list" / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, lines in enumerate(sessions, 1):
        (folder / f"session_{number}.txt").write_text("".join(f"{line}\n" for line in lines))
    return folder


# The table


def test_the_table_has_the_published_protocol() -> None:
    shapes = {
        name: (b.classes, b.base, b.way, b.shot, b.sessions, b.backbone, b.transform.size)
        for name, b in BENCHMARKS.items()
    }
    assert shapes == {
        "glyphs": (100, 60, 5, 5, 9, "resnet8", 24),
        "cifar100": (100, 60, 5, 5, 9, "resnet20", 32),
        "miniimagenet": (100, 60, 5, 5, 9, "resnet18", 84),
        "cub200": (200, 100, 10, 5, 11, "resnet18", 224),
    }
    assert [name for name, b in BENCHMARKS.items() if b.pretrained] == ["cub200"]
    assert not BENCHMARKS["glyphs"].transform.flip
    assert BENCHMARKS["miniimagenet"].transform.resize == 92


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("cifar100", (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
        ("miniimagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("cub200", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("glyphs", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ],
)
def test_images_are_normalized_by_the_published_numbers(
    name: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    """Check the view of one gray image, of which every pixel is 51 of 255."""
    transform = BENCHMARKS[name].transform
    side = transform.resize or transform.size
    gray = np.full((1, 3, side, side), 51, dtype=np.uint8)
    images = ImageSet.from_images(gray, torch.zeros(1, dtype=torch.int64), ["gray"])
    view = augment.test_view(images, torch.tensor([0]), transform)
    for channel in range(3):
        expected = torch.full_like(view[0, channel], (0.2 - mean[channel]) / std[channel])
        torch.testing.assert_close(view[0, channel], expected)


def test_unknown_names_get_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no benchmark is named 'cifar10': did you mean cifar100"):
        find("cifar10")
    with pytest.raises(UnknownName, match="folder:PATH"):
        find("zzz")
    with pytest.raises(ConfigError, match="is a folder, not the name of a benchmark: type folder:"):
        find(str(tmp_path))
    with pytest.raises(ConfigError, match="names no folder: type folder:PATH"):
        find("folder:")
    with pytest.raises(MissingData, match="is not there"):
        find(f"folder:{tmp_path}/nowhere")


# CIFAR-100

NAMES = [f"class_{label:02}" for label in range(100)]


def cifar_entry(each: int, seed: int) -> dict[str, object]:
    """Make images of 100 classes in shuffled order; the first byte is the label."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(100), each))
    pixels = random.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    pixels[:, 0] = labels
    return {
        "data": pixels,
        "fine_labels": labels.tolist(),
        "coarse_labels": [0] * len(labels),
        "batch_label": "batch 1 of 1",
    }


def python2(value: object) -> bytes:
    """Pickle a value as Python 2 did (protocol 2): strings as bytes, arrays by their old module."""
    match value:
        case np.ndarray():
            made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
            kind += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            shape = python2(value.shape[0]) + python2(value.shape[1]) + b"\x86"
            return (
                made
                + b"(K\x01"
                + shape
                + kind
                + b"\x89T"
                + struct.pack("<i", value.nbytes)
                + value.tobytes()
                + b"tb"
            )
        case dict():
            return (
                b"}(" + b"".join(python2(key) + python2(item) for key, item in value.items()) + b"u"
            )
        case list():
            return b"](" + b"".join(python2(item) for item in value) + b"e"
        case str():
            return b"U" + bytes([len(value)]) + value.encode()
        case int():
            return b"J" + struct.pack("<i", value)
    raise TypeError(value)


def write_cifar(root: Path, how: str = "python 3", each: int = 6) -> dict[str, dict[str, object]]:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    content = {
        "train": cifar_entry(each, 0),
        "test": cifar_entry(2, 1),
        "meta": {"fine_label_names": NAMES},
    }
    for name, entry in content.items():
        (folder / name).write_bytes(
            b"\x80\x02" + python2(entry) + b"."
            if how == "python 2"
            else pickle.dumps(entry, 2 if how == "python 3, protocol 2" else 4)
        )
    return content


def write_cifar_lists(
    root: Path, labels: list[int], base: int = 60, way: int = 5, shot: int = 5
) -> Path:
    of = [[str(i) for i, label in enumerate(labels) if label == c] for c in range(100)]
    new = [
        [line for c in range(start, start + way) for line in of[c][:shot]]
        for start in range(base, 100, way)
    ]
    return write_lists(root, "cifar100", [[line for c in range(base) for line in of[c]], *new])


@pytest.mark.parametrize("how", ["python 2", "python 3", "python 3, protocol 2"])
def test_cifar100_whoever_pickled_it(tmp_path: Path, how: str) -> None:
    content = write_cifar(tmp_path, how)
    task = load_task("cifar100", tmp_path)
    assert torch.equal(
        task.train.storage, torch.from_numpy(content["train"]["data"].reshape(-1, 3, 32, 32))
    )
    assert task.train.labels.tolist() == content["train"]["fine_labels"]
    assert task.test.labels.tolist() == content["test"]["fine_labels"]
    assert task.train.class_names == tuple(NAMES)
    assert task.split.name.startswith("draw 0: 60 base, 5-way 5-shot")


def test_cifar100_official_split(tmp_path: Path) -> None:
    content = write_cifar(tmp_path)
    folder = write_cifar_lists(tmp_path, content["train"]["fine_labels"])
    task = load_task("cifar100", tmp_path)
    assert task.split.name == "official"
    assert [session.classes for session in task.split.sessions] == [
        tuple(range(60)),
        *(tuple(range(c, c + 5)) for c in range(60, 100, 5)),
    ]
    third = [int(line) for line in (folder / "session_3.txt").read_text().split()]
    assert task.split.sessions[2].indices.tolist() == third
    shown = task.split.sessions[2].select_from(task.train)
    expected = [label for label in range(65, 70) for _ in range(5)]
    assert [int(shown.image(i)[0, 0, 0]) for i in range(25)] == expected


def one_pixel_cifar() -> BenchmarkImages:
    """Make as many images as CIFAR-100 has, of one pixel each, in shuffled order."""
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(100), 500))
    train = ImageSet.from_images(np.zeros((50_000, 3, 1, 1), np.uint8), labels, NAMES)
    return BenchmarkImages(train, train, [str(index) for index in range(50_000)])


def publish(labels: list[int], monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Let the lists of these labels be the published ones, and return them."""
    order = np.random.RandomState(1).permutation(500)
    images_of = [np.flatnonzero(np.array(labels) == c)[order].tolist() for c in range(100)]
    lists = [[i for c in range(60) for i in images_of[c]]]
    lists += [[i for c in range(s, s + 5) for i in images_of[c][:5]] for s in range(60, 100, 5)]
    checksums = {
        f"session_{number}.txt": sha256("".join(f"{i}\n" for i in part).encode()).hexdigest()
        for number, part in enumerate(lists, 1)
    }
    monkeypatch.setitem(sources._LIST_SHA256, "cifar100", checksums)
    return lists


def test_cifar100_has_its_official_split_without_the_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it for made-up images; those of the publisher give the published checksums."""
    images, benchmark = one_pixel_cifar(), find("cifar100")
    labels = images.train.labels.tolist()
    assert not has_session_lists(benchmark, images, tmp_path), "these images are others"
    lists = publish(labels, monkeypatch)
    assert has_session_lists(benchmark, images, tmp_path)
    split = official_split(benchmark, images, tmp_path)
    assert split.name == "official"
    assert [session.indices.tolist() for session in split.sessions] == lists
    assert split.sessions[8].classes == tuple(range(95, 100))
    assert cifar.published_lists(labels[:-1]) is None
    assert cifar.published_lists(labels[::-1]) is None
    # The 5 shots are the same in every class: the first of them has 304 images before it.
    ranks = [304, 340, 47, 67, 479]
    assert split.sessions[1].indices[:5].tolist() == [
        np.flatnonzero(np.array(labels) == 60)[rank] for rank in ranks
    ]


def test_given_lists_go_before_made_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, benchmark = one_pixel_cifar(), find("cifar100")
    labels = images.train.labels.tolist()
    publish(labels, monkeypatch)
    folder = write_cifar_lists(tmp_path, labels)
    split = official_split(benchmark, images, tmp_path)
    assert split.sessions[1].indices[0] == np.flatnonzero(np.array(labels) == 60)[0]
    (folder / "session_4.txt").unlink()
    with pytest.raises(MissingData, match=r"session_4\.txt is not there"):
        official_split(benchmark, images, tmp_path)


@pytest.mark.parametrize(
    "option", [{"base": 60}, {"way": 5}, {"shot": 5}, {"draw": 0}, {"class_order": 0}]
)
def test_any_option_means_a_sampled_split(tmp_path: Path, option: dict[str, int]) -> None:
    content = write_cifar(tmp_path)
    write_cifar_lists(tmp_path, content["train"]["fine_labels"])
    assert load_task("cifar100", tmp_path, **option).split.name.startswith("draw 0")


def test_options_shape_the_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path)
    monkeypatch.setenv("FEWMORE_DATA", str(tmp_path))
    task = load_task("cifar100", base=40, way=20, shot=3, draw=7, class_order=9)
    assert (
        task.benchmark.base,
        task.benchmark.way,
        task.benchmark.shot,
        task.benchmark.sessions,
    ) == (40, 20, 3, 4)
    assert task.split.seen(3) == class_order(100, 9)
    assert [len(session.indices) for session in task.split.sessions] == [240, 60, 60, 60]
    assert "draw 7" in task.split.name
    with pytest.raises(SplitError, match="base must be at least 1, not 0"):
        load_task("cifar100", base=0)


class Hostile:
    def __init__(self, call: object, *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize(
    "value",
    [
        Hostile(print, "this program ran"),
        Hostile(eval, "print('this program ran')"),
        Hostile(np.load, "x"),
        Hostile(np.memmap, "x"),
        Hostile(getattr, [], "append"),
        {"data": Hostile(bytes, 1 << 40)},
        np.array([print], dtype=object),
        np.zeros(3),
        {"data", "fine_labels"},
        Path("x"),
        bytearray(3),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_hostile_pickle_runs_nothing(
    tmp_path: Path, value: object, protocol: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cifar(tmp_path)
    (tmp_path / "cifar-100-python" / "train").write_bytes(pickle.dumps(value, protocol))
    with pytest.raises(
        DataError,
        match=r"train (is not a file of CIFAR-100, or is damaged \(|holds a \w+, not a dict)",
    ):
        load_task("cifar100", tmp_path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.eval",
        "numpy.load",
        "numpy.core.multiarray.fromstring",
        "_codecs.lookup",
        "numpy.ndarray.x",
    ],
)
def test_no_other_name_is_known(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    with pytest.raises(pickle.UnpicklingError, match="data files have no need of it"):
        cifar._RestrictedUnpickler(io.BytesIO(b"")).find_class(module, attribute)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data": np.zeros((5, 3071), np.uint8)}, "rows of 3,072 bytes"),
        ({"data": np.zeros((600, 3072), np.int64)}, "rows of 3,072 bytes"),
        ({"data": [1, 2, 3]}, "rows of 3,072 bytes"),
        ({"data": None}, "has no entry 'data'"),
        ({"fine_labels": None}, "has no entry 'fine_labels'"),
        ({"fine_labels": ["a"] * 600}, "should hold a list of labels"),
        ({"fine_labels": [0]}, "600 images have 1 labels"),
        ({"fine_labels": [100] * 600}, "labels must lie in 0 … 99"),
    ],
)
def test_a_wrong_cifar_file_is_refused(
    tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    content = write_cifar(tmp_path)
    (tmp_path / "cifar-100-python" / "train").write_bytes(
        pickle.dumps({**content["train"], **change})
    )
    with pytest.raises(DataError, match=rf"train.*{sentence}.*fewmore data get cifar100"):
        load_task("cifar100", tmp_path)


def test_cifar100_labels_may_be_an_array(tmp_path: Path) -> None:
    content = write_cifar(tmp_path)
    labels = np.array(content["train"]["fine_labels"], dtype=">i4")
    (tmp_path / "cifar-100-python" / "train").write_bytes(
        pickle.dumps({**content["train"], "fine_labels": labels})
    )
    assert load_task("cifar100", tmp_path).train.labels.tolist() == content["train"]["fine_labels"]


def test_cifar100_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        MissingData,
        match=r"meta is not there: run `fewmore data get cifar100`, or give .* --data-root",
    ):
        load_task("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("session", "change", "error", "sentence"),
    [
        (
            3,
            lambda lines: None,
            MissingData,
            r"session_3\.txt is not there: run `fewmore data get cifar100`",
        ),
        (
            3,
            lambda lines: [*lines[:6], "60000", *lines[7:]],
            DataError,
            r"session_3\.txt, line 7, names 60000, which is not among the 600",
        ),
        (
            3,
            lambda lines: [*lines[:6], "no number", *lines[7:]],
            DataError,
            "line 7, names no number",
        ),
        (
            3,
            lambda lines: lines[:20],
            SplitError,
            "has images of 4 classes, and session 2 of cifar100 has 5",
        ),
        (3, lambda lines: lines[:24], SplitError, "has 4 to 5 images a class, and cifar100 has 5"),
        (3, lambda lines: [*lines, lines[0]], SplitError, r"session_3\.txt names an image twice"),
        (3, lambda lines: [], SplitError, "has images of 0 classes"),
        (
            1,
            lambda lines: lines[:-6],
            SplitError,
            "has images of 59 classes, and session 0 of cifar100 has 60",
        ),
    ],
)
def test_lists_are_checked_against_the_images(
    tmp_path: Path, session: int, change: object, error: type[Exception], sentence: str
) -> None:
    content = write_cifar(tmp_path)
    path = write_cifar_lists(tmp_path, content["train"]["fine_labels"]) / f"session_{session}.txt"
    lines = change(path.read_text().split())
    path.unlink() if lines is None else path.write_text("\n".join(lines))
    with pytest.raises(error, match=sentence):
        load_task("cifar100", tmp_path)


def test_sessions_must_not_share_classes(tmp_path: Path) -> None:
    content = write_cifar(tmp_path)
    folder = write_cifar_lists(tmp_path, content["train"]["fine_labels"])
    (folder / "session_4.txt").write_text((folder / "session_3.txt").read_text())
    with pytest.raises(SplitError, match="is in session 2 and again in session 3"):
        load_task("cifar100", tmp_path)


# miniImageNet: 6 classes, 4 of them base, then 2 sessions of 1-way 2-shot

WNIDS = ("n03", "n01", "n05", "n02", "n06", "n04")


def write_mini(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    lists: bool = True,
    tables: str = "miniimagenet/split",
    size: tuple[int, int] = (84, 84),
) -> Path:
    """Write miniImageNet; of the new classes, only the images in the session lists are there."""
    monkeypatch.setitem(
        BENCHMARKS,
        "miniimagenet",
        replace(BENCHMARKS["miniimagenet"], classes=6, base=4, way=1, shot=2),
    )
    images = root / "miniimagenet" / "images"
    images.mkdir(parents=True)
    (root / tables).mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for label, wnid in enumerate(WNIDS):
        for index in range(5):
            part = "train" if index < 4 else "test"
            rows[part].append((f"{wnid}{index:08}.jpg", wnid))
            if label < 4 or part == "test" or index in (1, 3):
                Image.new("RGB", size, (40 * label, 50 * index, 0)).save(
                    images / rows[part][-1][0], quality=95
                )
    for part, table in rows.items():
        (root / tables / f"{part}.csv").write_text(
            "filename,label\n" + "".join(f"{file},{label}\n" for file, label in table)
        )
    if lists:
        named = [
            [f"MINI-ImageNet/train/{wnid}/{file}" for file, label in rows["train"] if label == wnid]
            for wnid in WNIDS
        ]
        write_lists(
            root,
            "mini_imagenet",
            [
                [line for own in named[:4] for line in own],
                [named[4][3], named[4][1]],
                [named[5][1], named[5][3]],
            ],
        )
    return images


def test_miniimagenet_with_larger_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mini(tmp_path, monkeypatch, size=(600, 400))
    transform = BENCHMARKS["miniimagenet"].transform
    task = load_task("miniimagenet", tmp_path)
    assert task.train.size == (297, 446)
    assert task.data_root == tmp_path
    smaller = replace(transform, stored=92)
    assert load_task("miniimagenet", tmp_path, transforms=[smaller]).train.size == (92, 138)
    unsaid = replace(transform, size=224, resize=256, stored=None)
    task = load_task("miniimagenet", tmp_path, transforms=[smaller, unsaid])
    assert task.train.size == (256, 384)
    larger = replace(transform, stored=5000)  # files are not enlarged
    assert load_task("miniimagenet", tmp_path, transforms=[larger]).train.size == (400, 600)


@pytest.mark.parametrize(
    "tables", ["miniimagenet/split", "miniimagenet", "index_list/mini_imagenet"]
)
def test_miniimagenet_with_only_the_shots_of_new_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: str
) -> None:
    write_mini(tmp_path, monkeypatch, tables=tables)
    seen: list[tuple[int, int]] = []
    task = load_task("miniimagenet", tmp_path, on_progress=lambda *now: seen.append(now))
    assert task.train.class_names == WNIDS
    assert task.train.class_counts().tolist() == [4, 4, 4, 4, 2, 2]
    assert task.test.class_counts().tolist() == [1] * 6
    assert task.train.size == (84, 84)
    assert [session.classes for session in task.split.sessions] == [(0, 1, 2, 3), (4,), (5,)]
    shown = task.split.sessions[1].select_from(task.train)
    assert [[round(int(shown.image(i)[c, 40, 40]) / 10) for c in (0, 1)] for i in range(2)] == [
        [16, 15],
        [16, 5],
    ]
    assert seen[-1] == (26, 26)


def test_miniimagenet_other_draws_need_all_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_mini(tmp_path, monkeypatch)
    with pytest.raises(
        MissingData,
        match=r"4 training images of miniimagenet are missing.*n0600000000\.jpg",
    ):
        load_task("miniimagenet", tmp_path, draw=1)
    for name in ("n0600000000", "n0600000002", "n0400000000", "n0400000002"):
        Image.new("RGB", (84, 84)).save(images / f"{name}.jpg")
    assert load_task("miniimagenet", tmp_path, draw=1).split.name.startswith(
        "draw 1: 4 base, 1-way 2-shot"
    )


def test_miniimagenet_without_lists_needs_all_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mini(tmp_path, monkeypatch, lists=False)
    with pytest.raises(MissingData, match="with the lists from `fewmore data get miniimagenet`"):
        load_task("miniimagenet", tmp_path)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("n0100000002.jpg", "n0100000002.jpg is not there"),
        ("n0600000004.jpg", "n0600000004.jpg is not there"),
    ],
)
def test_miniimagenet_base_and_test_images_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, sentence: str
) -> None:
    (write_mini(tmp_path, monkeypatch) / file).unlink()
    with pytest.raises(MissingData, match=sentence):
        load_task("miniimagenet", tmp_path)


def test_miniimagenet_official_shots_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (write_mini(tmp_path, monkeypatch) / "n0600000003.jpg").unlink()
    with pytest.raises(
        DataError,
        match=r"session_2\.txt, line 1, names MINI-ImageNet/train/n06/n0600000003\.jpg",
    ):
        load_task("miniimagenet", tmp_path)


@pytest.mark.parametrize(
    ("part", "line", "sentence"),
    [
        (
            "train",
            "n0300000004.jpg,n03",
            r"overlapping: n0300000004\.jpg is in train\.csv and in test\.csv",
        ),
        ("test", "x.jpg,n99", "has the class n99, which train.csv does not have"),
        ("train", "nonsense", r"train\.csv, line 26, is not 'filename,label'"),
        ("train", "../../x.jpg,n03", r"train\.csv, line 26, is not 'filename,label'"),
    ],
)
def test_miniimagenet_tables_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, line: str, sentence: str
) -> None:
    write_mini(tmp_path, monkeypatch)
    with open(tmp_path / "miniimagenet" / "split" / f"{part}.csv", "a") as file:
        file.write(f"{line}\n")
    with pytest.raises(DataError, match=sentence):
        load_task("miniimagenet", tmp_path)


def test_miniimagenet_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        MissingData, match="`fewmore data get miniimagenet` says where to get the images"
    ):
        load_task("miniimagenet", tmp_path)
    write_mini(tmp_path, monkeypatch)
    (tmp_path / "miniimagenet" / "split" / "test.csv").unlink()
    with pytest.raises(
        MissingData, match=r"test\.csv is not there: run `fewmore data get miniimagenet`"
    ):
        load_task("miniimagenet", tmp_path)


# CUB200: 6 classes, 2 of them base, then 2 sessions of 2-way 3-shot


def write_cub(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(
        BENCHMARKS, "cub200", replace(BENCHMARKS["cub200"], classes=6, base=2, way=2, shot=3)
    )
    folder = root / "CUB_200_2011"
    lines: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": []}
    named: list[list[str]] = []
    number = 0
    for label in range(6):
        name = f"{label + 1:03}.Bird_{label}"
        (folder / "images" / name).mkdir(parents=True)
        named.append([])
        for index in range(5):
            number += 1
            file = f"{name}/Bird_{index}.jpg"  # the file's name alone does not tell the image
            Image.new("L" if index == 2 else "RGB", (600 + 20 * index, 400), 40 * label).save(
                folder / "images" / file
            )
            lines["images"].append(f"{number} {file}")
            lines["image_class_labels"].append(f"{number} {label + 1}")
            lines["train_test_split"].append(f"{number} {int(index != 1)}")
            if index != 1:
                named[-1].append(f"CUB_200_2011/images/{file}")
    for name, content in lines.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in content))
    write_lists(
        root,
        "cub200",
        [named[0] + named[1], named[2][:3] + named[3][1:], named[4][1:] + named[5][:3]],
    )
    return folder


def test_cub200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cub(tmp_path, monkeypatch)
    task = load_task("cub200", tmp_path)
    assert task.train.class_names[:2] == ("001.Bird_0", "002.Bird_1")
    assert task.train.class_counts().tolist() == [4] * 6
    assert task.test.class_counts().tolist() == [1] * 6
    assert {min(task.train.image(i).shape[1:]) for i in range(24)} == {256}
    assert task.train.size is None
    assert [session.classes for session in task.split.sessions] == [(0, 1), (2, 3), (4, 5)]
    shown = task.split.sessions[1].select_from(task.train)
    assert [int(shown.image(i)[0, 100, 100]) // 40 for i in range(6)] == [2, 2, 2, 3, 3, 3]
    assert shown.image(3).shape == (3, 256, round(640 * 256 / 400))
    assert load_task("cub200", tmp_path, shot=2).split.name.startswith(
        "draw 0: 2 base, 2-way 2-shot"
    )


def test_cub200_wrong_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        MissingData, match=r"images\.txt is not there: run `fewmore data get cub200`"
    ):
        load_task("cub200", tmp_path)
    folder = write_cub(tmp_path, monkeypatch)
    (folder / "images" / "001.Bird_0" / "Bird_3.jpg").unlink()
    with pytest.raises(MissingData, match=r"1 image is missing \(.*Bird_3\.jpg\)"):
        load_task("cub200", tmp_path)
    labels = (folder / "image_class_labels.txt").read_text()
    (folder / "image_class_labels.txt").write_text(labels.replace("7 2\n", ""))
    with pytest.raises(DataError, match="image 7 is not in all of"):
        load_task("cub200", tmp_path)
    (folder / "image_class_labels.txt").write_text(labels.replace("7 2\n", "seven 2\n"))
    with pytest.raises(
        DataError, match=r"image_class_labels\.txt, line 7, is not a number and a value"
    ):
        load_task("cub200", tmp_path)
    (folder / "image_class_labels.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="is not a text file"):
        load_task("cub200", tmp_path)


# Any folder


def write_folder(root: Path, classes: int, each: int = 7) -> Path:
    random = np.random.default_rng(0)
    for label in range(classes):
        (root / f"c{label:02}").mkdir(parents=True)
        for index in range(each):
            Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8)).save(
                root / f"c{label:02}" / f"{index}.png"
            )
    return root


def test_folder(tmp_path: Path) -> None:
    task = load_task(f"folder:{write_folder(tmp_path, 12)}")
    assert task.benchmark.name == f"folder:{tmp_path}"
    assert (
        task.benchmark.base,
        task.benchmark.way,
        task.benchmark.shot,
        task.benchmark.classes,
    ) == (7, 5, 5, 12)
    assert len(task.train) == 72
    assert task.test.class_counts().tolist() == [1] * 12
    assert task.train.size == (6, 8), "smaller than needed, and not enlarged"
    assert [len(session.indices) for session in task.split.sessions] == [42, 25]
    assert load_task(f"folder:{tmp_path}", way=2, shot=1).split.name.startswith(
        "draw 0: 8 base, 2-way 1-shot"
    )


def write_photos(root: Path, width: int, height: int) -> Path:
    """Write two classes of two photos each."""
    for label, index in product(range(2), range(2)):
        (root / f"c{label}").mkdir(parents=True, exist_ok=True)
        color = (50 * label, 50 * index, 99)
        Image.new("RGB", (width, height), color).save(root / f"c{label}" / f"{index}.png")
    return root


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ([], (92, 138)),
        ([{"size": 224, "resize": 256}], (256, 384)),
        ([{"stored": 300}], (300, 450)),
        ([{"size": 64, "resize": 64}, {"size": 128, "resize": 160}], (160, 240)),
        ([{"size": 64, "resize": 64, "test_views": ("plain", "large")}], (80, 120)),
        ([{"size": 32, "resize": None}], (32, 32)),
        ([{"size": 32, "crop": "pad"}], (32, 32)),
    ],
)
def test_photos_are_stored_as_large_as_the_transforms_need(
    tmp_path: Path, changes: list[dict[str, Any]], size: tuple[int, int]
) -> None:
    name = f"folder:{write_photos(tmp_path, 600, 400)}"
    transforms = [replace(find(name).transform, **change) for change in changes]
    task = load_task(name, transforms=transforms)
    assert task.train.size == size
    assert task.test.size == size


def test_transforms_that_cannot_share_images(tmp_path: Path) -> None:
    name = f"folder:{write_photos(tmp_path, 60, 40)}"
    transform = find(name).transform
    with pytest.raises(ConfigError, match=r"cannot share images.*run them one by one"):
        load_task(name, transforms=[transform, replace(transform, size=32, crop="pad")])


def test_folder_shots_follow_the_new_classes(tmp_path: Path) -> None:
    write_folder(tmp_path, 6)
    for index in range(4):
        (tmp_path / "c05" / f"{index}.png").unlink()
    assert (find(f"folder:{tmp_path}").base, find(f"folder:{tmp_path}").shot) == (4, 2)
    order = next(seed for seed in range(99) if 5 in class_order(6, seed)[:4])
    assert load_task(f"folder:{tmp_path}", class_order=order).benchmark.shot == 5
    with pytest.raises(
        SplitError,
        match="class 'c05' has 2 training images, and session 1 needs 5 of it",
    ):
        load_task(f"folder:{tmp_path}", shot=5)


@pytest.mark.parametrize("classes", range(2, 130))
def test_any_number_of_classes_has_a_shape(classes: int) -> None:
    base, way, shot = choose_shape([7] * classes)
    assert 2 <= base <= classes
    assert 1 <= way <= 5
    assert shot == 5
    assert (classes - base) % way == 0
    assert abs(base - 0.6 * classes) <= 2.5
    assert (way == 5 and base < classes) or classes < 12


@pytest.mark.parametrize(
    ("classes", "base", "way", "shape"),
    [
        (100, None, None, (60, 5)),
        (10, None, None, (6, 4)),
        (2, None, None, (2, 1)),
        (3, None, None, (2, 1)),
        (20, 8, None, (8, 4)),
        (20, 7, None, (7, 1)),
        (20, None, 3, (11, 3)),
    ],
)
def test_shapes(classes: int, base: int | None, way: int | None, shape: tuple[int, int]) -> None:
    assert choose_shape([7] * classes, base, way)[:2] == shape


def test_invalid_shapes_are_refused() -> None:
    with pytest.raises(
        SplitError, match="8 classes are too few for a base session and a session of 8: lower --way"
    ):
        choose_shape([7] * 8, way=8)
    with pytest.raises(SplitError, match="way must be at least 1, not 0"):
        choose_shape([7] * 8, way=0)


# Benchmarks of one's own code


OWN = """
from dataclasses import replace
from fewmore.data.benchmarks import Benchmark, BenchmarkImages
from fewmore.data.from_python import image_set
from fewmore.data.transform import Transform
import numpy as np

NAMES = ("a", "b", "c", "d")

def load(request):
    train, test = (
        image_set(np.full((12, 8, 8, 3), shade, np.uint8), [0, 1, 2, 3] * 3, NAMES, request.size)
        for shade in (0, 255)
    )
    return BenchmarkImages(train, test)

def make(load):
    transform = Transform(8, (0.5,) * 3, (0.5,) * 3)
    return Benchmark("mine", "Nothing", 4, 2, 1, 2, "resnet8", False, transform, load=load)

MINE = make(load)
UNLOADED = make(None)
FAILS = make(lambda request: 1 / 0)
NINE = replace(MINE, classes=9)
WRONG = make(lambda request: 3)
SAME = make(lambda request: BenchmarkImages(load(request).train, load(request).train))
ODD = make(lambda request: BenchmarkImages(
    load(request).train, image_set(np.zeros((1, 8, 8, 3), np.uint8), [0], ["z"])))
NUMBER = 3
"""


def test_a_benchmark_of_a_file_or_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own_stripes.py"
    path.write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    for name in (f"{path}:MINE", "own_stripes:MINE"):
        task = load_task(name, shot=1)
        assert task.benchmark.name == name
        assert task.split.name == "draw 0: 2 base, 1-way 1-shot"
        assert [len(session.indices) for session in task.split.sessions] == [6, 1, 1]
        assert task.benchmark.source is not None
        assert task.benchmark.source["sha256"] == sha256(path.read_bytes()).hexdigest()
    for attribute, sentence in {
        "UNLOADED": "does not say how its images are loaded: give the Benchmark load=",
        "NUMBER": "NUMBER in .* is of type int, not a Benchmark",
    }.items():
        with pytest.raises(BenchmarkError, match=sentence):
            find(f"{path}:{attribute}")
    for attribute, sentence in {
        "WRONG": "gives a int: its load function must return BenchmarkImages",
        "ODD": "must have the same class_names",
        "FAILS": r":FAILS fails: ZeroDivisionError: division by zero \(.*own_stripes\.py:\d+\)",
        "NINE": "says that it has 9 classes, and its images have 4: set classes=4 in the Benchmark",
    }.items():
        with pytest.raises(BenchmarkError, match=sentence):
            load_task(f"{path}:{attribute}")
    with pytest.raises(DataError, match=r"^12 of the 12 test images of .*:SAME are training image"):
        load_task(f"{path}:SAME")
    with pytest.raises(UnknownName, match=r"no benchmark in .* is named 'MIN': did you mean MINE"):
        find(f"{path}:MIN")
    with pytest.raises(MissingData, match=r"there is no file .*nowhere\.py"):
        find(f"{tmp_path}/nowhere.py:MINE")
    path.write_text("import no_such_module")
    with pytest.raises(BenchmarkError, match=r"fails when it is loaded: .*own_stripes\.py, line 1"):
        find(f"{path}:MINE")
    with pytest.raises(UnknownName, match="no benchmark is named"):
        find("no_such_module:MINE")
