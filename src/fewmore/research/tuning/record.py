"""Record all that a search has tried: tune/<search>/search.json."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fewmore.errors import DataError, MissingData
from fewmore.io import write_bytes
from fewmore.research.results import RunResult

FILE = "search.json"
VERSION = 1
MEASURES = ("last", "average", "harmonic", "base", "novel")  # that --by may name


@dataclass(frozen=True)
class Trial:
    """Hold one choice of settings and what came of it.

    Attributes:
        number: counted from 1; its run folder is trial1 in the search's folder.
        settings: as texts that --set takes.
        measures: by name, one number a run; empty until it is finished.
        seconds: one a run, as far as they were measured.
        error: the sentence that it failed with, if it did.
    """

    number: int
    settings: Mapping[str, str]
    measures: Mapping[str, tuple[float | None, ...]]
    seconds: tuple[float | None, ...] = ()
    error: str | None = None

    @property
    def name(self) -> str:
        """Return the settings in one line."""
        return ", ".join(f"{name}={text}" for name, text in self.settings.items())

    @property
    def folder(self) -> str:
        """Return the name of its run folder."""
        return f"trial{self.number}"

    def values(self, measure: str) -> list[float]:
        """Return a measure of all runs; nothing if the trial is not finished or it is undefined."""
        values = self.measures.get(measure, ())
        return [value for value in values if value is not None]

    def mean(self, measure: str) -> float | None:
        """Return the mean of a measure over the runs, or None."""
        values = self.values(measure)
        return float(np.mean(values)) if values else None

    def finished(self, result: RunResult) -> "Trial":
        """Return the trial with the measures of its result."""

        def at_the_end(table: tuple[tuple[float | None, ...], ...]) -> tuple[float | None, ...]:
            return tuple(_rounded(run[-1]) for run in table)

        measures = {
            "last": tuple(map(_rounded, result.last)),
            "average": tuple(map(_rounded, result.average)),
            "harmonic": at_the_end(result.harmonic),
            "base": at_the_end(result.base),
            "novel": at_the_end(result.novel),
            "pd": tuple(map(_rounded, result.pd)),
            "forgetting": tuple(map(_rounded, result.mean_forgetting)),
            "gacc": tuple(map(_rounded, result.gacc)),
        }
        seconds = tuple(
            None if value is None else round(value, 2) for value in result.total_seconds
        )
        return replace(self, measures=measures, seconds=seconds, error=None)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


@dataclass(frozen=True)
class Record:
    """Hold a search: what was to be tried, on what, where, and all trials."""

    search: Mapping[str, Any]  # what decides the trials; see Search.to_dict
    by: str  # the measure that chooses
    split: str
    command: str
    commit: str | None
    date: str
    machine: Mapping[str, Any]
    trials: tuple[Trial, ...]

    @property
    def ranked(self) -> list[Trial]:
        """Return the finished trials, the best by the chosen measure first."""
        done = [trial for trial in self.trials if trial.measures]
        return sorted(done, key=lambda trial: (-_score(trial, self.by), trial.number))

    @property
    def best(self) -> Trial | None:
        """Return the best trial; None if none has finished."""
        return next(iter(self.ranked), None)

    @property
    def failed(self) -> list[Trial]:
        """Return the trials that failed."""
        return [trial for trial in self.trials if trial.error is not None]

    def replaced(self, trial: Trial) -> "Record":
        """Return the record with one trial as it is now."""
        trials = (trial if trial.number == old.number else old for old in self.trials)
        return replace(self, trials=tuple(trials))

    def to_json(self) -> str:
        """Return the text of search.json: all that was tried, and which is the best."""
        best = None if self.best is None else self.best.number
        return json.dumps({"tuning": VERSION, "best": best, **asdict(self)}, indent=1) + "\n"

    def write(self, folder: Path) -> None:
        """Write search.json into the search's folder."""
        write_bytes(folder / FILE, self.to_json().encode())


def _score(trial: Trial, measure: str) -> float:
    mean = trial.mean(measure)
    return -np.inf if mean is None else mean


def read(path: Path) -> Record:
    """Read the record of a search from its folder, or from its search.json."""
    file = path / FILE if path.is_dir() else path
    if not file.exists():
        raise MissingData(f"{file} is not there: give the folder of a search, such as tune/SEARCH")
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        if raw.pop("tuning") != VERSION:
            raise ValueError
        del raw["best"]
        trials = tuple(_trial(trial) for trial in raw.pop("trials"))
        return Record(**raw, trials=trials)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise DataError(
            f"{file} is not the record of a search that this version wrote: "
            "search again with fewmore tune"
        ) from None


def _trial(raw: dict[str, Any]) -> Trial:
    measures = {name: tuple(values) for name, values in raw.pop("measures").items()}
    return Trial(**{**raw, "measures": measures, "seconds": tuple(raw["seconds"])})
