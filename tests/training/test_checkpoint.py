"""Test states in files: what is written is read back, and damaged files are refused."""

import errno
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from fewmore.errors import CheckpointError
from fewmore.io import write_bytes
from fewmore.training import checkpoint
from fewmore.training.checkpoint import Checkpoint, State, read_state, write_state

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def same(one: Any, other: Any) -> bool:
    """Say whether two states are equal in values, types and order of keys."""
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and torch.equal(one, other)
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and all(same(one[key], other[key]) for key in one)
        )
    return type(one) is type(other) and bool(one == other)


def tensor(dtype: torch.dtype, shape: list[int]) -> Tensor:
    """Draw a tensor of a type and shape."""
    generator = torch.Generator().manual_seed(len(shape))
    return (torch.rand(shape, generator=generator) * 200).to(dtype)


def some_state() -> State:
    """Return a state with all kinds of values."""
    return {
        "tensors": {str(dtype): tensor(dtype, [3, 2]) for dtype in DTYPES},
        "none": torch.empty(0, 5),
        "scalar": torch.tensor(2.5),
        "numbers": {"int": 3, "float": 0.1, "large": 2**60, "yes": True, "nothing": None},
        "text": "Größe – 大きさ",
        "lists": [1, [2.5, "three"], {"four": 5}],
        "empty": {},
    }


def test_a_state_is_read_back(tmp_path: Path) -> None:
    write_state(tmp_path / "state", some_state())
    assert same(read_state(tmp_path / "state"), some_state())


def test_an_empty_state_is_read_back(tmp_path: Path) -> None:
    write_state(tmp_path / "state", {})
    assert read_state(tmp_path / "state") == {}


names = st.sampled_from(["a", "b", "a/b", "/", "", "tensor", "dict", "json", "__metadata__", "ä"])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.builds(tensor, st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)),
)
states = st.dictionaries(
    names,
    st.recursive(leaves, lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=8),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(state=states)
def test_any_state_is_read_back(tmp_path_factory: pytest.TempPathFactory, state: State) -> None:
    path = tmp_path_factory.getbasetemp() / "any-state"
    write_state(path, state)
    assert same(read_state(path), state)


def test_numbers_survive_bit_for_bit(tmp_path: Path) -> None:
    odd = torch.tensor([0.1, -0.0, float("inf"), float("nan"), 1e-45])
    write_state(tmp_path / "state", {"odd": odd, "seconds": 0.1 + 0.2})
    back = read_state(tmp_path / "state")
    assert torch.equal(back["odd"].view(torch.int32), odd.view(torch.int32))
    assert back["seconds"] == 0.1 + 0.2


def test_layout_and_gradients_do_not_matter(tmp_path: Path) -> None:
    maps = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    write_state(tmp_path / "state", {"maps": maps, "transposed": maps[0, 0].T})
    back = read_state(tmp_path / "state")
    assert torch.equal(back["maps"], maps.detach())
    assert torch.equal(back["transposed"], maps[0, 0].T.detach())
    assert not back["maps"].requires_grad


def test_a_state_does_not_depend_on_the_file_once_it_is_read(tmp_path: Path) -> None:
    write_state(tmp_path / "state", {"t": torch.ones(1000)})
    back = read_state(tmp_path / "state")
    (tmp_path / "state").write_bytes(b"\0" * 8000)
    assert torch.equal(back["t"], torch.ones(1000))


def test_tensors_may_share_memory(tmp_path: Path) -> None:
    matrix = torch.arange(6.0).view(2, 3)
    state = {"matrix": matrix, "again": matrix, "first row": matrix[0]}
    write_state(tmp_path / "state", state)
    assert same(read_state(tmp_path / "state"), state)


# Files that cannot be read


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no file .*nothing"):
        read_state(tmp_path / "nothing")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_state(path, some_state())
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"state .*damaged.*delete"):
            read_state(path)


@pytest.mark.parametrize(
    "content",
    [b"x", b"not a state at all", b"\xff" * 100, b"\0" * 100, b"{}", b"\x02\0\0\0\0\0\0\0{}"],
)
def test_bytes_of_another_kind_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        read_state(tmp_path / "state")


@pytest.mark.parametrize(
    "tree",
    [
        None,
        "no json",
        "3",
        "null",
        "[]",
        '"x"',
        "{}",
        '{"tensor": "gone"}',
        '{"tensor": []}',
        '{"dict": 3}',
        '{"dict": {"a": 1}}',
    ],
)
def test_a_safetensors_file_of_another_program_is_refused(tmp_path: Path, tree: str | None) -> None:
    save_file(
        {"weight": torch.zeros(2)},
        tmp_path / "state",
        metadata=None if tree is None else {"fewmore": tree},
    )
    with pytest.raises(CheckpointError, match="damaged"):
        read_state(tmp_path / "state")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="damaged"):
        read_state(tmp_path)


# Atomic writes


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    write_state(path, {"t": torch.ones(3)})

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    for function in ("replace", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, fail)
            with pytest.raises(OSError, match="no space left"):
                write_state(path, {"t": torch.zeros(3)})
        assert [p.name for p in tmp_path.iterdir()] == ["state"]
        assert torch.equal(read_state(path)["t"], torch.ones(3))


def test_a_file_is_flushed_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    fsync = os.fsync
    replace = os.replace

    def logged_fsync(descriptor: int) -> None:
        calls.append("fsync")
        fsync(descriptor)

    def logged_replace(source: Path, target: Path) -> None:
        calls.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    write_bytes(tmp_path / "file", b"content")
    of_the_folder = ["fsync"] if os.name == "posix" else []
    assert calls == ["fsync", "replace", *of_the_folder]
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a folder cannot be opened")
@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO, errno.ENOTSUP, errno.EBADF])
def test_a_folder_that_cannot_be_flushed_fails_no_change(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def of_files_alone(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files_alone)
    write_bytes(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.skipif(not hasattr(os, "fchmod"), reason="the system has no modes")
def test_a_mode_that_cannot_be_set_fails_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchmod", refuse)
    for content in (b"old", b"new"):
        write_bytes(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_value_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    write_state(tmp_path / "state", {"a": 1})
    with pytest.raises(TypeError):
        write_state(tmp_path / "state", {"a": object()})
    assert read_state(tmp_path / "state") == {"a": 1}


def test_threads_may_write_the_same_file(tmp_path: Path) -> None:
    """Write from four threads: two runs of one seed may save the same stage at once."""
    path = tmp_path / "state"
    errors = []
    blob = torch.zeros(20_000)

    def write(number: int) -> None:
        try:
            for _ in range(30):
                write_state(path, {"number": number, "blob": blob})
                assert read_state(path)["number"] in range(4)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


# Stages


def test_a_checkpoint_holds_the_last_state_of_each_stage(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    written = Checkpoint(path)
    assert written.load("pretrain") is None
    written.save("pretrain", {"done": 1, "weight": torch.ones(2)})
    written.save("pretrain", {"done": 2, "weight": torch.zeros(2)})
    written.save("session 1", {"done": 5})
    read = Checkpoint(path)
    assert same(read.load("pretrain"), {"done": 2, "weight": torch.zeros(2)})
    assert read.load("session 1") == {"done": 5}
    assert read.load("session 2") is None


def test_replace_drops_all_other_stages(tmp_path: Path) -> None:
    saved = Checkpoint(tmp_path / "checkpoint")
    saved.save("pretrain", {"done": 2})
    saved.replace("session", {"method": {}})
    assert list(saved.stages) == ["session"]
    assert Checkpoint(tmp_path / "checkpoint").stages == {"session": {"method": {}}}


def test_it_is_due_after_some_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now)
    saved = Checkpoint(tmp_path / "checkpoint", every=20)
    assert not saved.due()
    now = 119.9
    assert not saved.due()
    now = 120.0
    assert saved.due()
    saved.save("stage", {})
    assert not saved.due()
    assert Checkpoint(tmp_path / "checkpoint", every=0).due()


def test_a_damaged_checkpoint_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="delete"):
        Checkpoint(tmp_path / "checkpoint")


def test_half_written_files_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(path).save("stage", {"done": 1})
    (tmp_path / ".checkpoint.123-456").write_bytes(b"half")
    (tmp_path / "other").write_bytes(b"not ours")
    assert Checkpoint(path).load("stage") == {"done": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint", "other"]
