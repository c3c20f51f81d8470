"""Pool results of one experiment whose seeds or draws ran as separate jobs."""

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from fewmore.research.machine import BUSY
from fewmore.research.results.schema import SHARED_STAGE1, RunResult

_DRAW = re.compile(r"draw (\d+): ")
_DRAWS = re.compile(r"(draw \d+|\d+ draws): ")  # how the name of a sampled split begins
# The fields with one item a run.
_BY_RUN = (
    "seeds",
    "draws",
    "accuracy",
    "base",
    "novel",
    "harmonic",
    "forgetting",
    "gacc",
    "seconds",
    "peak_memory_mb",
)

# Facts of a machine that may differ within a pool, which is then said.
MACHINES = {"device": "devices", "precision": "precisions", "batch_norm": "kinds of batch norm"}

RunKey = tuple[str, int, int | None]  # the split but for its draw, the seed and the draw


def pools(results: Sequence[RunResult]) -> list[list[RunResult]]:
    """Group results that are one experiment: the same but for their seeds or draws.

    A run that is there twice is not the same experiment: the code may have changed in between.
    """
    grouped: list[list[RunResult]] = []
    for result in results:
        pool = next((pool for pool in grouped if _belongs(result, pool)), None)
        if pool is None:
            grouped.append([result])
        else:
            pool.append(result)
    return grouped


def _belongs(result: RunResult, pool: Sequence[RunResult]) -> bool:
    known = {key for other in pool for key in run_keys(other)}
    return _experiment(result) == _experiment(pool[0]) and known.isdisjoint(run_keys(result))


def _experiment(result: RunResult) -> Hashable:
    """Return all that results of one experiment have in common."""
    return (
        result.benchmark,
        result.method,
        result.recipe,
        json.dumps([dict(result.settings), dict(result.all_settings)], sort_keys=True, default=str),
        split_shape(result),
        result.sessions,
        result.keeps,
        frozenset(result.extra),
        _code_hashes(result),
    )


def _code_hashes(result: RunResult) -> frozenset[tuple[str, object]]:
    """Return the hashes of a user's own files: of the method, the features and the benchmark."""
    return frozenset(
        (name, source.get("sha256") if isinstance(source, dict) else source)
        for name, source in result.machine.items()
        if name.endswith("_source")
    )


def same_benchmark(results: Sequence[RunResult]) -> bool:
    """Return whether no two results are of a user's benchmark in different versions.

    Of fewmore's own benchmarks, and in results from before it was recorded, no version is known.
    """
    sources = [result.machine.get("benchmark_source") for result in results]
    return len({source["sha256"] for source in sources if isinstance(source, Mapping)}) < 2


def split_shape(result: RunResult) -> str:
    """Return the name of the split without its draw."""
    return _DRAWS.sub("", result.split, count=1)


def run_keys(result: RunResult) -> list[RunKey]:
    """Return what tells runs of a method apart, one a run.

    The draw of a benchmark without official lists is in the name of its split.
    """
    named = _DRAW.match(result.split)
    default = int(named[1]) if named else None
    shape = split_shape(result)
    return [
        (shape, seed, default if draw is None else draw)
        for seed, draw in zip(result.seeds, result.draws, strict=True)
    ]


def merge(pool: Sequence[RunResult]) -> RunResult:
    """Return one result with all runs of a pool, and their commands.

    Date, commit and machine are the first's; it was beside other work where one of them was.
    """
    first = pool[0]
    if len(pool) == 1:
        return first
    keys = list(chain.from_iterable(map(run_keys, pool)))
    draws = {draw for _, _, draw in keys}
    split = first.split if len(draws) == 1 else f"{len(draws)} draws: {split_shape(first)}"
    merged: dict[str, Any] = {
        name: tuple(chain.from_iterable(getattr(result, name) for result in pool))
        for name in _BY_RUN
    }
    merged["draws"] = tuple(draw for _, _, draw in keys)
    workers = _side_by_side(first)
    merged["seconds"] = tuple(chain.from_iterable(_seconds(each, workers) for each in pool))
    merged["extra"] = {
        name: tuple(chain.from_iterable(result.extra[name] for result in pool))
        for name in first.extra
    }
    merged["command"] = "; ".join(dict.fromkeys(result.command for result in pool))
    busy = any(result.machine.get(BUSY) for result in pool)
    machine = {**first.machine, BUSY: True} if busy else first.machine
    return replace(first, split=split, machine=machine, **merged)


def _side_by_side(result: RunResult) -> int:
    return int(result.machine.get("side_by_side", 1))


def _seconds(result: RunResult, workers: int) -> list[Mapping[str, float]]:
    """Return the seconds of each run; of a stage 1 that is shared, as if so many shared the clock.

    A result's total divides them by the number of its runs side by side.
    """
    share = workers / _side_by_side(result)
    return [
        {**times, SHARED_STAGE1: times[SHARED_STAGE1] * share} if SHARED_STAGE1 in times else times
        for times in result.seconds
    ]


def code_version(result: RunResult) -> tuple[str | None, object]:
    """Return what tells versions of fewmore apart: an installed one has no commit."""
    return result.commit, result.machine.get("source")


def describe_pool(pool: Sequence[RunResult]) -> str:
    """Say from how many jobs a pool comes, and if they differ in code or in the machine."""
    if len(pool) == 1:
        return ""
    counts = {"commits": len({result.commit for result in pool})}
    if counts["commits"] == 1:
        counts["versions of the code"] = len(set(map(code_version, pool)))
    for name, plural in MACHINES.items():
        counts[plural] = len({result.machine.get(name) for result in pool})
    differing = [f"{count} {plural}" for plural, count in counts.items() if count > 1]
    of = f" of {' and '.join(differing)}" if differing else ""
    return f"pooled from {len(pool)} jobs{of}"
