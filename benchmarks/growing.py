"""Let a search grow: try what lies beside the best trials, and beyond all that was tried.

Each setting has a ladder of values, in order, as texts that `--set` takes. Beside a trial lie those
that differ by one step on one ladder. The best trial is at an edge if a step leads to a value that
no trial has had.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from fewmore.research.tuning import Trial

Settings = Mapping[str, str]
Ladders = Mapping[str, Sequence[str]]


def best(trials: Sequence[Trial], measure: str) -> Trial:
    """Return the trial with the highest mean, the first of equals; a failed one is the worst."""

    def score(trial: Trial) -> float:
        mean = trial.mean(measure)
        return -math.inf if mean is None else mean

    return max(trials, key=score)


def edges(choice: Trial, trials: Iterable[Trial], ladders: Ladders) -> list[str]:
    """Name the settings of a choice for which the next lower or higher value was never tried."""
    beyond = [name for name, _ in _steps_beyond(choice, list(trials), ladders)]
    return list(dict.fromkeys(beyond))


@dataclass(frozen=True)
class Growth:
    """Say how a search goes on from the best trials by several measures, and how far.

    Attributes:
        ladders: by setting, its values.
        measures: the best by each of them is gone on from, in turns.
        usual: with so many trials, the search goes on only where a best is at an edge.
        most: with so many trials, it ends.
        batch: so many are proposed at a time; what they show decides on the next.
    """

    ladders: Ladders
    measures: tuple[str, ...] = ("last", "harmonic")
    usual: int = 14
    most: int = 20
    batch: int = 6

    def propose(self, trials: Sequence[Trial]) -> list[Settings]:
        """Return what to try next, beyond edges first; nothing where the search ends."""
        tried = [trial.settings for trial in trials]
        bests = [best(trials, measure) for measure in self.measures]
        beyond = [[s for _, s in _steps_beyond(each, trials, self.ladders)] for each in bests]
        beside = [[s for _, s in _steps(each.settings, self.ladders)] for each in bests]
        further = _in_turns(beyond)
        others = [s for s in _in_turns(beside) if s not in tried and s not in further]
        usual = max(0, self.usual - len(trials) - len(further))
        return [*further, *others[:usual]][: max(0, min(self.batch, self.most - len(trials)))]


def _steps_beyond(
    choice: Trial, trials: Sequence[Trial], ladders: Ladders
) -> Iterator[tuple[str, Settings]]:
    """Yield the steps from a choice to values that no trial has had."""
    for name, settings in _steps(choice.settings, ladders):
        if all(settings[name] != trial.settings[name] for trial in trials):
            yield name, settings


def _steps(settings: Settings, ladders: Ladders) -> Iterator[tuple[str, Settings]]:
    """Yield each setting's name and the settings with it one step lower, and one higher."""
    for name, ladder in ladders.items():
        place = ladder.index(settings[name])
        for value in (*ladder[max(0, place - 1) : place], *ladder[place + 1 : place + 2]):
            yield name, {**settings, name: value}


def _in_turns(lists: Iterable[Sequence[Settings]]) -> list[Settings]:
    """Return the first of each list, the second of each, and so on, each settings once."""
    turns = [each for each in chain(*zip_longest(*lists)) if each is not None]
    return [each for number, each in enumerate(turns) if each not in turns[:number]]
