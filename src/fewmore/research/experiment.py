"""Describe an experiment: one method on one benchmark, over seeds and draws of the shots."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fewmore.methods.base import Recipe


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

    def runs(self) -> list[tuple[int, int | None]]:
        """Return the seed and draw of each run."""
        return [(seed, draw) for seed in self.seeds for draw in self.draws]

    def to_json(self) -> str:
        """Return the text of the run folder's config.json."""
        return json.dumps({"config": 1, **dataclasses.asdict(self)}, indent=1)


def run_name(seed: int, draw: int | None) -> str:
    """Return the name of a run's folder within the experiment's folder."""
    return f"seed{seed}" if draw is None else f"seed{seed}-draw{draw}"
