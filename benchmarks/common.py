"""What the benchmarks share: how something is timed, and a result with its machine, command and date."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from fewmore.cli.run import command_line
from fewmore.research.results import commit, machine


def asked(doc: str | None) -> tuple[torch.device, Path | None]:
    """The device, and the folder to record in, from the command line; products are in full float32."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    return args.device, args.record


def timed(device: torch.device, *calls: Callable[[], object], budget: float = 4.0) -> list[float]:
    """Median milliseconds of each call. They take turns, so that what else the machine does meets all of them alike."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    times: list[list[float]] = [[] for _ in calls]
    began = time.perf_counter()
    for round_ in range(301):
        for call, own in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            wait()
            own.append(time.perf_counter() - start)
        if round_ >= 3 and time.perf_counter() - began > budget:
            break
    return [1e3 * statistics.median(own[1:]) for own in times]  # the first round warms up


def peak_memory(call: Callable[[], object], device: torch.device) -> float:
    """The megabytes of tensors that a call holds at its peak, beyond what was there before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    now = top = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            top = max(top, now)
    return top / 2**20


def shown(row: dict[str, object]) -> dict[str, object]:
    """A row, printed as soon as it is there."""
    print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row


def record(
    name: str,
    device: torch.device,
    rows: list[dict[str, object]],
    about: dict[str, object],
    folder: Path | None,
) -> None:
    """Print what was measured, and write it to results/bench-<name>-<machine>.json where asked for."""
    info = machine(device)
    kind = "gpu" if device.type == "cuda" else "cpu"
    data = " --data-root DATA" if "--data-root" in sys.argv else ""
    found = {
        "benchmark": name,
        "command": f"python benchmarks/{name}.py{data}{command_line(sys.argv[1:]).removeprefix('fewmore')}",
        "date": date.today().isoformat(),
        "machine": f"{info['device']}, {info['cores']} cores, torch {info['torch']}",
        "commit": commit(),
        "about": {k: round(v, 4) if isinstance(v, float) else v for k, v in about.items()},
        "rows": [
            {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
            for row in rows
        ],
    }
    print(json.dumps(found["about"], indent=1))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"bench-{name}-{kind}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    print("run one of the other files")
