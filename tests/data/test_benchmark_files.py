"""Read benchmark files: sessions, class order, shots and images of any folder, right and wrong."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fewmore.data.benchmarks import Task, find
from fewmore.data.folders import list_train_test, listing_hash
from fewmore.data.loading import load_task
from fewmore.data.plans import SessionPlan
from fewmore.errors import ConfigError, FewmoreError, MissingData, SplitError, UnknownName

BIRDS = {"crow": 8, "heron": 8, "jay": 8, "kite": 8, "owl": 8, "robin": 8, "wren": 8}
SESSIONS: list[dict[str, Any]] = [
    {"classes": ["wren", "jay", "robin"]},
    {"classes": ["owl"], "shots": 4},
    {"classes": ["kite", "crow"], "shots": {"kite": 1, "crow": 3}},
]


@pytest.fixture
def birds(photos: Callable[..., Path]) -> Path:
    """Write seven classes of eight photos."""
    return photos("birds", BIRDS)


@pytest.fixture
def write(birds: Path, tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a benchmark file beside the folder, and returns its name."""

    def write(sessions: object = SESSIONS, **keys: object) -> str:
        path = tmp_path / "birds.json"
        path.write_text(json.dumps({"folder": "birds", "sessions": sessions, **keys}))
        return str(path)

    return write


def shown(task: Task) -> list[list[str]]:
    """Return CLASS/FILE of the training images of each session, in order."""
    return [[task.keys[i] for i in session.indices.tolist()] for session in task.split.sessions]


def class_names(task: Task) -> list[list[str]]:
    sessions = task.split.sessions
    return [[task.train.class_names[label] for label in session.classes] for session in sessions]


def test_sessions_class_order_and_shots(write: Callable[..., str]) -> None:
    name = write(title="Garden birds")
    benchmark = find(name)
    assert (benchmark.name, benchmark.title) == (name, "Garden birds")
    assert (benchmark.classes, benchmark.base, benchmark.way, benchmark.shot) == (6, 3, 2, 4)
    assert benchmark.sessions == 3
    assert benchmark.describe_sessions() == "3 base classes, then 2 sessions of up to 2 classes"
    task = load_task(name)
    assert class_names(task) == [["wren", "jay", "robin"], ["owl"], ["kite", "crow"]]
    counts = [
        [sum(key.startswith(f"{bird}/") for key in keys) for bird in birds]
        for keys, birds in zip(shown(task), class_names(task), strict=True)
    ]
    assert counts == [[7, 7, 7], [4], [1, 3]], "an eighth of eight images is held out as test"
    assert all(len(set(keys)) == len(keys) for keys in shown(task))
    assert len(task.test) == 6
    assert set(task.train.class_names) == {name for names in class_names(task) for name in names}
    assert re.fullmatch(r"draw 0: 3 base, then 1, 2, sessions [0-9a-f]{8}", task.split.name)


def test_draws_change_the_drawn_images_alone(write: Callable[..., str]) -> None:
    name = write([*SESSIONS, {"images": ["heron/01.png", "heron/02.png"]}])
    first, again, second = load_task(name), load_task(name, draw=0), load_task(name, draw=1)
    assert shown(first) == shown(again)
    assert shown(first)[0] == shown(second)[0], "the base session shows all images"
    assert shown(first)[1] != shown(second)[1]
    assert shown(first)[3] == shown(second)[3] == ["heron/01.png", "heron/02.png"]
    assert second.split.name == first.split.name.replace("draw 0", "draw 1")


def test_a_class_keeps_its_shots_in_another_order(write: Callable[..., str]) -> None:
    first = load_task(write())
    swapped = load_task(write([SESSIONS[0], SESSIONS[2], SESSIONS[1]]))
    assert shown(swapped)[1:] == [shown(first)[2], shown(first)[1]]
    assert swapped.split.name != first.split.name, "the name tells splits apart"


def test_images_of_ones_own(write: Callable[..., str], birds: Path) -> None:
    (birds.parent / "new.txt").write_text("train/owl/07.png\n\nowl/00.png\nkite/03.png\n")
    name = write([{"images": ["jay/05.png", "wren/00.png", "jay/01.png"]}, {"images": "new.txt"}])
    task = load_task(name)
    assert class_names(task) == [["jay", "wren"], ["owl", "kite"]], "by their first images"
    assert shown(task)[0] == ["jay/05.png", "wren/00.png", "jay/01.png"]
    assert shown(task)[1] == ["owl/07.png", "owl/00.png", "kite/03.png"]
    assert set(task.test_files).isdisjoint(key for keys in shown(task) for key in keys)
    assert task.split.name.startswith("named images: 2 base, then 2, sessions ")
    with pytest.raises(SplitError, match="draws no images"):
        load_task(name, draw=1)
    ordered = write([{"classes": ["wren", "jay"], "images": ["jay/05.png", "wren/00.png"]}])
    assert class_names(load_task(ordered)) == [["wren", "jay"]]


def test_test_images_of_ones_own(write: Callable[..., str], birds: Path) -> None:
    listed = [f"{bird}/0{index}.png" for bird in BIRDS for index in (2, 6)]
    (birds.parent / "test.txt").write_text("\n".join(listed))
    for test in (listed, "test.txt"):
        task = load_task(write(test=test))
        assert sorted(task.test_files) == sorted(key for key in listed if "heron" not in key)
        assert len(shown(task)[0]) == 18


def test_the_hash_is_also_of_the_lists_that_a_file_names(
    write: Callable[..., str], birds: Path, tmp_path: Path
) -> None:
    def digest(first: str, second: str, tested: str) -> str:
        for file, text in (("1.txt", first), ("2.txt", second), ("test.txt", tested)):
            (birds.parent / file).write_text(text)
        sessions = [{"images": "1.txt"}, {"images": "2.txt"}]
        return find(write(sessions, test="test.txt")).source["sha256"]

    tested = "jay/00.png\nowl/00.png\nkite/00.png\n"
    one, two, three = "jay/05.png\n", "owl/01.png\n", "kite/03.png\n"
    digests = {
        digest(one, two + three, tested),
        digest(one, three + two, tested),
        digest(one + two, three, tested),
        digest(one, two + three, tested + "jay/01.png\n"),
    }
    assert len(digests) == 4
    assert digest(one, two + three, tested) in digests
    source = find(write()).source
    classes = load_task(str(tmp_path / "birds.json")).train.class_names
    images = listing_hash(*list_train_test(birds, classes=classes))
    whole = (tmp_path / "birds.json").read_bytes() + images.encode()
    assert source["sha256"] == hashlib.sha256(whole).hexdigest(), "without lists: file and images"


@pytest.mark.parametrize("part", ["test", "val"])
def test_folders_with_train_and_test(
    part: str, write: Callable[..., str], birds: Path, photos: Callable[..., Path]
) -> None:
    shutil.move(birds, birds.with_name("all"))
    birds.mkdir()
    shutil.move(birds.with_name("all"), birds / "train")
    photos(f"birds/{part}", dict.fromkeys(BIRDS, 2))
    for name in (write(), f"folder:{birds}"):
        task = load_task(name)
        classes = len(task.train.class_names)
        assert (len(task.train), len(task.test)) == (8 * classes, 2 * classes)
    with pytest.raises(ConfigError, match=rf"'test' names test images, and .*{part} holds some"):
        find(write(test=["owl/00.png"]))
    shutil.rmtree(birds / part / "owl")
    with pytest.raises(FewmoreError, match=rf"{part} lacks the classes owl: train and {part} must"):
        find(f"folder:{birds}")


def test_test_goes_before_val(birds: Path, photos: Callable[..., Path], tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    shutil.copytree(birds, parts / "train")
    photos("parts/val", dict.fromkeys(BIRDS, 3))
    photos("parts/test", dict.fromkeys(BIRDS, 2))
    assert len(load_task(f"folder:{parts}").test) == 14


def test_the_source_changes_with_the_images(birds: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    session = {"sessions": [{"classes": ["owl", "crow"]}]}
    (tmp_path / "own.json").write_text(json.dumps({"folder": str(birds), **session}))
    other.write_text(json.dumps({"benchmark": f"folder:{birds}", **session}))
    names = (f"folder:{birds}", str(tmp_path / "own.json"), str(other))

    def hashes() -> list[str]:
        return [(find(name).source or {})["sha256"] for name in names]

    before = hashes()
    assert hashes() == before
    assert (find(names[0]).source or {})["file"] == str(birds)
    min((birds / "owl").iterdir()).unlink()
    assert all(new != old for new, old in zip(hashes(), before, strict=True))


def test_other_sessions_of_a_named_benchmark(birds: Path, tmp_path: Path) -> None:
    path = tmp_path / "few.json"
    inner = f"folder:{birds}"

    def write(*sessions: dict[str, Any], **keys: object) -> str:
        path.write_text(json.dumps({"benchmark": inner, "sessions": sessions, **keys}))
        return str(path)

    name = write({"classes": ["owl", "crow", "jay"]}, {"classes": ["kite"], "shots": 2})
    benchmark = find(name)
    assert (benchmark.base, benchmark.way, benchmark.shot, benchmark.classes) == (3, 1, 2, 4)
    assert benchmark.transform == find(inner).transform
    task = load_task(name)
    assert class_names(task) == [["owl", "crow", "jay"], ["kite"]]
    assert len(task.split.sessions[1].indices) == 2
    with pytest.raises(UnknownName, match="no class is named 'nothing'"):
        load_task(write({"classes": ["nothing"]}))
    with pytest.raises(ConfigError, match="session 0: name its classes too"):
        find(write({"images": ["owl/01.png"]}))
    with pytest.raises(ConfigError, match="'test' is for a folder"):
        find(write({"classes": ["owl"]}, test=["owl/01.png"]))
    inner = write({"classes": ["owl"]})
    inner = str(path.rename(tmp_path / "inner.json"))
    with pytest.raises(ConfigError, match="has sessions of its own"):
        find(write({"classes": ["owl"]}))


WRONG: list[tuple[object, type[FewmoreError], str]] = [
    ([{"classes": ["wren", "yay"]}], UnknownName, "is named 'yay': did you mean jay"),
    ([{"classes": ["wren", "jay", "wren"]}], SplitError, "session 0: class 'wren' is named twice"),
    (
        [{"classes": ["wren", "jay"]}, {"classes": ["jay"], "shots": 1}],
        SplitError,
        "session 1: class 'jay' came in session 0 already",
    ),
    (
        [{"classes": ["wren"]}, {"classes": ["owl"], "shots": 9}],
        SplitError,
        "session 1: class 'owl' has 7 training images, and 9 are needed",
    ),
    ([{"classes": ["wren"], "shots": 0}], SplitError, "shots must be at least 1, not 0"),
    ([{"classes": ["wren"], "shots": {"owl": 2}}], UnknownName, "no class of the session is named"),
    ([{"classes": ["wren"], "shots": "five"}], ConfigError, "'shots' must be a number"),
    ([{"classes": ["wren"], "shots": True}], ConfigError, "'shots' must be a number"),
    ([{"classes": "wren"}], ConfigError, "'classes' must be a list of names"),
    ([{"classes": []}], SplitError, "session 0 has no classes"),
    ([{"clases": ["wren"]}], UnknownName, "no key is named 'clases': did you mean classes"),
    (["wren"], ConfigError, "session 0 must be an object"),
    ([], ConfigError, "'sessions' must be a list, the base session first"),
    ([{"images": []}], ConfigError, "'images' names no image"),
    ([{"images": ["wren/99.png"]}], SplitError, "image wren/99.png is not among the 7 training"),
    ([{"images": ["wren/01.png", "wren/01.png"]}], SplitError, "wren/01.png is named 2 times"),
    ([{"images": ["01.png"]}], ConfigError, "image 01.png must be named as CLASS/FILE"),
    ([{"images": "nowhere.txt"}], MissingData, "there is no file .*nowhere.txt"),
    ([{"images": 3}], ConfigError, "give a list of images, or a text file"),
    (
        [{"images": ["wren/01.png"], "shots": 1}],
        SplitError,
        "names its images, so that no shots are drawn",
    ),
    (
        [{"images": ["wren/01.png", "jay/01.png"], "classes": ["wren"]}],
        SplitError,
        "the classes of its images differ in jay",
    ),
    (
        [{"images": [f"wren/0{index}.png" for index in range(8)]}],
        FewmoreError,
        "none is left to test with",
    ),
]


@pytest.mark.parametrize(("sessions", "error", "sentence"), WRONG)
def test_wrong_sessions_are_refused_before_images_are_read(
    sessions: object, error: type[FewmoreError], sentence: str, write: Callable[..., str]
) -> None:
    with pytest.raises(error, match=sentence):
        find(write(sessions))


@pytest.mark.parametrize(
    ("keys", "error", "sentence"),
    [
        ({"folder": 3}, ConfigError, "'folder' must be a text, not 3"),
        ({"folder": "nowhere"}, MissingData, "nowhere is not there"),
        ({"benchmark": "glyphs"}, ConfigError, "by one of 'folder' and 'benchmark'"),
        ({"titel": "x"}, UnknownName, "no key is named 'titel': did you mean title"),
        ({"test": ["owl/99.png"]}, MissingData, "test image owl/99.png is not among the 56 images"),
        ({"test": ["owl/01.png"]}, SplitError, "class 'wren' has no test image"),
        ({"test": "nowhere.txt"}, MissingData, "there is no file .*nowhere.txt"),
    ],
)
def test_wrong_files_are_refused(
    keys: dict[str, object], error: type[FewmoreError], sentence: str, write: Callable[..., str]
) -> None:
    with pytest.raises(error, match=sentence):
        find(write(**keys))


def test_an_image_in_train_and_test_is_refused(write: Callable[..., str], birds: Path) -> None:
    with pytest.raises(SplitError, match=r"image owl/01.png is named to train and to test with"):
        find(write([{"images": ["owl/01.png", "owl/02.png"]}], test=["owl/01.png"]))
    shutil.copy(birds / "owl" / "01.png", birds / "owl" / "copy.png")
    with pytest.raises(FewmoreError, match="the same image in train and test"):
        find(write([{"images": ["owl/01.png"]}], test=["owl/copy.png"]))


def test_what_is_no_benchmark_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(MissingData, match=r"a\.json cannot be read \(No such file"):
        find(str(path))
    for text, sentence in (("{", "is not JSON"), ("[]", "must hold one object")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=sentence):
            find(str(path))


def test_options_of_other_splits_are_refused(write: Callable[..., str]) -> None:
    for option in ({"base": 3}, {"way": 1}, {"shot": 1}, {"class_order": 0}):
        with pytest.raises(SplitError, match="are fixed: leave out --base, --way, --shot"):
            load_task(write(), **option)


def test_plans_by_position_and_their_errors(
    tiny_images: Callable[..., Any],
) -> None:
    from fewmore.data.splits import planned_split

    train = tiny_images(4, 6)
    first = train.class_names[0]
    plan = (SessionPlan((first,)), SessionPlan(images=(6, 7)))
    split = planned_split("mine", train, plan)
    assert split.sessions[1].indices.tolist() == [6, 7]
    assert split.sessions[1].classes == (int(train.labels[6]),)
    with pytest.raises(SplitError, match="there is no training image 24"):
        planned_split("mine", train, (SessionPlan(images=(24,)),))
    with pytest.raises(SplitError, match="has no sessions"):
        planned_split("mine", train, ())


def test_a_file_is_read_without_pytorch(write: Callable[..., str]) -> None:
    program = (
        "import sys; from fewmore.data.benchmarks import find; "
        f"find({write()!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
