"""List the rows that the tables still lack, and measure as many of them as fit into a time.

    python benchmarks/missing.py                       # what is missing, the most important first
    python benchmarks/missing.py cifar100 --stale      # and what was measured with other code
    python benchmarks/missing.py cifar100 --measure OUT --minutes 25 --workers 5 \\
        --data-root DATA --device cuda

Rows that share a stage 1 are measured together, a seed at a time, by `fewmore run` in a process of
its own; `--workers` of them run side by side. What a lack of time stops goes on at the next call
with the same OUT; with `--stale`, give a new one. Whatever is finished lies in OUT, a result a row:
`cp OUT/*.json results`, then `make docs`.
"""

import argparse
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from common import make_parser

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.methods import FEATURES, METHODS
from fewmore.methods.features import PLAIN, PRETRAINED
from fewmore.methods.registry import CLASSIFIERS, classifier_of
from fewmore.research import results
from fewmore.research.machine import source_digest
from fewmore.research.outdated import recipe_changes
from fewmore.research.published import ROW_OF_METHOD
from fewmore.research.results import RunResult
from fewmore.research.results.schema import default_recipe

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = "joint"  # trains anew at each session
# What the rows are for, the most important first, and the seeds of each; glyphs has three of all.
SEEDS = {"main": 5, "own": 3, "paper": 3, "later": 3, "features": 1, "ablation": 1, "reference": 1}
MAIN = ("decoupled-cosine", "cec")
OWN = "evolve"


@dataclass(frozen=True)
class Row:
    """Name a row of the tables: a method on features."""

    benchmark: str
    method: str
    features: str
    purpose: str  # a key of SEEDS

    @property
    def name(self) -> str:
        """Return the name of its result's file, without suffix."""
        features = [] if self.features == METHODS[self.method].features else [self.features]
        recipe = default_recipe(self.benchmark)
        parts = [
            self.benchmark,
            self.method,
            *features,
            *([recipe] if recipe != "official" else []),
        ]
        return "-".join(parts)

    @property
    def seeds(self) -> int:
        """Return how many seeds it is to have."""
        return 3 if self.benchmark == "glyphs" else SEEDS[self.purpose]


def wanted(benchmark: str) -> Iterator[Row]:
    """Yield the rows of a benchmark's tables, the most important first, each once."""
    entry = BENCHMARKS[benchmark]
    own = [name for name, info in METHODS.items() if info.features != PLAIN]
    grid = [
        (method, features)
        for features in FEATURES
        for method in CLASSIFIERS
        # CLOSER's own classifier, for one, is the plain cosine.
        if features not in METHODS or method != classifier_of(features, entry)
        if features != PRETRAINED or entry.pretrained
    ]
    purposes = {
        "main": [(method, None) for method in MAIN],
        "own": [(OWN, None)],
        "paper": [(method, None) for method in ROW_OF_METHOD],
        "later": [(method, None) for method in own],
        "features": grid,
        "ablation": [(method, None) for method in METHODS if method != REFERENCE],
        # With few epochs it says nothing.
        "reference": [(REFERENCE, None)] if default_recipe(benchmark) == "official" else [],
    }
    seen = set()
    for purpose, rows in purposes.items():
        for method, features in rows:
            row = Row(benchmark, method, features or METHODS[method].features, purpose)
            if row.name not in seen:
                seen.add(row.name)
                yield row


def recorded(folder: Path) -> dict[str, RunResult]:
    """Read the recorded rows, by the names of their files."""
    files = (path for name in BENCHMARKS for path in folder.glob(f"{name}-*.json"))
    return {path.stem: results.read(path) for path in files}


def missing(rows: Iterable[Row], known: dict[str, RunResult], stale: bool) -> list[Row]:
    """Return the rows with too few seeds, of an earlier recipe, or without fused layers.

    With `stale` also those that other code measured.
    """

    def is_missing(row: Row) -> bool:
        result = known.get(row.name)
        if result is None or len(set(result.seeds)) < row.seeds or not is_current(result):
            return True
        return stale and result.machine.get("source") != source_digest()

    return [row for row in rows if is_missing(row)]


def seconds_of(row: Row, known: dict[str, RunResult]) -> float | None:
    """Estimate the seconds of a seed by the row's record, or that of its features' own method."""
    for name in (row.name, f"{row.benchmark}-{row.features}"):
        times = [each for each in known[name].total_seconds if each] if name in known else []
        if times:
            return fmean(times)
    return None


@dataclass(frozen=True)
class Job:
    """Hold rows that share a stage 1, and one seed."""

    rows: tuple[Row, ...]
    seed: int

    @property
    def name(self) -> str:
        """Return a name for its folder and for what is printed."""
        first = self.rows[0]
        return f"{first.benchmark}-{first.features}-{first.purpose}-seed{self.seed}"

    def arguments(self) -> list[str]:
        """Return the arguments of `fewmore` that measure it."""
        first = self.rows[0]
        methods = [word for row in self.rows for word in ("-m", row.method)]
        features = ["--features", first.features]
        return ["run", first.benchmark, *features, *methods, "--seed", str(self.seed)]

    def seconds(self, known: dict[str, RunResult]) -> float:
        """Estimate its seconds: those of its longest row, as the rows run side by side."""
        return max(seconds_of(row, known) or 0.0 for row in self.rows)


def jobs(rows: Sequence[Row]) -> list[Job]:
    """Group rows by purpose and features, in order, and split them into seeds."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.purpose, row.benchmark, row.features), []).append(row)
    return [
        Job(tuple(row for row in group if seed < row.seeds), seed)
        for group in groups.values()
        for seed in range(max(row.seeds for row in group))
    ]


def is_current(result: RunResult) -> bool:
    """Say whether a row was measured with the recipe of today, and with fused layers on a GPU."""
    return not (recipe_changes(result) or result.layer_failure)


def is_done(file: Path) -> bool:
    """Say whether a row was measured as it is today."""
    return file.exists() and is_current(results.read(file))


class Measurement:
    """Measure jobs, several side by side, until the time is over."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.out: Path = args.measure
        self.end = time.monotonic() + 60 * args.minutes
        self.options = ["--device", args.device, "--runs", str(self.out / "runs"), "--resume"]
        if args.data_root is not None:
            self.options += ["--data-root", str(args.data_root)]
        self.lock = threading.Lock()  # of printing and gathering

    def run(self, todo: Sequence[Job], known: dict[str, RunResult], workers: int) -> None:
        """Start the jobs in order, but none that is not expected to end in time."""
        for job in todo:
            self.gather(job.rows)  # what calls that were stopped have left
        with ThreadPoolExecutor(workers) as pool:
            running = [pool.submit(self.measure, job, job.seconds(known)) for job in todo]
        for each in running:
            each.result()  # raises what a job failed with by an error of this script

    def measure(self, job: Job, expected: float) -> None:
        """Run a job, unless it was finished before, and gather its rows."""
        folder = self.out / "jobs" / job.name
        if all(is_done(folder / f"{row.name}.json") for row in job.rows):
            return
        began = time.monotonic()
        left = self.end - began
        if left < max(expected, 1.0):
            self.say(f"{job.name}: not started, {max(left, 0):.0f} s are left")
            return
        folder.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "fewmore", *job.arguments(), *self.options, "--record"]
        with (folder / "log.txt").open("a") as log:
            try:
                code = subprocess.run(
                    [*words, str(folder)], stdout=log, stderr=log, timeout=left, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                self.say(f"{job.name}: stopped, the time is over")
                self.gather(job.rows)
                return
        outcome = "finished" if code == 0 else f"failed, see {folder / 'log.txt'}"
        self.say(f"{job.name}: {outcome} after {time.monotonic() - began:.0f} s")
        self.gather(job.rows)

    def gather(self, rows: Iterable[Row]) -> None:
        """Write the finished seeds of each row, of one version of the code, as one result."""
        with self.lock:
            for row in rows:
                files = filter(is_done, sorted((self.out / "jobs").glob(f"*/{row.name}.json")))
                of_version = defaultdict(list)
                for result in map(results.read, files):
                    of_version[results.code_version(result)].append(result)
                if pools := [pool for same in of_version.values() for pool in results.pools(same)]:
                    results.write(self.out / f"{row.name}.json", results.merge(max(pools, key=len)))

    def say(self, line: str) -> None:
        """Print a line at once, whatever the other threads print."""
        with self.lock:
            print(line, flush=True)


def main() -> None:
    """List what is missing, or measure it."""
    parser = make_parser(__doc__)
    parser.add_argument("benchmarks", nargs="*", metavar="benchmark", help="all, if none is named")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="rows such as cifar100-fact")
    parser.add_argument("--stale", action="store_true", help="also rows that other code measured")
    parser.add_argument("--measure", type=Path, metavar="OUT", help="measure them, into a folder")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--workers", type=int, default=1, help="jobs side by side")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    known = recorded(ROOT / "results")
    rows = [row for name in args.benchmarks or BENCHMARKS for row in wanted(name)]
    rows = [
        row for row in missing(rows, known, args.stale) if not args.only or row.name in args.only
    ]
    if args.measure:
        Measurement(args).run(jobs(rows), known, args.workers)
        return
    for row in rows:
        seconds = seconds_of(row, known)
        about = f", about {seconds:.0f} s each" if seconds else ""
        print(f"{row.purpose:10}{row.name}: {row.seeds} seeds{about}")


if __name__ == "__main__":
    main()
