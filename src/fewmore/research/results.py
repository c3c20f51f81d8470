"""What was measured, as a small JSON file.

A `RunResult` is one method on one benchmark under one recipe and kind of split, run with several seeds and draws. Its
JSON has every key always and in one order, so that a change of a result is a readable diff.
"""

import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewmore.errors import DataError, MissingData
from fewmore.io import write_bytes
from fewmore.research import metrics
from fewmore.research.metrics import Floats, Summary
from fewmore.research.published import PROTOCOL, PublishedRow, row_of_method

SCHEMA = 1
Table = tuple[
    tuple[float | None, ...], ...
]  # runs × sessions; None where undefined, as for classes without a test image


@dataclass(frozen=True)
class SessionSize:
    """How large the question is after a session: all classes seen so far, and the test images of them."""

    classes: int
    test: int


@dataclass(frozen=True)
class Run:
    """One run of a method, before runs are gathered into a result."""

    seed: int
    draw: int | None  # None: the official lists
    summary: Summary
    seconds: Mapping[str, float]  # by stage
    peak_memory_mb: float
    extra: Mapping[str, Sequence[float]] = field(default_factory=dict)  # named series over sessions


@dataclass(frozen=True)
class RunResult:
    """One (benchmark, method, recipe, split) with its runs. The fields are the keys of the JSON, in this order."""

    benchmark: str
    method: str
    recipe: str | None
    split: str  # "official", or how it was drawn
    command: str
    seeds: tuple[int, ...]  # one a run, as are the draws
    draws: tuple[int | None, ...]
    commit: str | None
    date: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]  # those that differ from the recipe's
    sessions: tuple[SessionSize, ...]
    accuracy: tuple[tuple[float, ...], ...]  # runs × sessions, in percent
    base: Table
    novel: Table  # None in session 0, and so is the harmonic mean
    harmonic: Table
    forgetting: Table  # runs × sessions but the last, in points
    gacc: tuple[float | None, ...]  # None without a new session
    seconds: tuple[Mapping[str, float], ...]
    peak_memory_mb: tuple[float, ...]
    extra: Mapping[str, Table]
    keeps: str | None  # what the method keeps of old images

    @property
    def runs(self) -> int:
        return len(self.seeds)

    @property
    def average(self) -> tuple[float, ...]:
        """Mean accuracy over the sessions, one a run."""
        return tuple(metrics.average(row) for row in self._rows())

    @property
    def last(self) -> tuple[float, ...]:
        """Accuracy after the last session, one a run."""
        return tuple(metrics.last(row) for row in self._rows())

    @property
    def pd(self) -> tuple[float, ...]:
        """Performance drop, one a run."""
        return tuple(metrics.performance_drop(row) for row in self._rows())

    def _rows(self) -> Floats:
        return np.array(self.accuracy, dtype=np.float64)


def gather(
    runs: Sequence[Run],
    *,
    benchmark: str,
    method: str,
    recipe: str | None,
    split: str,
    command: str,
    sessions: Sequence[SessionSize],
    settings: Mapping[str, Any] | None = None,
    keeps: str | None = None,
    device: torch.device | str = "cpu",
    date: str | None = None,
) -> RunResult:
    """The result of several runs, with the time, the machine and the version of the code written in."""
    if not runs or any(np.isnan(run.summary.accuracy).any() for run in runs):
        raise DataError(
            "a result needs at least one run, and test images of the base classes: add images to the test set"
        )
    return RunResult(
        benchmark=benchmark,
        method=method,
        recipe=recipe,
        split=split,
        command=command,
        seeds=tuple(run.seed for run in runs),
        draws=tuple(run.draw for run in runs),
        commit=commit(),
        date=date or datetime.now(timezone.utc).isoformat(timespec="seconds"),
        machine=machine(device),
        settings=dict(settings or {}),
        sessions=tuple(sessions),
        accuracy=tuple(tuple(map(float, run.summary.accuracy)) for run in runs),
        base=tuple(_gaps(run.summary.base) for run in runs),
        novel=tuple(_gaps(run.summary.novel) for run in runs),
        harmonic=tuple(_gaps(run.summary.harmonic) for run in runs),
        forgetting=tuple(_gaps(run.summary.forgetting) for run in runs),
        gacc=_gaps([run.summary.gacc for run in runs]),
        seconds=tuple(dict(run.seconds) for run in runs),
        peak_memory_mb=tuple(float(run.peak_memory_mb) for run in runs),
        extra={name: tuple(_gaps(run.extra[name]) for run in runs) for name in runs[0].extra},
        keeps=keeps,
    )


def _gaps(values: Floats | Sequence[float]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else float(value) for value in values)


# ---- where it ran


def machine(device: torch.device | str = "cpu") -> dict[str, str | int]:
    """The device's name, the cores this process may use, and the versions that numbers depend on."""
    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return {
        "device": name,
        "cores": cores,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:  # Linux tells the model here only
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), "") or platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit of this code, ending in "-dirty" if the code was changed since; None when it is not in a checkout.

    A copy of the code on another machine has no history: there $FEWMORE_COMMIT says what it is a copy of.
    """
    here = Path(__file__).resolve()
    package = here.parents[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *words],
                cwd=package,
                env=environment,
                capture_output=True,
                text=True,
                timeout=10,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if not git(
        "ls-files", "--error-unmatch", str(here)
    ):  # installed below a checkout of something else
        return os.environ.get("FEWMORE_COMMIT")
    version = git("rev-parse", "--short=12", "HEAD")
    return version and version + ("-dirty" if git("status", "--porcelain", "--", ".") else "")


# ---- writing


def to_json(result: RunResult) -> str:
    """The result as JSON, one key a line, one run a line; percentages with 4 decimals, seconds with 2, megabytes with 1."""
    lines = [f' "schema": {SCHEMA}']
    for key, value in _plain(result).items():
        nested = (
            value
            if isinstance(value, list) and any(isinstance(item, list) for item in value)
            else None
        )
        text = (
            "[\n" + ",\n".join("  " + _dump(row) for row in nested) + "\n ]"
            if nested
            else _dump(value)
        )
        lines.append(f" {_dump(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _plain(result: RunResult) -> dict[str, Any]:
    """The fields as lists, dicts and rounded numbers."""
    decimals = {"seconds": 2, "peak_memory_mb": 1}
    plain = {
        f.name: _rounded(getattr(result, f.name), decimals.get(f.name, 4))
        for f in fields(result)
        if f.name not in _AS_GIVEN
    }
    given = {name: getattr(result, name) for name in _AS_GIVEN}
    given["sessions"] = [{"classes": size.classes, "test": size.test} for size in result.sessions]
    return {f.name: given[f.name] if f.name in given else plain[f.name] for f in fields(result)}


_AS_GIVEN = ("machine", "settings", "sessions")  # a learning rate is not to be rounded


def _rounded(value: Any, decimals: int) -> Any:
    if isinstance(value, float):
        return round(value, decimals) + 0.0  # no -0.0
    if isinstance(value, Mapping):
        return {key: _rounded(item, decimals) for key, item in value.items()}
    return (
        [_rounded(item, decimals) for item in value] if isinstance(value, tuple | list) else value
    )


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def write(path: Path, result: RunResult) -> None:
    """Write the JSON so that the file is either the old one or the whole new one, whatever happens."""
    data = to_json(result).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)


# ---- reading


def read(path: Path) -> RunResult:
    """The result in a JSON file, or in the result.json of a run folder."""
    file = path / "result.json" if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path.is_dir():
            raise MissingData(
                f"{path} has no result.json: give the folder of a finished run, or finish this one with --resume"
            ) from None
        raise MissingData(
            f"{path} is not there: give a run folder, or a result file such as results/cifar100-cec.json"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file} cannot be read as text ({error}): give a run folder or a result file"
        ) from None
    return from_json(text, str(file))


def from_json(text: str, name: str = "the text") -> RunResult:
    """The result in a JSON text; `name` is what messages call it."""
    try:
        raw = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{name} is not JSON ({error}): it is damaged or no result; run again with --record to write it anew"
        ) from None
    if not isinstance(raw, dict) or "schema" not in raw:
        raise DataError(
            f"{name} is not a result of fewmore: it has no schema number; give the result.json of a run"
        )
    if not _is_int(raw["schema"]) or raw["schema"] < 1:
        raise DataError(
            f"{name} is not a result of fewmore: its schema is {_short(raw['schema'])}, and it must be a whole number from 1"
        )
    if raw["schema"] > SCHEMA:
        raise DataError(
            f"{name} has schema {raw['schema']}, and this version of fewmore knows schemas up to {SCHEMA}: upgrade with pip install -U fewmore"
        )
    reader = _Reader(raw)
    result = reader.result()
    if reader.problems:
        raise DataError(
            f"{name} is not a sound result: {'; '.join(reader.problems)}; restore the file, or run again to write it anew"
        )
    return result


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a number that JSON can hold")
    return value


Sound = Callable[[Any], bool]
_FROM_KEY = object()  # what JSON cannot hold


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


_NULL: tuple[str, Sound] = ("null", lambda value: value is None)
_PERCENT: tuple[str, Sound] = ("a number from 0 to 100", lambda value: _is_number(value, 0, 100))
_PERCENT_OR_NULL: tuple[str, Sound] = (
    "a number from 0 to 100, or null",
    lambda value: value is None or _is_number(value, 0, 100),
)
_POINTS_OR_NULL: tuple[str, Sound] = (
    "a number from -100 to 100, or null",
    lambda value: value is None or _is_number(value, -100, 100),
)
_NUMBER_OR_NULL: tuple[str, Sound] = (
    "a number or null",
    lambda value: value is None or _is_number(value),
)


class _Reader:
    """Takes the fields out of a JSON object and remembers everything that is wrong with them."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.problems: list[str] = []
        names = [f.name for f in fields(RunResult)]
        missing, foreign = (
            [name for name in names if name not in raw],
            sorted(set(raw) - {"schema", *names}),
        )
        if missing:
            self.problems.append(f"it lacks {', '.join(missing)}")
        if foreign:
            self.problems.append(f"it has unknown keys {', '.join(map(_short, foreign))}")

    def result(self) -> RunResult:
        """The result; to be trusted only if there are no problems."""
        before = len(self.problems)
        sessions = self._sessions()
        seeds = self._list("seeds", "whole numbers", _is_int)
        if self.raw.get("seeds") == []:
            self.problems.append("seeds is empty, and there must be at least one run")
        shape_known = bool(seeds and sessions) and len(self.problems) == before
        runs, length = len(seeds) if shape_known else None, len(sessions)
        extra = self._object("extra")
        return RunResult(
            benchmark=self._text("benchmark"),
            method=self._text("method"),
            recipe=self._text("recipe", or_null=True),
            split=self._text("split"),
            command=self._text("command"),
            seeds=seeds,
            draws=self._list(
                "draws", "whole numbers or null", lambda draw: draw is None or _is_int(draw), runs
            ),
            commit=self._text("commit", or_null=True),
            date=self._text("date"),
            machine=self._object("machine"),
            settings=self._object("settings"),
            sessions=sessions,
            accuracy=self._table("accuracy", runs, [_PERCENT] * length),
            base=self._table("base", runs, [_PERCENT_OR_NULL] * length),
            novel=self._table("novel", runs, [_NULL, *[_PERCENT_OR_NULL] * (length - 1)]),
            harmonic=self._table("harmonic", runs, [_NULL, *[_PERCENT_OR_NULL] * (length - 1)]),
            forgetting=self._table("forgetting", runs, [_POINTS_OR_NULL] * (length - 1)),
            gacc=self._list("gacc", *_PERCENT_OR_NULL, runs),
            seconds=self._list("seconds", "an object of seconds by stage", _is_times, runs),
            peak_memory_mb=self._list(
                "peak_memory_mb", "numbers from 0", lambda value: _is_number(value, 0), runs
            ),
            extra={
                name: self._table(f"extra.{name}", runs, [_NUMBER_OR_NULL] * length, rows)
                for name, rows in extra.items()
            },
            keeps=self._text("keeps", or_null=True),
        )

    def _wrong(self, key: str, wanted: str, value: object) -> None:
        self.problems.append(f"{key} must be {wanted}, not {_short(value)}")

    def _text(self, key: str, or_null: bool = False) -> Any:
        value = self.raw.get(key)
        if key in self.raw and not (
            (isinstance(value, str) and value) or (or_null and value is None)
        ):
            self._wrong(key, "a text or null" if or_null else "a text", value)
        return value

    def _object(self, key: str) -> dict[str, Any]:
        value = self.raw.get(key, {})
        if isinstance(value, dict):
            return value
        self._wrong(key, "an object", value)
        return {}

    def _list(
        self,
        key: str,
        wanted: str,
        sound: Sound,
        runs: int | None = None,
        value: object = _FROM_KEY,
    ) -> tuple[Any, ...]:
        """The sound items of a list, which has one item a run where `runs` is given."""
        value = self.raw.get(key, _FROM_KEY) if value is _FROM_KEY else value
        if value is _FROM_KEY:  # missing, as was said
            return ()
        if not isinstance(value, list):
            self._wrong(key, "a list", value)
            return ()
        if runs is not None and len(value) != runs:
            self.problems.append(f"{key} has {len(value)} items for {runs} runs")
        bad = [item for item in value if not sound(item)]
        if bad:
            self._wrong(key, wanted, bad[0])
        return tuple(item for item in value if sound(item))

    def _table(
        self,
        key: str,
        runs: int | None,
        columns: Sequence[tuple[str, Sound]],
        value: object = _FROM_KEY,
    ) -> tuple[tuple[Any, ...], ...]:
        """A row a run; a column says what its values must be. Where the runs are not known, neither is the shape."""
        rows = self._list(key, "a list of lists", lambda row: isinstance(row, list), runs, value)
        for run, row in enumerate(rows if runs is not None else ()):
            if len(row) != len(columns):
                self.problems.append(
                    f"{key} of run {run} has {len(row)} values and needs {len(columns)}"
                )
                continue
            for session, (item, (wanted, sound)) in enumerate(zip(row, columns, strict=True)):
                if not sound(item):
                    self._wrong(f"{key} of run {run} in session {session}", wanted, item)
        return tuple(tuple(row) for row in rows)

    def _sessions(self) -> tuple[SessionSize, ...]:
        rows = self._list("sessions", 'objects like {"classes": 60, "test": 6000}', _is_size)
        if self.raw.get("sessions") == []:
            self.problems.append("sessions is empty, and there must be at least the base session")
        if any(
            later["classes"] <= row["classes"] or later["test"] < row["test"]
            for row, later in pairwise(rows)
        ):
            self.problems.append(
                "sessions must grow: they count all classes seen so far, and all test images of them"
            )
        return tuple(SessionSize(row["classes"], row["test"]) for row in rows)


# ---- beside the published rows


def published_row(result: RunResult) -> PublishedRow | None:
    """The published row of what a result measures, or None: another protocol, another variant, or never published."""
    changed = {key.rpartition(".")[2]: value for key, value in result.settings.items()}
    data_init = str(changed.get("data_init", True)).lower() not in ("false", "0")
    return (
        row_of_method(result.benchmark, result.method, data_init)
        if follows_protocol(result)
        else None
    )


def follows_protocol(result: RunResult) -> bool:
    """Whether the sessions have as many classes as those of the published numbers."""
    return PROTOCOL.get(result.benchmark) == tuple(size.classes for size in result.sessions)


# ---- telling results apart


def names(results: Sequence[RunResult]) -> list[str]:
    """A name for each result, its method's, and what tells it from the others of that method."""
    found = []
    for result in results:
        rivals = [other for other in results if other.method == result.method]
        parts = [result.method]
        if len({other.recipe for other in rivals}) > 1:
            parts.append(result.recipe or "no recipe")
        if len({other.split for other in rivals}) > 1:
            parts.append(result.split)
        every = [set(map(_setting, other.settings.items())) for other in rivals]
        parts += [
            text
            for text in map(_setting, result.settings.items())
            if not all(text in one for one in every)
        ]
        found.append(", ".join(parts))
    counts: dict[str, int] = {}
    unique = []
    for name in found:
        counts[name] = counts.get(name, 0) + 1
        unique.append(f"{name} #{counts[name]}" if found.count(name) > 1 else name)
    return unique


def _setting(item: tuple[str, Any]) -> str:
    return f"{item[0]}={item[1] if isinstance(item[1], str) else json.dumps(item[1])}"


def file_name(result: RunResult) -> str:
    """What a recorded result is called: its method, and whatever is not the benchmark's usual."""
    recipe = [] if result.recipe in (None, "official") else [str(result.recipe)]
    settings = [
        f"{key.rpartition('.')[2]}-{value}" for key, value in sorted(result.settings.items())
    ]
    name = "-".join([result.benchmark, Path(result.method).stem, *recipe, *settings])
    return re.sub(
        r"[^\w.-]", "-", re.sub(r",\s*", "_", name)
    )  # nothing that a shell would take for itself
