"""Choose settings of the compared methods on a validation split of the base classes.

    python benchmarks/tuning.py [--data-root DATA] [--record results]

Each method has the same eight settings: two learning rates of a session, smaller than the papers'
0.1 for hundreds of images per class; two weights of the term that preserves the old classes; batch
norm statistics that are updated or frozen. The weights are the paper's and five times that; for
TOPIC, cross-entropy without and with the images of old nodes. The setting with the highest accuracy
after the last session of the split (research/validation.py) is chosen. Stage 1 is trained once for
each kind of classifier and shared.
"""

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from common import Row, make_parser, print_row, record

from fewmore.data import loading
from fewmore.data.benchmarks import Task
from fewmore.errors import ConfigError
from fewmore.methods import find
from fewmore.research import protocol
from fewmore.research.recipes import recipe
from fewmore.research.validation import validation_task
from fewmore.training.device import prepare_device
from fewmore.training.fast_path import share_gpu
from fewmore.training.runtime import Runtime

RATES = (0.01, 0.001)
# The setting that preserves the old classes: the paper's value, and a stronger one.
STRENGTHS: dict[str, tuple[str, tuple[float, float]]] = {
    "icarl": ("distillation.weight", (1.0, 5.0)),
    "eeil": ("distillation.weight", (1.0, 5.0)),
    "lucir": ("less_forget", (5.0, 25.0)),
    "topic": ("rehearse", (False, True)),
}


def settings_of(method: str) -> list[dict[str, float]]:
    """Return the eight settings of a method.

    The learning rate of EEIL's balanced fine-tuning is a tenth of the session's, as in its paper.
    """
    name, strengths = STRENGTHS[method]
    settings = []
    for rate, strength, frozen in product(RATES, strengths, (False, True)):
        rates = {"session.lr": rate}
        if method == "eeil":
            rates["balanced.lr"] = rate / 10
        settings.append({**rates, name: strength, "session.frozen_norm": frozen})
    return settings


def evaluate(
    task: Task, method: str, settings: dict[str, float], args: argparse.Namespace, stage1: Path
) -> Row:
    """Measure one setting on the sessions of the validation split, in percent."""
    changes = [f"{name}={value!r}" for name, value in settings.items()]
    runtime = Runtime(args.device, stage1_cache=stage1)
    configured = recipe(args.recipe, task.benchmark, method, [*args.set, *changes])
    learner = find(method).build(configured, runtime, args.seed)
    row: Row = {"method": method, **settings}
    began = time.monotonic()
    try:
        with share_gpu(args.device):
            run = protocol.run(learner, task, runtime)
    except ConfigError as error:  # training diverges at this learning rate
        return {**row, "last": 0.0, "error": str(error)}
    summary = run.summary()
    row["first"] = float(summary.accuracy[0])
    row["last"] = float(summary.accuracy[-1])
    row["average"] = float(summary.accuracy.mean())
    for name in ("base", "novel", "harmonic"):
        row[name] = float(getattr(summary, name)[-1])
    row["images_kept"] = run.images_kept[-1]
    row["seconds"] = time.monotonic() - began
    return row


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser(__doc__)
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--benchmark", default="cifar100")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--methods", default=",".join(STRENGTHS))
    parser.add_argument("--recipe")
    parser.add_argument("--set", action="append", default=[], help="change a setting in all runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", type=torch.device, default=default_device)
    parser.add_argument("--parallel", type=int, help="settings side by side; 12 on a GPU, else 1")
    return parser.parse_args()


def main() -> None:
    """Evaluate all settings, and record the best of each method."""
    args = parse_arguments()
    prepare_device(args.device)
    task = validation_task(loading.load_task(args.benchmark, args.data_root))
    task = replace(task, train=task.train.to(args.device), test=task.test.to(args.device))
    print(f"{task.split.name}: {len(task.train):,} images to train on, {len(task.test):,} held out")
    # One setting of each method at a time, so that both kinds of stage 1 begin at once. A run
    # that needs a stage 1 under way waits for it.
    methods = args.methods.split(",")
    runs = [
        (method, settings)
        for group in zip(*map(settings_of, methods), strict=True)
        for method, settings in zip(methods, group, strict=True)
    ]
    workers = args.parallel or (12 if args.device.type == "cuda" else 1)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        measured = pool.map(lambda run: print_row(evaluate(task, *run, args, Path(folder))), runs)
        rows = sorted(measured, key=lambda row: str(row["method"]))
    about: Row = {"benchmark": args.benchmark, "split": task.split.name}
    for method in methods:
        of_method = [row for row in rows if row["method"] == method]
        best = sorted(of_method, key=lambda row: float(str(row["last"])))[-1]
        chosen = {name: value for name, value in best.items() if name in settings_of(method)[0]}
        about[method] = ", ".join(f"{name}={value}" for name, value in chosen.items())
    record("tuning", args.device, rows, about, args.record)


if __name__ == "__main__":
    main()
