"""Model files: read back bit for bit; whatever is wrong with one is said in a sentence."""

import errno
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save

from fewmore.classifier.calibration import Calibration
from fewmore.classifier.class_set import ClassSet
from fewmore.classifier.classes import KnownClass, SupportSet
from fewmore.classifier.model import Model
from fewmore.classifier.model_file import locked, read, write
from fewmore.classifier.whitening import Whitening
from fewmore.data.augment import Transform
from fewmore.errors import ModelFileError
from fewmore.nn.adapter import Adapter
from fewmore.nn.backbones import build

DAMAGED = r"is damaged, or not a model file"


def make_classes(count: int, dim: int = 64) -> list[KnownClass]:
    generator = torch.Generator().manual_seed(count)
    return [
        KnownClass(
            f"class {i} – ä",
            torch.randn(dim, generator=generator, dtype=torch.float64),
            i + 1,
            frozenset({i, -i - 2**62}),
        )
        for i in range(count)
    ]


def make_model(
    adapter: bool = False,
    projected: bool = False,
    classes: int = 3,
    whitened: bool = False,
    own_classes: int = 0,
) -> Model:
    backbone = build("resnet8", seed=3)
    class_set = ClassSet.from_training(make_classes(classes))
    class_set = class_set.learn(
        [
            SupportSet("new", torch.randn(2, 64), (7, 8)),
            SupportSet("class 1 – ä", torch.randn(1, 64)),
        ]
    )
    class_set = class_set.forget(["class 0 – ä"]).rename("new", "newer")
    width = 16 if projected else 64
    return Model(
        backbone="resnet8",
        transform=Transform(32, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2)),
        weights=backbone.state_dict(),
        dim=64,
        class_set=class_set,
        calibration=Calibration(
            temperature=0.1 + 0.2, threshold=0.5, classes=3, growth=0.1, held_out=12
        ),
        variance=1.25,
        whitening=make_whitening(own_classes) if whitened else None,
        adapter=Adapter(width, generator=torch.Generator().manual_seed(0)).state_dict()
        if adapter
        else None,
        projection=torch.randn(64, 16) if projected else None,
        notes=("a note", "größer"),
        origin={"fewmore": "0.1.0", "weights": "imagenet", "seed": 0},
    )


def make_whitening(own_classes: int) -> Whitening:
    """Return a whitening of 64 features, some of which are probabilities of own classes."""
    given = 64 - own_classes
    whitening = Whitening(torch.randn(given), torch.randn(given, 5), 0.5)
    if not own_classes:
        return whitening
    return replace(whitening, classifier=torch.randn(own_classes, given + 1), share=0.25)


def is_same(one: Model, other: Model) -> bool:
    """Compare two models bit for bit."""

    def classes_equal(a: KnownClass, b: KnownClass) -> bool:
        return (a.name, a.count, a.hashes) == (b.name, b.count, b.hashes) and torch.equal(
            a.feature_sum, b.feature_sum
        )

    def dicts_equal(a: dict[str, torch.Tensor] | None, b: dict[str, torch.Tensor] | None) -> bool:
        if a is None or b is None:
            return a is b
        return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)

    a, b = one.class_set, other.class_set
    return (
        all(map(classes_equal, a.classes, b.classes))
        and (a.names, a.history, a.version) == (b.names, b.history, b.version)
        and [r.drop for r in a.undo_steps] == [r.drop for r in b.undo_steps]
        and all(
            i == j and classes_equal(x, y)
            for p, q in zip(a.undo_steps, b.undo_steps, strict=True)
            for (i, x), (j, y) in zip(p.restore, q.restore, strict=True)
        )
        and dicts_equal(one.weights, other.weights)
        and dicts_equal(one.adapter, other.adapter)
        and dicts_equal(
            one.whitening and one.whitening.tensors(), other.whitening and other.whitening.tensors()
        )
        and (one.whitening and (one.whitening.power, one.whitening.share))
        == (other.whitening and (other.whitening.power, other.whitening.share))
        and (one.projection is None) == (other.projection is None)
        and (one.projection is None or torch.equal(one.projection, other.projection))
        and all(
            getattr(one, key) == getattr(other, key)
            for key in (
                "backbone",
                "transform",
                "dim",
                "calibration",
                "variance",
                "notes",
                "origin",
            )
        )
    )


# Round trip


@pytest.mark.parametrize("parts", [(), ("adapter",), ("adapter", "projected"), ("whitened",)])
def test_a_model_is_read_back_bit_for_bit(tmp_path: Path, parts: tuple[str, ...]):
    model = make_model(**dict.fromkeys(parts, True))
    write(tmp_path / "a.fewmore", model)
    back = read(tmp_path / "a.fewmore")
    assert is_same(back, model)
    write(tmp_path / "b.fewmore", back)
    assert (tmp_path / "a.fewmore").read_bytes() == (tmp_path / "b.fewmore").read_bytes()
    assert [p.name for p in tmp_path.iterdir() if p.name[0] == "."] == []


def test_the_backbones_own_classes_are_read_back(tmp_path: Path):
    model = make_model(whitened=True, own_classes=10)
    write(tmp_path / "a.fewmore", model)
    assert is_same(read(tmp_path / "a.fewmore"), model)


def test_a_model_without_classes_is_read_back(tmp_path: Path):
    model = make_model()
    class_set = model.class_set.forget(model.class_set.names)
    bare = replace(class_set, undo_steps=())
    for one in (class_set, bare):
        write(tmp_path / "a.fewmore", replace(model, class_set=one))
        assert read(tmp_path / "a.fewmore").class_set.names == ()
    assert read(tmp_path / "a.fewmore").dim == 64


def test_it_is_a_safetensors_file_without_pickles(tmp_path: Path):
    write(tmp_path / "a.fewmore", make_model())
    with safe_open(tmp_path / "a.fewmore", framework="pt") as file:
        assert json.loads(file.metadata()["fewmore"])["format"] == 5
        assert "backbone/conv1.weight" in file.keys()  # noqa: SIM118
    assert b"pickle" not in (tmp_path / "a.fewmore").read_bytes()


def test_a_name_that_looks_like_an_empty_checksum_does_no_harm(tmp_path: Path):
    model = make_model()
    model = replace(model, class_set=model.class_set.rename("newer", "0" * 64))
    write(tmp_path / "a.fewmore", model)
    assert is_same(read(tmp_path / "a.fewmore"), model)


def test_where_it_cannot_be_written(tmp_path: Path):
    with pytest.raises(ModelFileError, match=r"nowhere/a.fewmore cannot be written"):
        write(tmp_path / "nowhere" / "a.fewmore", make_model())
    with pytest.raises(ModelFileError, match="cannot be written"):
        write(tmp_path, make_model())


def test_a_full_disk_takes_room_and_not_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a.fewmore"
    write(path, make_model())
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelFileError, match=r"make room for \d+\.\d MB; what was there is as it"):
        write(path, make_model())
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.fewmore"]


def test_stale_temporary_files_are_removed(tmp_path: Path):
    old, young, other = (
        tmp_path / ".a.fewmore.1-2",
        tmp_path / ".a.fewmore.3-4",
        tmp_path / ".b.fewmore.1-2",
    )
    for path in (old, young, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, 0))
    write(tmp_path / "a.fewmore", make_model())
    assert not old.exists()
    assert young.exists()
    assert other.exists()


def test_stale_temporary_files_beside_a_linked_model_are_removed(tmp_path: Path):
    (tmp_path / "models").mkdir()
    (tmp_path / "a.fewmore").symlink_to(tmp_path / "models" / "b.fewmore")
    stale = tmp_path / "models" / ".b.fewmore.1-2"
    stale.write_bytes(b"half")
    os.utime(stale, (0, 0))
    write(tmp_path / "a.fewmore", make_model())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.fewmore", "b.fewmore", "models"]


def test_a_temporary_file_of_another_save_may_be_moved_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gone = tmp_path / ".a.fewmore.1-2"
    monkeypatch.setattr(Path, "glob", lambda *_: iter([gone]))
    write(tmp_path / "a.fewmore", make_model())
    assert (tmp_path / "a.fewmore").exists()


# What is wrong with a file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "whole.fewmore"
    write(path, make_model(adapter=True, projected=True, whitened=True))
    return path.read_bytes()


def assert_refused(path: Path, content: bytes, match: str = DAMAGED) -> None:
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=match) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))


def test_no_file_and_no_model_file(tmp_path: Path):
    with pytest.raises(ModelFileError, match=r"there is no model file .*none.fewmore"):
        read(tmp_path / "none.fewmore")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read(tmp_path)


def test_every_truncation_is_refused(tmp_path: Path, whole: bytes):
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for length in {
        *range(20),
        *range(20, header, header // 20),
        header,
        *range(header, len(whole), len(whole) // 20),
        len(whole) - 1,
    }:
        assert_refused(tmp_path / "a.fewmore", whole[:length])
    assert_refused(tmp_path / "a.fewmore", whole + b"\0")


def test_every_flipped_bit_is_noticed(tmp_path: Path, whole: bytes):
    draw = random.Random(0)
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    places = [
        *range(8),
        *(draw.randrange(8, header) for _ in range(120)),
        *(draw.randrange(header, len(whole)) for _ in range(30)),
    ]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.randrange(8)
        assert_refused(
            tmp_path / "a.fewmore", bytes(flipped), match="damaged|has format|cannot be used"
        )


@pytest.mark.soak
def test_every_flipped_bit_of_the_header_is_noticed(tmp_path: Path, whole: bytes):
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for place in range(header):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        assert_refused(
            tmp_path / "a.fewmore", bytes(flipped), match="damaged|has format|cannot be used"
        )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"no model at all",
        b"\xff" * 100,
        b"\0" * 100,
        b"\x02\0\0\0\0\0\0\0{}",
        b"\x02\0\0\0\0\0\0\0[]",
    ],
)
def test_bytes_of_another_kind_are_refused(tmp_path: Path, content: bytes):
    assert_refused(tmp_path / "a.fewmore", content)


def test_a_header_of_an_absurd_length(tmp_path: Path):
    for claimed in (2**63, 2**40, 10**8 + 1):
        assert_refused(
            tmp_path / "a.fewmore", struct.pack("<Q", claimed) + b"{}", match="its header claims"
        )


def test_a_header_of_deep_brackets(tmp_path: Path):
    deep = b"[" * 200_000
    assert_refused(tmp_path / "a.fewmore", struct.pack("<Q", len(deep)) + deep)


def rewritten(
    whole: bytes, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]
) -> bytes:
    """Change a file as someone who knows the format would, with a new checksum."""
    header = json.loads(whole[8 : 8 + struct.unpack("<Q", whole[:8])[0]])
    about, tensors = json.loads(header["__metadata__"]["fewmore"]), load(whole)
    text = change(about, tensors)
    if not isinstance(text, str):
        about["sha256"] = "0" * 64
        text = json.dumps(about)
    data = save(tensors, {"fewmore": text})
    place = data.find(b"0" * 64)
    return (
        data
        if place < 0
        else data[:place] + hashlib.sha256(data).hexdigest().encode() + data[place + 64 :]
    )


def test_the_rewritten_file_itself_is_sound(tmp_path: Path, whole: bytes):
    (tmp_path / "a.fewmore").write_bytes(rewritten(whole, lambda about, tensors: None))
    assert read(tmp_path / "a.fewmore").class_set.names


def test_a_newer_format_says_what_to_do(tmp_path: Path, whole: bytes):
    content = rewritten(whole, lambda about, tensors: about.update(format=6))
    assert_refused(
        tmp_path / "a.fewmore",
        content,
        match=r"has format 6, .* pip install -U fewmore",
    )


HOSTILE: dict[str, Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]] = {
    "no such backbone": lambda about, tensors: about.update(backbone="../../etc/passwd"),
    "another backbone": lambda about, tensors: about.update(backbone="resnet20"),
    "backbone of no text": lambda about, tensors: about.update(backbone=["resnet8"]),
    "shape of a weight": lambda about, tensors: tensors.update(
        {"backbone/conv1.weight": torch.zeros(16, 3, 3, 4)}
    ),
    "weight that would broadcast": lambda about, tensors: tensors.update(
        {"backbone/conv1.weight": torch.zeros(1)}
    ),
    "type of a weight": lambda about, tensors: tensors.update(
        {"backbone/conv1.weight": torch.zeros(16, 3, 3, 3, dtype=torch.float16)}
    ),
    "a weight too many": lambda about, tensors: tensors.update({"backbone/more": torch.zeros(1)}),
    "a weight too few": lambda about, tensors: tensors.pop("backbone/conv1.weight"),
    "NaN in a weight": lambda about, tensors: tensors["backbone/conv1.weight"].fill_(float("nan")),
    "infinite sum": lambda about, tensors: tensors["feature_sums"].fill_(float("inf")),
    "NaN in the projection": lambda about, tensors: tensors["projection"].fill_(float("nan")),
    "projection of no width": lambda about, tensors: tensors.update(projection=torch.zeros(64, 0)),
    "projection of one axis": lambda about, tensors: tensors.update(projection=torch.zeros(64)),
    "NaN in the whitening": lambda about, tensors: tensors["whitening/center"].fill_(float("nan")),
    "another number of directions": lambda about, tensors: about.update(whitening=4),
    "whitening of no number": lambda about, tensors: about.update(whitening="5"),
    "a power of no number": lambda about, tensors: about.update(power="0.5"),
    "a power of nothing": lambda about, tensors: about.update(power=0.0),
    "a share above one": lambda about, tensors: about.update(share=1.5),
    "own classes without tensors": lambda about, tensors: about.update(own_classes=3),
    "more own classes than features": lambda about, tensors: about.update(own_classes=64),
    "whitening without tensors": lambda about, tensors: tensors.pop("whitening/damping"),
    "more classes than sums": lambda about, tensors: about["classes"].append(
        {"name": "x", "count": 1, "hashes": 0}
    ),
    "dim": lambda about, tensors: about.update(dim=10**12),
    "dim of no number": lambda about, tensors: about.update(dim=True),
    "heads": lambda about, tensors: about["adapter"].update(heads=10**9),
    "adapter's settings": lambda about, tensors: about["adapter"].update(no_such=1),
    "count of nothing": lambda about, tensors: about["classes"][0].update(count=0),
    "count below nothing": lambda about, tensors: about["classes"][0].update(count=-1),
    "count of half": lambda about, tensors: about["classes"][0].update(count=1.5),
    "hashes below nothing": lambda about, tensors: about["classes"][0].update(hashes=-5),
    "hashes beyond number": lambda about, tensors: about["classes"][0].update(hashes=10**400),
    "name of no text": lambda about, tensors: about["classes"][0].update(name=3),
    "name of control characters": lambda about, tensors: about["classes"][0].update(
        name="a\x1b[2J"
    ),
    "name not composed": lambda about, tensors: about["classes"][0].update(name="a\u0308"),
    "same name twice": lambda about, tensors: about["classes"][0].update(
        name=about["classes"][1]["name"]
    ),
    "classes of no list": lambda about, tensors: about.update(classes=3),
    "history of nothing": lambda about, tensors: about.update(history=[]),
    "history shorter than its undo_steps": lambda about, tensors: about.update(
        history=about["history"][:1]
    ),
    "history without training": lambda about, tensors: about["history"][0].update(kind="learn"),
    "history that trains twice": lambda about, tensors: about["history"][-1].update(kind="fit"),
    "history of an unknown kind": lambda about, tensors: about["history"][-1].update(kind="dream"),
    "history of other classes": lambda about, tensors: about["history"][0].update(
        classes=["somebody else's"]
    ),
    "history that renames nobody": lambda about, tensors: about["history"][-1].update(
        kind="rename", classes=["nobody", "somebody"]
    ),
    "history that renames three": lambda about, tensors: about["history"][-1].update(
        kind="rename", classes=["a", "b", "c"]
    ),
    "history that forgets nobody": lambda about, tensors: about["history"][-1].update(
        kind="forget", classes=["nobody"]
    ),
    "history that undoing contradicts": lambda about, tensors: about["undo_steps"][-1].update(
        drop=["nobody"]
    ),
    "history of numbers": lambda about, tensors: about.update(history=[1, 2, 3]),
    "restored nowhere": lambda about, tensors: about["undo_steps"][1]["restore"][0].update(at=-1),
    "dropped of no texts": lambda about, tensors: about["undo_steps"][1].update(drop=[1]),
    "temperature of nothing": lambda about, tensors: about["calibration"].update(temperature=0.0),
    "temperature of no number": lambda about, tensors: about["calibration"].update(
        temperature="hot"
    ),
    "threshold of no number": lambda about, tensors: about["calibration"].update(threshold="high"),
    "image size of the moon": lambda about, tensors: about["transform"].update(size=10**9),
    "image size of half a pixel": lambda about, tensors: about["transform"].update(size=1.5),
    "two colours": lambda about, tensors: about["transform"].update(mean=[0.5, 0.5]),
    "std of texts": lambda about, tensors: about["transform"].update(std=["a", "b", "c"]),
    "crop": lambda about, tensors: about["transform"].update(crop="none"),
    "variance": lambda about, tensors: about.update(variance="wide"),
    "notes": lambda about, tensors: about.update(notes=[1]),
    "origin": lambda about, tensors: about.update(origin=[]),
    "version": lambda about, tensors: about.update(version=0),
    "format of no number": lambda about, tensors: about.update(format="1"),
    "no format": lambda about, tensors: about.pop("format"),
    "no JSON": lambda about, tensors: "{",
    "JSON of NaN": lambda about, tensors: '{"format": NaN}',
    "JSON of a list": lambda about, tensors: "[]",
    "JSON of a number": lambda about, tensors: "3",
    "JSON of many digits": lambda about, tensors: '{"format": ' + "9" * 10_000 + "}",
    "JSON of deep brackets": lambda about, tensors: "[" * 200_000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_content_is_refused(tmp_path: Path, whole: bytes, what: str):
    assert_refused(
        tmp_path / "a.fewmore", rewritten(whole, HOSTILE[what]), match="damaged|cannot be used"
    )


def test_a_vast_empty_file_is_refused_unread(tmp_path: Path, whole: bytes):
    """A header promises a terabyte, and a sparse file has it: nothing of it is read."""
    header = json.loads(whole[8 : 8 + struct.unpack("<Q", whole[:8])[0]])
    about = json.loads(header["__metadata__"]["fewmore"])
    about["classes"][0]["hashes"] = 2**37
    header["__metadata__"]["fewmore"] = json.dumps(about)
    start = header["hashes"]["data_offsets"][0]
    header["hashes"].update(shape=[2**37], data_offsets=[start, start + 2**40])
    text = json.dumps(header).encode()
    path = tmp_path / "a.fewmore"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        try:
            file.truncate(8 + len(text) + start + 2**40)
        except OSError:
            pytest.skip("this disk has no sparse files of that size")
    with pytest.raises(ModelFileError, match="damaged"):
        read(path)


def test_parts_of_two_files_do_not_mix(tmp_path: Path, whole: bytes):
    other = make_model(adapter=True, projected=True)
    write(
        tmp_path / "b.fewmore", replace(other, weights={k: v + 1 for k, v in other.weights.items()})
    )
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    second = (tmp_path / "b.fewmore").read_bytes()
    if struct.unpack("<Q", second[:8])[0] + 8 == header:
        assert_refused(tmp_path / "a.fewmore", whole[:header] + second[header:])


# Kills and locks

KILLER = """
import os, random, signal, sys, time
from dataclasses import replace
sys.path.insert(0, {tests!r})
from test_model_file import make_model
from fewmore.classifier.model_file import read, write
path, kills, draw = sys.argv[1], int(sys.argv[2]), random.Random(0)
models = [replace(make_model(), notes=(str(i) * 100_000,)) for i in range(2)]
write(path, models[0])
found = set()
for _ in range(kills):
    child = os.fork()
    while child == 0:
        for model in models:
            write(path, model)
    time.sleep(draw.random() * 0.03)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found.add(read(path).notes[0][0])
print(len(found))
"""


def kill_while_writing(path: Path, kills: int) -> int:
    """Kill processes that only save; the file is always whole. Return the number of contents."""
    command = [
        sys.executable,
        "-c",
        KILLER.format(tests=str(Path(__file__).parent)),
        str(path),
        str(kills),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform == "win32", reason="kills are POSIX's")
def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path: Path):
    assert kill_while_writing(tmp_path / "a.fewmore", 5) >= 1


@pytest.mark.soak
@pytest.mark.skipif(sys.platform == "win32", reason="kills are POSIX's")
def test_two_hundred_kills(tmp_path: Path):
    assert kill_while_writing(tmp_path / "a.fewmore", 200) == 2


HOLDER = """
import sys, time
from fewmore.classifier.model_file import locked
with locked(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.readline()
"""


def test_one_process_waits_for_another(tmp_path: Path):
    path = tmp_path / "a.fewmore"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"locked\n"
        with (
            pytest.raises(
                ModelFileError, match=r"another process is writing .*a.fewmore: try again"
            ),
            locked(path, timeout=0.1),
        ):
            pass
        process.stdin.close()
        process.wait(timeout=20)
    with locked(path, timeout=0.1), pytest.raises(ModelFileError), locked(path, timeout=0):
        pass
    with locked(path, timeout=0):
        pass


def test_a_lock_where_nothing_can_be_written(tmp_path: Path):
    with (
        pytest.raises(ModelFileError, match="the folder must be one that you may write to"),
        locked(tmp_path / "nowhere" / "a.fewmore"),
    ):
        pass
