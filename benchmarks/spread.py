"""Measure how far results on glyphs differ between seeds and between numbers of threads.

    python benchmarks/spread.py [--seeds 5] [--set NAME=VALUE …] [--record results]

Both methods run as typed on the command line, each seed with one and with two threads; another
number of threads rounds differently, as another machine does. The spread of a method is the largest
minus the smallest accuracy after the last session, over all its runs. It is a property of the
benchmark and of the recipe `quick`; nothing else is chosen by it.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from common import Row, make_parser, print_row, record

from fewmore.research import results

METHODS = ("decoupled-cosine", "cec")
THREADS = (1, 2)


def measure(seed: int, threads: int, settings: list[str], folder: Path) -> list[Row]:
    """Run both methods in a process of their own, and return a row for each."""
    command = [sys.executable, "-m", "fewmore", "run", "glyphs", "--device", "cpu"]
    command += ["--seed", str(seed), "--runs", str(folder / f"{seed}-{threads}")]
    command += [part for method in METHODS for part in ("--method", method)]
    command += [part for setting in settings for part in ("--set", setting)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    cpu_seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    rows = []
    for path in sorted((folder / f"{seed}-{threads}").glob("*/result.json")):
        result = results.read(path.parent)
        (last,) = result.last
        rows.append(
            print_row(
                {
                    "method": result.method,
                    "seed": seed,
                    "threads": threads,
                    "last session %": last,
                    "cpu s, both methods": cpu_seconds,
                }
            )
        )
    return rows


def main() -> None:
    """Run all seeds with each number of threads, and record the spread of each method."""
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], help="change a setting in all runs")
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            for threads in THREADS:
                rows += measure(seed, threads, args.set, Path(folder))
    about: Row = {"benchmark": "glyphs", "recipe": "quick"}
    for method in METHODS:
        last = [float(str(row["last session %"])) for row in rows if row["method"] == method]
        about[f"{method}: mean"] = sum(last) / len(last)
        about[f"{method}: spread"] = max(last) - min(last)
    record("spread", torch.device("cpu"), rows, about, args.record)


if __name__ == "__main__":
    main()
