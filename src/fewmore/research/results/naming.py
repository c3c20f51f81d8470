"""Name results so that they can be told apart, in tables and as files."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewmore.research.results.schema import FEATURES_SETTING, RunResult


def names(results: Sequence[RunResult]) -> list[str]:
    """Return a unique name for each result: its method, and what differs from its other results."""
    plain_names = [_name(result, results) for result in results]
    counts: dict[str, int] = {}
    unique = []
    for name in plain_names:
        counts[name] = counts.get(name, 0) + 1
        unique.append(f"{name} #{counts[name]}" if plain_names.count(name) > 1 else name)
    return unique


def _name(result: RunResult, results: Sequence[RunResult]) -> str:
    same_method = [other for other in results if other.method == result.method]
    parts = [result.method]
    if len({other.recipe for other in same_method}) > 1:
        parts.append(result.recipe or "no recipe")
    if len({other.split for other in same_method}) > 1:
        parts.append(result.split)
    settings = [set(map(_setting, other.settings.items())) for other in same_method]
    parts += [
        text
        for text in map(_setting, result.settings.items())
        if not all(text in other for other in settings)
    ]
    return ", ".join(parts)


def _setting(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name}={value if isinstance(value, str) else json.dumps(value)}"


def short_features(settings: Mapping[str, Any]) -> str:
    """Return the name of the feature recipe, where it is not the method's own; or its class.

    That is where it is of a file: the settings hold the whole name.
    """
    return str(settings.get(FEATURES_SETTING, "")).rpartition(":")[2].lower()


def file_name(result: RunResult) -> str:
    """Return a file name without suffix: benchmark, method, and all that is unusual.

    That is a feature recipe other than the method's own, a recipe other than `official`, and
    changed settings.
    """
    recipe = [] if result.recipe in (None, "official") else [str(result.recipe)]
    features = short_features(result.settings)
    settings = [
        f"{key.rpartition('.')[2]}-{value}"
        for key, value in sorted(result.settings.items())
        if key != FEATURES_SETTING
    ]
    method = [Path(result.method).stem, *([features] if features else [])]
    name = "-".join([result.benchmark, *method, *recipe, *settings])
    # No character that a shell interprets is left.
    return re.sub(r"[^\w.-]", "-", re.sub(r",\s*", "_", name))
