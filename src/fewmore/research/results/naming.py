"""Name results so that they can be told apart, in tables and as files."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewmore.research.results.schema import RunResult


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


def file_name(result: RunResult) -> str:
    """Return a file name without suffix: benchmark, method, and recipe and settings if unusual."""
    recipe = [] if result.recipe in (None, "official") else [str(result.recipe)]
    settings = [
        f"{key.rpartition('.')[2]}-{value}" for key, value in sorted(result.settings.items())
    ]
    name = "-".join([result.benchmark, Path(result.method).stem, *recipe, *settings])
    # No character that a shell interprets is left.
    return re.sub(r"[^\w.-]", "-", re.sub(r",\s*", "_", name))
