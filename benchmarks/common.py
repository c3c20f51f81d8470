"""Time calls, measure memory, and record results with machine, command and date."""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from fewmore.cli.research_options import command_line
from fewmore.data.paths import data_root
from fewmore.research.machine import commit, machine_facts

Row = dict[str, object]
T = TypeVar("T")


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a script's docstring and knows `--record`."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, help="folder for the JSON file")
    return parser


def parse_device(doc: str | None) -> tuple[torch.device, Path | None]:
    """Parse `--device` and `--record`, and compute matrix products in full float32."""
    parser = make_parser(doc)
    parser.add_argument("--device", type=torch.device, default="cpu")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    return args.device, args.record


def parse_photos(doc: str | None, **counts: int) -> tuple[Path, argparse.Namespace]:
    """Parse the options of a measurement on photos; return the data root and all options.

    `counts` are more options that are whole numbers, with their defaults. PyTorch uses
    `--threads`, and weights are looked for in the data root, by other processes too.
    """
    parser = make_parser(doc)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("/tmp"), help="for temporary files")
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    root = data_root(args.data_root)
    os.environ["FEWMORE_DATA"] = str(root)
    return root, args


def median_ms(
    device: torch.device, *calls: Callable[[], object], budget: float = 4.0
) -> list[float]:
    """Return the median milliseconds of each call.

    The calls alternate, so that other load on the machine affects all of them alike.
    """
    times: list[list[float]] = [[] for _ in calls]
    began = time.perf_counter()
    for round_ in range(301):
        for call, measured in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            measured.append(time.perf_counter() - start)
        if round_ >= 3 and time.perf_counter() - began > budget:
            break
    return [1e3 * statistics.median(measured[1:]) for measured in times]  # without the warm-up


def alternate(
    inner: Callable[[], T], outer: Callable[[], T], rounds: int
) -> tuple[list[T], list[T]]:
    """Run rounds of `inner`, each between two of `outer`."""
    of_inner: list[T] = []
    of_outer = [outer()]
    for number in range(rounds):
        of_inner.append(inner())
        of_outer.append(outer())
        print(number, json.dumps([of_inner[-1], of_outer[-1]]), flush=True)
    return of_inner, of_outer


def median_ratio(inner: Sequence[float], outer: Sequence[float]) -> float:
    """Compare each inner round with the mean of its two neighbours; return the median ratio."""
    ratios = [2 * x / (a + b) for x, a, b in zip(inner, outer, outer[1:], strict=False)]
    return statistics.median(ratios)


def peak_memory(call: Callable[[], object], device: torch.device) -> float:
    """Return the megabytes of tensors that a call adds at its peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    now = 0
    peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak / 2**20


def print_row(row: Row) -> Row:
    """Print a row as soon as it is measured, and return it."""
    print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row


def record(
    name: str,
    device: torch.device,
    rows: list[Row],
    about: Row,
    folder: Path | None,
    part: str | None = None,
) -> None:
    """Print what was measured, and write it to bench-<name>-<gpu or cpu>.json in the folder.

    A part of a script's measurements has a file of its own, bench-<name>-<part>-….
    """
    machine = machine_facts(device)
    kind = "gpu" if device.type == "cuda" else "cpu"
    data = " --data-root DATA" if "--data-root" in sys.argv else ""
    options = command_line(sys.argv[1:]).removeprefix("fewmore")
    measured = {
        "benchmark": name,
        "command": f"python benchmarks/{name}.py{data}{options}",
        "date": date.today().isoformat(),
        "machine": f"{machine['device']}, {machine['cores']} cores, torch {machine['torch']}",
        "commit": commit(),
        "about": {k: round(v, 4) if isinstance(v, float) else v for k, v in about.items()},
        "rows": [
            {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
            for row in rows
        ],
    }
    print(json.dumps(measured["about"], indent=1))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        stem = "-".join(filter(None, ("bench", name, part, kind)))
        (folder / f"{stem}.json").write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    print("run one of the other files")
