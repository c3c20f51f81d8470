"""Say which values of which settings are tried, all of them or some at random."""

import itertools
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from fewmore.errors import ConfigError
from fewmore.methods.base import Recipe
from fewmore.research.setting_list import format_value
from fewmore.research.settings import COMMON

DIGITS = 3  # of a number that is drawn at random
ATTEMPTS = 100  # to draw a trial that was not drawn before


@dataclass(frozen=True)
class Values:
    """Hold the values of a setting, as texts that --set takes."""

    texts: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[Any]) -> "Values":
        """Return values from Python as texts, each once."""
        return cls(tuple(dict.fromkeys(map(format_value, values))))

    def __str__(self) -> str:
        return ",".join(f"({text})" if "," in text else text for text in self.texts)


@dataclass(frozen=True)
class Range:
    """Hold the range of a setting, whose numbers are drawn evenly or evenly by their logarithm."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or not math.isfinite(self.high - self.low):
            raise ConfigError(f"a range goes from a smaller number to a larger one, not {self}")
        if self.log and self.low <= 0:
            raise ConfigError(f"a range by logarithm begins above 0, not as {self}")

    def __str__(self) -> str:
        return f"{'log:' if self.log else ''}{self.low:g}..{self.high:g}"

    def at(self, fraction: float, whole: bool) -> str:
        """Return the number at a fraction of the way from low to high, as a text."""
        # A whole number has its share up to the next one.
        low = math.ceil(self.low) if whole else self.low
        high = math.floor(self.high) + 1 if whole else self.high
        value = low * (high / low) ** fraction if self.log else low + fraction * (high - low)
        if whole:
            return str(max(low, min(math.floor(value), math.floor(self.high))))
        return f"{value:.{DIGITS}g}"

    def fraction(self, value: float) -> float:
        """Return how far a number lies on the way from low to high."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


Space = Mapping[str, Values | Range]


def parse_values(text: str) -> tuple[str, Values]:
    """Parse `pretrain.lr=0.01,0.03`; a value with commas is written in brackets: `(60,70)`."""
    name, equals, rest = text.partition("=")
    values = re.findall(r"\([^()]*\)|[^,]+", rest)
    if not name or not equals or not values:
        raise ConfigError(
            f"--grid {text}: write it as name=value,value, such as --grid pretrain.lr=0.01,0.03"
        )
    return name, Values(tuple(dict.fromkeys(value.strip("() ") for value in values)))


def parse_range(text: str) -> tuple[str, Range]:
    """Parse `alpha=0.1..0.9` or `pretrain.lr=log:0.001..0.1`."""
    name, _, rest = text.partition("=")
    scale, _, ends = rest.rpartition(":")
    low, dots, high = ends.partition("..")
    try:
        if not name or not dots or scale not in ("", "log"):
            raise ValueError
        return name, Range(float(low), float(high), log=scale == "log")
    except ValueError:
        raise ConfigError(
            f"--range {text}: write it as name=low..high or name=log:low..high, "
            "such as --range pretrain.lr=log:0.001..0.1"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"--range {text}: {error}") from None


def all_trials(space: Space) -> list[dict[str, str]]:
    """Return the settings of every trial of a grid; the last setting changes fastest."""
    choices = []
    for name, values in space.items():
        if isinstance(values, Range):
            raise ConfigError(
                f"--range {name}={values} has no end of values: say how many trials with "
                "--random 20, or name its values with --grid"
            )
        choices.append([(name, text) for text in values.texts])
    return [dict(chosen) for chosen in itertools.product(*choices)]


def random_trials(space: Space, count: int, seed: int, recipe: Recipe) -> list[dict[str, str]]:
    """Return so many different trials, or as many as there are; the seed decides them.

    A setting that takes whole numbers alone gets whole numbers.
    """
    generator = random.Random(seed)
    whole = {name: takes_whole_numbers(recipe, name) for name in space}
    trials: list[dict[str, str]] = []
    for _ in range(count * ATTEMPTS):
        if len(trials) == count:
            break
        trial = {}
        for name, values in space.items():
            fraction = generator.random()
            if isinstance(values, Range):
                trial[name] = values.at(fraction, whole[name])
            else:
                trial[name] = values.texts[int(fraction * len(values.texts))]
        if trial not in trials:
            trials.append(trial)
    return trials


def takes_whole_numbers(recipe: Recipe, name: str) -> bool:
    """Return whether a setting takes whole numbers but no others."""
    path = name.split(".")
    if len(path) > 1 and path[0] not in COMMON and not hasattr(recipe.method, path[0]):
        path = path[1:]  # cec.pseudo.episodes is of the method cec, and so is cec.pretrain.epochs
    *groups, last = path if path[0] in COMMON else ["method", *path]
    config: Any = recipe
    for group in groups:
        config = getattr(config, group, None)
    hint = get_type_hints(type(config)).get(last)
    kinds = get_args(hint) or (hint,)
    return int in kinds and float not in kinds
