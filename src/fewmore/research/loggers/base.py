"""Define what a logger is told of a run, and pass it on to several loggers."""

import dataclasses
import hashlib
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # names are checked before torch is imported
    from fewmore.research.experiment import Experiment

SESSIONS = "sessions"  # the group of the results after each session


@dataclass(frozen=True)
class RunFacts:
    """Hold what a logger may show of a run before it begins.

    Attributes:
        experiment: what is run.
        folder: the folder of the run, such as runs/RUN/seed0.
        seed: the run's seed.
        draw: the run's draw of the shots; None stands for the official lists.
        home: where the folder will lie, if the run is computed on another machine.
    """

    experiment: "Experiment"
    folder: Path
    seed: int
    draw: int | None
    home: Path | None = None

    @property
    def group(self) -> str:
        """Return the name that all runs of an experiment share: that of their run folder."""
        return self.folder.parent.name

    @property
    def name(self) -> str:
        """Return the name of the run: run folder, seed and draw."""
        return f"{self.group}/{self.folder.name}"

    @property
    def identity(self) -> str:
        """Return a name of 16 letters and digits that a resumed run has again."""
        return hashlib.sha256(str((self.home or self.folder).resolve()).encode()).hexdigest()[:16]

    def hyperparameters(self) -> dict[str, bool | int | float | str]:
        """Return the benchmark, the seed and all settings of the recipe, by dotted name."""
        e = self.experiment
        first = {"benchmark": e.benchmark, "method": e.method, "seed": self.seed, "draw": self.draw}
        values = {**first, **e.split(), **dict(_flatten("recipe", dataclasses.asdict(e.recipe)))}
        return {name: _plain(value) for name, value in values.items() if value is not None}


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the single values of nested groups, by dotted name."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(f"{name}.{key}", item)
    else:
        yield name, value


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, (bool, int, float, str)) else str(value)


class Logger:
    """Receive the numbers of one run; this one ignores them."""

    def __init__(self, facts: RunFacts) -> None:
        """Begin a run; a resumed run goes on where the last one ended."""

    def log(self, group: str, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step.

        A group is a stage of training, whose steps are its rounds (loss, lr, seconds), or
        "sessions", whose steps are the sessions (accuracy, base, novel, harmonic).
        """

    def close(self, failed: bool) -> None:
        """End the run."""


class Broadcast:
    """Pass the numbers of a run on to its loggers.

    A logger that fails is dropped with a warning: no training is lost because a server is gone.
    """

    def __init__(self) -> None:
        self.loggers: dict[str, Logger] = {}

    def add(self, name: str, logger: Logger) -> None:
        """Add a logger under the name that warnings call it by."""
        self.loggers[name] = logger

    def line(self, line: Mapping[str, Any]) -> None:
        """Pass on a line of metrics.jsonl: a round, or a session."""
        group = re.sub(r"[^\w.]+", "-", line.get("stage", SESSIONS)).strip("-")
        step = line["round"] if "stage" in line else line["session"]
        left_out = ("stage", "round", "rounds", "session")
        values = {key: float(value) for key, value in line.items() if key not in left_out}
        for name, logger in list(self.loggers.items()):
            try:
                logger.log(group, step, values)
            except Exception as error:
                del self.loggers[name]
                self._warn(name, error)

    def close(self, failed: bool) -> None:
        """Close all loggers."""
        for name, logger in self.loggers.items():
            try:
                logger.close(failed)
            except Exception as error:
                self._warn(name, error)
        self.loggers.clear()

    @staticmethod
    def _warn(name: str, error: Exception) -> None:
        message = f"--log {name} stopped, and the run goes on without it: {error}"
        warnings.warn(message, stacklevel=3)
