"""Write results as JSON."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from itertools import chain, count
from pathlib import Path
from typing import Any

from fewmore.errors import DataError
from fewmore.io import write_bytes
from fewmore.research.results.naming import code_files, file_name, settings_of
from fewmore.research.results.pooling import run_keys
from fewmore.research.results.reading import read
from fewmore.research.results.schema import SCHEMA, RunResult

DECIMALS = {"seconds": 2, "peak_memory_mb": 1}  # 4 for all other fields
UNROUNDED = ("machine", "settings", "all_settings")  # a learning rate must stay as it is


def to_json(result: RunResult) -> str:
    """Return the result as JSON, one key a line and one run a line, numbers rounded."""
    lines = [f' "schema": {SCHEMA}']
    for field in fields(result):
        value = _to_plain(field.name, getattr(result, field.name))
        lines.append(f" {_dump(field.name)}: {_dump_field(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(path: Path, result: RunResult) -> None:
    """Write the JSON atomically: the file is the old one or the whole new one."""
    data = to_json(result).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)


def record(folder: Path, result: RunResult) -> Path:
    """Write a result into a folder, in a file that is called after it; return its path.

    It replaces an earlier result of the same experiment that has no other seeds. Where two results
    would have the same name (of other seeds or splits, or of user's files in other folders), a
    number tells them apart.
    """
    name = file_name(result)
    for ending in chain([""], (f"-{number}" for number in count(2))):
        path = folder / f"{name}{ending}.json"
        if not path.exists() or _is_of(path, result):
            break
    write(path, result)
    return path


def _is_of(path: Path, result: RunResult) -> bool:
    try:
        other = read(path)
    except DataError:  # damaged: written anew
        return not _is_newer(path)
    return _experiment(other) == _experiment(result) and {*run_keys(other)} <= {*run_keys(result)}


def _is_newer(path: Path) -> bool:
    """Return whether a file that cannot be read is a later version's, and so not damaged."""
    with suppress(OSError, ValueError, TypeError, LookupError):
        return int(json.loads(path.read_bytes())["schema"]) > SCHEMA
    return False


def _experiment(result: RunResult) -> object:
    return (
        (result.benchmark, result.method, result.recipe, result.split),
        sorted(settings_of(result)),
        code_files(result),
    )


def _to_plain(name: str, value: Any) -> Any:
    """Return a field as lists, dicts and rounded numbers."""
    if name == "sessions":
        return [{"classes": size.classes, "test": size.test} for size in value]
    if name in UNROUNDED:
        return value
    return _round(value, DECIMALS.get(name, 4))


def _round(value: Any, decimals: int) -> Any:
    if isinstance(value, float):
        return round(value, decimals) + 0.0  # no -0.0
    if isinstance(value, Mapping):
        return {key: _round(item, decimals) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_round(item, decimals) for item in value]
    return value


def _dump_field(value: Any) -> str:
    if not (isinstance(value, list) and any(isinstance(item, list) for item in value)):
        return _dump(value)
    return "[\n" + ",\n".join("  " + _dump(row) for row in value) + "\n ]"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
