"""Settings of the comparison's methods, chosen on base classes alone: out of the same eight for each, on the rehearsal of
evaluation/pretend.py.

    python benchmarks/tuning.py [--data-root DATA] [--record results]

The eight are two learning rates of a session, gentler than the papers' 0.1 for hundreds of images a class, with two strengths of
what holds the old classes, with batch norms whose statistics move or stand still. The strengths are the paper's weight and five times
that; in TOPIC, cross-entropy without and with the images of old nodes. The setting with the highest accuracy after the last pretended
session is chosen. Stage 1 is trained once for each kind of classifier and shared.
"""

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from common import record, shown

from fewmore.data import benchmarks
from fewmore.data.benchmarks import Task
from fewmore.errors import ConfigError
from fewmore.methods import find
from fewmore.research import protocol
from fewmore.research.recipes import recipe
from fewmore.research.validation import pretend
from fewmore.training.device import enable_cudnn_benchmark
from fewmore.training.fast_path import share_gpu
from fewmore.training.runtime import Runtime

RATES = (0.01, 0.001)
STRENGTHS = {  # of what holds the old classes: the paper's, and more
    "icarl": ("distillation.weight", (1.0, 5.0)),
    "eeil": ("distillation.weight", (1.0, 5.0)),
    "lucir": ("less_forget", (5.0, 25.0)),
    "topic": ("rehearse", (False, True)),
}


def settings_of(method: str) -> list[dict[str, float]]:
    """The eight settings; the rate of EEIL's second part is a tenth of the first one's, as in its paper."""
    name, strengths = STRENGTHS[method]
    tenth = {rate: {"balanced.lr": rate / 10} if method == "eeil" else {} for rate in RATES}
    return [
        {"session.lr": rate, **tenth[rate], name: strength, "session.frozen_norm": frozen}
        for rate, strength, frozen in product(RATES, strengths, (False, True))
    ]


def _named(method: str) -> list[tuple[str, dict[str, float]]]:
    return [(method, setting) for setting in settings_of(method)]


def tried(
    task: Task, method: str, settings: dict[str, float], args: argparse.Namespace, share: Path
) -> dict[str, object]:
    """What one setting reaches on the pretended sessions, in percent."""
    changes = [f"{name}={value!r}" for name, value in settings.items()]
    runtime = Runtime(args.device, stage1_cache=share)
    learner = find(method).build(
        recipe(args.recipe, task.benchmark, method, [*args.set, *changes]), runtime, args.seed
    )
    row: dict[str, object] = {"method": method, **settings}
    began = time.monotonic()
    try:
        with share_gpu(args.device):
            found = protocol.run(learner, task, runtime)
    except ConfigError as error:  # a rate at which training diverges
        return {**row, "last": 0.0, "error": str(error)}
    summary = found.summary()
    row |= {
        "first": float(summary.accuracy[0]),
        "last": float(summary.accuracy[-1]),
        "average": float(summary.accuracy.mean()),
    }
    row |= {name: float(getattr(summary, name)[-1]) for name in ("base", "novel", "harmonic")}
    return {**row, "images_kept": found.images_kept[-1], "seconds": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--benchmark", default="cifar100")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--methods", default=",".join(STRENGTHS))
    parser.add_argument("--recipe")
    parser.add_argument(
        "--set", action="append", default=[], help="change a setting in all of them"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--parallel", type=int, help="settings side by side; 12 on a GPU, else 1")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    enable_cudnn_benchmark(args.device)
    task = pretend(benchmarks.load(args.benchmark, args.data_root))
    task = replace(task, train=task.train.to(args.device), test=task.test.to(args.device))
    print(f"{task.split.name}: {len(task.train):,} images to train on, {len(task.test):,} held out")
    # One setting of each method at a time, so that both kinds of stage 1 begin at once; who needs one that is under way waits for it.
    every = [
        (method, setting)
        for settings in zip(*map(_named, args.methods.split(",")), strict=True)
        for method, setting in settings
    ]
    workers = args.parallel or (12 if args.device.type == "cuda" else 1)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        found = pool.map(lambda one: shown(tried(task, *one, args, Path(folder))), every)
        rows = sorted(found, key=lambda row: str(row["method"]))
    best = {
        str(row["method"]): row for row in sorted(rows, key=lambda row: float(str(row["last"])))
    }  # the best of a method comes last
    about = {
        method: ", ".join(f"{name}={row[name]}" for name in settings_of(method)[0])
        for method, row in best.items()
    }
    record(
        "tuning",
        args.device,
        rows,
        {"benchmark": args.benchmark, "split": task.split.name, **about},
        args.record,
    )


if __name__ == "__main__":
    main()
