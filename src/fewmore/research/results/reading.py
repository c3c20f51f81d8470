"""Read results from JSON, and refuse damaged files with all that is wrong in one sentence."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from fewmore.errors import DataError, MissingData
from fewmore.research.results.migration import migrate
from fewmore.research.results.schema import SCHEMA, RunResult, SessionSize


def read(path: Path) -> RunResult:
    """Read a result from a JSON file, or from the result.json of a run folder."""
    file = path / "result.json" if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path.is_dir():
            raise MissingData(
                f"{path} has no result.json: give the folder of a finished run, "
                "or finish this one with --resume"
            ) from None
        raise MissingData(
            f"{path} is not there: give a run folder, "
            "or a result file such as results/cifar100-cec.json"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file} cannot be read as text ({error}): give a run folder or a result file"
        ) from None
    return from_json(text, str(file))


def from_json(text: str, name: str = "the text") -> RunResult:
    """Parse a result; `name` is what messages call it."""
    raw = _parse(text, name)
    parser = _Parser(migrate(raw))
    result = parser.result()
    if parser.problems:
        raise DataError(
            f"{name} is not a sound result: {'; '.join(parser.problems)}; "
            "restore the file, or run again to write it anew"
        )
    return result


def _parse(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object in a text, if it is a result in a schema that this version knows."""
    try:
        raw = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{name} is not JSON ({error}): it is damaged or no result; "
            "run again with --record to write it anew"
        ) from None
    if not isinstance(raw, dict) or "schema" not in raw:
        raise DataError(
            f"{name} is not a result of fewmore: it has no schema number; "
            "give the result.json of a run"
        )
    schema = raw["schema"]
    if not _is_int(schema) or schema < 1:
        raise DataError(
            f"{name} is not a result of fewmore: its schema is {_short(schema)}, "
            "and it must be a whole number from 1"
        )
    if schema > SCHEMA:
        raise DataError(
            f"{name} has schema {schema}, and this version of fewmore knows schemas "
            f"up to {SCHEMA}: upgrade with pip install -U fewmore"
        )
    return raw


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a number that JSON can hold")
    return value


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object, low: float = -1e300, high: float = 1e300) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _is_times(value: object) -> bool:
    return isinstance(value, dict) and all(_is_number(item, 0) for item in value.values())


def _is_size(value: object) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"classes", "test"}
        and all(_is_int(item) and item > 0 for item in value.values())
    )


Check = Callable[[Any], bool]
Kind = tuple[str, Check]  # what a value must be, in words and as a check

_NULL: Kind = ("null", lambda value: value is None)
_PERCENT: Kind = ("a number from 0 to 100", lambda value: _is_number(value, 0, 100))
_PERCENT_OR_NULL: Kind = (
    "a number from 0 to 100, or null",
    lambda value: value is None or _is_number(value, 0, 100),
)
_POINTS_OR_NULL: Kind = (
    "a number from -100 to 100, or null",
    lambda value: value is None or _is_number(value, -100, 100),
)
_NUMBER_OR_NULL: Kind = ("a number or null", lambda value: value is None or _is_number(value))
_SIZES: Kind = ('objects like {"classes": 60, "test": 6000}', _is_size)
_INTS: Kind = ("whole numbers", _is_int)
_INTS_OR_NULL: Kind = (
    "whole numbers or null",
    lambda value: value is None or _is_int(value),
)
_TIMES: Kind = ("an object of seconds by stage", _is_times)
_NOT_NEGATIVE: Kind = ("numbers from 0", lambda value: _is_number(value, 0))
_ROWS: Kind = ("a list of lists", lambda value: isinstance(value, list))
_FROM_KEY = object()  # stands for the value of the key itself


class _Parser:
    """Take the fields out of a JSON object and collect everything that is wrong with them."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.problems: list[str] = []
        names = [field.name for field in fields(RunResult)]
        missing = [name for name in names if name not in raw]
        unknown = sorted(set(raw) - {"schema", *names})
        if missing:
            self.problems.append(f"it lacks {', '.join(missing)}")
        if unknown:
            self.problems.append(f"it has unknown keys {', '.join(map(_short, unknown))}")

    def result(self) -> RunResult:
        """Return the result, which is valid only if there are no problems."""
        problems_before = len(self.problems)
        sessions = self._sessions()
        seeds = self._list("seeds", _INTS)
        if self.raw.get("seeds") == []:
            self.problems.append("seeds is empty, and there must be at least one run")
        shape_known = bool(seeds and sessions) and len(self.problems) == problems_before
        runs = len(seeds) if shape_known else None
        base_session = [_PERCENT_OR_NULL] * len(sessions)
        new_sessions = [_NULL, *[_PERCENT_OR_NULL] * (len(sessions) - 1)]
        series = [_NUMBER_OR_NULL] * len(sessions)
        return RunResult(
            benchmark=self._text("benchmark"),
            method=self._text("method"),
            recipe=self._text("recipe", or_null=True),
            split=self._text("split"),
            command=self._text("command", or_empty=True),
            seeds=seeds,
            draws=self._list("draws", _INTS_OR_NULL, runs),
            commit=self._text("commit", or_null=True),
            date=self._text("date"),
            machine=self._object("machine"),
            settings=self._object("settings"),
            all_settings=self._texts("all_settings"),
            sessions=sessions,
            accuracy=self._table("accuracy", runs, [_PERCENT] * len(sessions)),
            base=self._table("base", runs, base_session),
            novel=self._table("novel", runs, new_sessions),
            harmonic=self._table("harmonic", runs, new_sessions),
            forgetting=self._table("forgetting", runs, [_POINTS_OR_NULL] * (len(sessions) - 1)),
            gacc=self._list("gacc", _PERCENT_OR_NULL, runs),
            seconds=self._list("seconds", _TIMES, runs),
            peak_memory_mb=self._list("peak_memory_mb", _NOT_NEGATIVE, runs),
            extra={
                name: self._table(f"extra.{name}", runs, series, rows)
                for name, rows in self._object("extra").items()
            },
            keeps=self._text("keeps", or_null=True),
        )

    def _refuse(self, key: str, expected: str, value: object) -> None:
        self.problems.append(f"{key} must be {expected}, not {_short(value)}")

    def _text(self, key: str, or_null: bool = False, or_empty: bool = False) -> Any:
        value = self.raw.get(key)
        valid = (isinstance(value, str) and (value or or_empty)) or (or_null and value is None)
        if key in self.raw and not valid:
            self._refuse(key, "a text or null" if or_null else "a text", value)
        return value

    def _object(self, key: str) -> dict[str, Any]:
        value = self.raw.get(key, {})
        if isinstance(value, dict):
            return value
        self._refuse(key, "an object", value)
        return {}

    def _texts(self, key: str) -> dict[str, str]:
        values = self._object(key)
        if wrong := [value for value in values.values() if not isinstance(value, str)]:
            self._refuse(key, "an object of texts", wrong[0])
        return values

    def _list(
        self, key: str, kind: Kind, runs: int | None = None, value: object = _FROM_KEY
    ) -> tuple[Any, ...]:
        """Return the valid items of a list, which has one item a run where `runs` is known."""
        value = self.raw.get(key, _FROM_KEY) if value is _FROM_KEY else value
        if value is _FROM_KEY:  # reported as missing already
            return ()
        if not isinstance(value, list):
            self._refuse(key, "a list", value)
            return ()
        if runs is not None and len(value) != runs:
            self.problems.append(f"{key} has {len(value)} items for {runs} runs")
        expected, is_valid = kind
        invalid = [item for item in value if not is_valid(item)]
        if invalid:
            self._refuse(key, expected, invalid[0])
        return tuple(item for item in value if is_valid(item))

    def _table(
        self, key: str, runs: int | None, columns: Sequence[Kind], value: object = _FROM_KEY
    ) -> tuple[tuple[Any, ...], ...]:
        """Return a table with a row a run and a kind of value for each column.

        Where the number of runs is not known, the shape is not checked.
        """
        rows = self._list(key, _ROWS, runs, value)
        for run, row in enumerate(rows if runs is not None else ()):
            if len(row) != len(columns):
                self.problems.append(
                    f"{key} of run {run} has {len(row)} values and needs {len(columns)}"
                )
                continue
            for session, (item, (expected, is_valid)) in enumerate(zip(row, columns, strict=True)):
                if not is_valid(item):
                    self._refuse(f"{key} of run {run} in session {session}", expected, item)
        return tuple(tuple(row) for row in rows)

    def _sessions(self) -> tuple[SessionSize, ...]:
        sizes = self._list("sessions", _SIZES)
        if self.raw.get("sessions") == []:
            self.problems.append("sessions is empty, and there must be at least the base session")
        if any(
            later["classes"] <= size["classes"] or later["test"] < size["test"]
            for size, later in pairwise(sizes)
        ):
            self.problems.append(
                "sessions must grow: "
                "they count all classes seen so far, and all test images of them"
            )
        return tuple(SessionSize(size["classes"], size["test"]) for size in sizes)
