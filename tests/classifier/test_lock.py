"""The lock of a model file: it leaves nothing behind, and no change is lost by that."""

import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fewmore.classifier.model_file import locked
from fewmore.errors import ModelFileError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it keeps a file that is open")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with locked(tmp_path / "a.fewmore"):
        assert [path.name for path in tmp_path.iterdir()] == ["a.fewmore.lock"]
    assert not list(tmp_path.iterdir())


def test_no_change_is_lost_where_locks_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "count"
    path.write_text("0")

    def add(_: int) -> None:
        with locked(path, timeout=60):
            path.write_text(str(int(path.read_text()) + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(200)))
    assert path.read_text() == "200"
    assert [file.name for file in tmp_path.iterdir()] == ["count"]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks_stops_no_change(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(tmp_path / "a.fewmore", timeout=0):
        pass
    assert not list(tmp_path.iterdir())
    (record,) = caplog.records
    assert "cannot be locked" in record.message


def test_a_lock_of_another_one_is_respected(tmp_path: Path) -> None:
    path = tmp_path / "a.fewmore"
    with (
        locked(path),
        pytest.raises(ModelFileError, match="another process is writing"),
        locked(path, timeout=0),
    ):
        pass
