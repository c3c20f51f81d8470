"""Name results so that they can be told apart, in tables and as files."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fewmore.research.results.schema import FEATURES_SETTING, RunResult, default_recipe


def names(results: Sequence[RunResult]) -> list[str]:
    """Return a unique name for each result: its method, and what not all of them have.

    That is a recipe other than the benchmark's default, features, and changed settings;
    `shared_settings` has the rest.
    """
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
    parts += _files_of(result, results)
    unusual = result.recipe != default_recipe(result.benchmark)
    if len({other.recipe for other in (results if unusual else same_method)}) > 1:
        parts.append(result.recipe or "no recipe")
    if len({other.split for other in same_method}) > 1:
        parts.append(result.split)
    shared = _shared(results)
    parts += [text for text in settings_of(result) if text not in shared]
    return ", ".join(parts)


def shared_settings(results: Sequence[RunResult]) -> str:
    """Say what all results were measured with that is not the default; empty if nothing."""
    [recipe, *others] = {result.recipe for result in results}
    unusual = not others and recipe != default_recipe(results[0].benchmark)
    parts = [f"recipe {recipe}"] if unusual and recipe else []
    return ", ".join(parts + _shared(results))


def settings_of(result: RunResult) -> list[str]:
    """Return the changed settings of a result, such as `pretrain.epochs=1`."""
    return list(map(_setting, result.settings.items()))


def _shared(results: Sequence[RunResult]) -> list[str]:
    first, *others = map(settings_of, results)
    return [text for text in first if all(text in other for other in others)]


# What may be a user's own, and which results have it by the same name.
_SAME_NAME: Mapping[str, Callable[[RunResult], object]] = {
    "method_source": lambda result: result.method,
    "features_source": lambda result: result.settings.get(FEATURES_SETTING),
    "benchmark_source": lambda result: result.benchmark,
}


def _files_of(result: RunResult, results: Sequence[RunResult]) -> list[str]:
    """Name a user's files and folders where others of the same name have another content."""
    parts = []
    for key, name in _SAME_NAME.items():
        alike = {_source(other, key) for other in results if name(other) == name(result)}
        parts += _file_of(_source(result, key), alike)
    return parts


def _file_of(source: tuple[str, str], sources: Collection[tuple[str, str]]) -> list[str]:
    """Name a file as long as tells it from the others, which have other contents."""
    file, digest = source
    if not file or len({of for _, of in sources}) == 1:
        return []
    path = Path(file).parts
    others = [Path(other).parts for other, _ in sources if other != file]
    # As many folders as tell the files apart.
    n = 1
    while any(other[-n:] == path[-n:] for other in others):
        n += 1
    name = Path(*path[-n:]).as_posix()
    several = len({of for other, of in sources if other == file}) > 1
    return [f"{name} (sha256 {digest[:8]})" if several else name]


def _source(result: RunResult, key: str) -> tuple[str, str]:
    source = result.machine.get(key)
    if not isinstance(source, Mapping):
        return "", ""
    file = str(source.get("file", ""))
    return file and str(Path(file)), str(source.get("sha256", ""))


def code_files(result: RunResult) -> dict[str, str]:
    """Return the files of a user's own code that a result was made with, by what they hold."""
    return {
        key: str(source.get("file", ""))
        for key, source in result.machine.items()
        if key.endswith("_source") and isinstance(source, Mapping)
    }


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
