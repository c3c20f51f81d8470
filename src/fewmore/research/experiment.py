"""Describe an experiment: one method on one benchmark, over seeds and draws of the shots."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from fewmore.errors import ConfigError
from fewmore.methods import find, find_features
from fewmore.methods.base import Recipe
from fewmore.methods.features import PLAIN
from fewmore.research.settings import convert

CONFIG_VERSION = 1


@dataclass(frozen=True)
class Experiment:
    """Hold all that is needed to repeat an experiment."""

    benchmark: str
    method: str
    recipe: Recipe
    settings: Mapping[str, Any] = field(default_factory=dict)  # changes to the recipe
    seeds: tuple[int, ...] = (0,)
    # None stands for the official lists of shots, or for draw 0 where there are none.
    draws: tuple[int | None, ...] = (None,)
    base: int | None = None
    way: int | None = None
    shot: int | None = None
    class_order: int | None = None
    # Whether it is run on the validation split of the benchmark's base classes, to choose settings.
    validation: bool = False

    def runs(self) -> list[tuple[int, int | None]]:
        """Return the seed and draw of each run."""
        return [(seed, draw) for seed in self.seeds for draw in self.draws]

    def split(self) -> dict[str, int | None]:
        """Return the changes to the benchmark's sessions."""
        return {name: getattr(self, name) for name in ("base", "way", "shot", "class_order")}

    def to_json(self) -> str:
        """Return the text of the run folder's config.json."""
        fields = dataclasses.asdict(self)
        if not self.validation:
            del fields["validation"]  # files of before the field have none, and must stay equal
        return json.dumps({"config": CONFIG_VERSION, **fields}, indent=1)

    @classmethod
    def from_json(cls, text: str, name: str = "the text") -> "Experiment":
        """Parse a config.json; `name` is what messages call it."""
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{name} is not JSON: {error}") from None
        if not isinstance(raw, dict) or raw.pop("config", None) != CONFIG_VERSION:
            raise ConfigError(
                f"{name} is not the config of a run: give the config.json of a run folder"
            )
        raw.setdefault("validation", False)
        recipe = raw.get("recipe")
        features = recipe.get("features", PLAIN) if isinstance(recipe, dict) else PLAIN
        types = {
            "method": find(str(raw.get("method"))).load().config_type,
            "pretrain": find_features(str(features)).load(),
        }
        experiment: Experiment = _rebuild(cls, raw, name, types)
        return experiment


def _rebuild(cls: Any, raw: Any, where: str, types: Mapping[str, type]) -> Any:
    """Return a dataclass from a JSON object of its fields; those of a recipe are of `types`."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{where} is {raw!r}, not a group of settings")
    names = [field.name for field in dataclasses.fields(cls)]
    unknown, missing = sorted(set(raw) - set(names)), sorted(set(names) - set(raw))
    if unknown or missing:
        wrong = [f"unknown keys {', '.join(unknown)}"] * bool(unknown)
        wrong += [f"no {', '.join(missing)}"] * bool(missing)
        raise ConfigError(f"{where} has {' and '.join(wrong)}: was it written by this version?")
    hints = get_type_hints(cls)
    if cls is Recipe:
        hints |= types
    values = {}
    for name in names:
        value, place = raw[name], f"{where}: {name}"
        if dataclasses.is_dataclass(hints[name]):
            values[name] = _rebuild(hints[name], value, place, types)
        elif isinstance(value, dict):
            values[name] = value
        else:
            try:
                values[name] = convert(value, hints[name])
            except ConfigError as error:
                raise ConfigError(f"{place} is {value!r}, {error}") from None
    return cls(**values)


def run_name(seed: int, draw: int | None) -> str:
    """Return the name of a run's folder within the experiment's folder."""
    return f"seed{seed}" if draw is None else f"seed{seed}-draw{draw}"
