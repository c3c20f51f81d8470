"""Test that a record of the journal is whole or absent after any crash."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewmore.errors import ModelFileError
from fewmore.service.journal import Journal, Record


def heads(path: Path) -> list[int]:
    journal = Journal.open(path)
    journal.close()
    return [record.head["n"] for record in journal.records]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a journal with four records."""
    path = tmp_path / "a.journal"
    journal = Journal.create(path, Record({"n": 0}))
    for number in range(1, 4):
        journal.append(Record({"n": number, "name": "ö ☃ </b>"}, bytes(range(number))))
    journal.close()
    return path


def test_records_come_back(path: Path):
    journal = Journal.open(path)
    assert [record.head["n"] for record in journal.records] == [0, 1, 2, 3]
    assert journal.records[3].body == b"\x00\x01\x02"
    assert journal.size == path.stat().st_size
    journal.append(Record({"n": 4}))
    journal.close()
    assert heads(path) == [0, 1, 2, 3, 4]


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 400), junk=st.binary(max_size=40))
def test_a_torn_end_is_dropped(tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes):
    path = tmp_path_factory.mktemp("torn") / "a.journal"
    journal = Journal.create(path, Record({"n": 0}))
    ends = [journal.size]
    for number in range(1, 5):
        journal.append(Record({"n": number}, b"x" * 20))
        ends.append(journal.size)
    journal.close()
    complete = path.read_bytes()
    torn = complete[:cut] + (junk if cut < ends[-1] else b"")
    whole = [number for number, end in enumerate(ends) if torn[:end] == complete[:end]]
    path.write_bytes(torn)
    assert heads(path) == whole
    assert path.stat().st_size == (ends[whole[-1]] if whole else 0)
    assert heads(path) == whole


def test_damage_in_the_middle_is_refused(path: Path):
    data = bytearray(path.read_bytes())
    data[70] ^= 1  # in the second record
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="damaged"):
        Journal.open(path)


def test_a_failed_append_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    journal = Journal.open(path)
    real = os.fsync
    size = path.stat().st_size
    failures = iter([OSError(28, "No space left on device")])

    def fsync(number: int) -> None:
        if error := next(failures, None):
            raise error
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        journal.append(Record({"n": 4}))
    assert path.stat().st_size == size
    assert not journal.broken
    journal.append(Record({"n": 5}))
    journal.close()
    assert heads(path) == [0, 1, 2, 3, 5]


def test_after_an_error_that_cannot_be_reverted_nothing_more_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    journal = Journal.open(path)

    def fsync(number: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        journal.append(Record({"n": 4}))
    assert journal.broken
    with pytest.raises(OSError, match="not certain"):
        journal.append(Record({"n": 5}))
    journal.close()
