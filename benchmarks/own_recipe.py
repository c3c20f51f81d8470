"""Train variants of the own recipe's stage 1 on the validation split, and keep their features.

    python benchmarks/own_recipe.py variants.json --data-root DATA --device cuda --out FOLDER

A variant has a name and settings: {"flat": ["pretrain.closeness=0"], …}; "features=s3c" among them
takes another feature recipe. All are run side by side, on the validation split of the base classes:
test images and new classes of the benchmark are never used. What each reached is recorded
(`--record`). The features of all images in several test views are written to FOLDER/NAME.npz;
benchmarks/own_classifier.py compares classifiers on them.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import Row, make_parser, print_row, record

from fewmore.cli.research_options import run_options
from fewmore.data.benchmarks import Task
from fewmore.methods import evolve, find
from fewmore.research import runner
from fewmore.research.fitting import fit_to_base
from fewmore.research.results import RunResult
from fewmore.research.run_folder import CONFIG, MODEL, RESULT, write_config
from fewmore.research.runner import Plan, RunOptions
from fewmore.research.tuning import MEASURES, Search, Trial
from fewmore.research.validation import validation_task
from fewmore.training.checkpoint import read_state
from fewmore.training.embed import embed
from fewmore.training.runtime import Runtime

METHOD = "evolve"
# Test views by the number of rotations that a network was trained with.
VIEWS = {
    1: ("plain", "flip"),
    2: (*evolve.VIEWS, *evolve.LARGE_VIEWS),
    4: ("plain", "rot90", "rot180", "rot270"),
}


def write_features(
    plan: Plan, seed: int, task: Task, new_share: float, options: RunOptions, path: Path
) -> None:
    """Write the features of all images of a task, by the network that a run has trained.

    `new_share` is that of new classes in the last session of the benchmark.
    """
    recipe = plan.experiment.recipe
    method = find(METHOD).build(recipe, Runtime(options.device), seed)
    [model] = plan.folder.glob(f"seed{seed}*/{MODEL}")
    method.restore(read_state(model))
    views = VIEWS[recipe.pretrain.rotations]
    transform = replace(recipe.transform, test_views=views, view_features="separate")
    arrays = {
        "views": np.array(views),
        "base": np.array(task.benchmark.base),
        "way": np.array(task.benchmark.way),
        "new_share": np.array(new_share),
    }
    for name, images in (("train", task.train), ("test", task.test)):
        features = embed(method.network.backbone, images.to(options.device), transform)
        arrays[name] = features.half().cpu().numpy()
        arrays[f"{name}_labels"] = images.labels.cpu().numpy()
    np.savez(path, **arrays)


def run_variants(
    variants: dict[str, list[str]], args: argparse.Namespace, options: RunOptions
) -> None:
    """Run all variants side by side, record what each reached, and write their features."""
    plans: dict[Path, tuple[str, Plan]] = {}
    search = Search(args.benchmark, METHOD, {"alpha": ["0.1"]}, seeds=(args.seed,))
    experiments = {
        name: replace(search, settings=tuple(settings)).experiment({})
        for name, settings in variants.items()
    }
    transforms = [experiment.recipe.transform for experiment in experiments.values()]
    loaded = runner.load_task(args.benchmark, options, args.data_root, transforms=transforms)
    task = validation_task(loaded, args.draw)
    print(f"{task.split.name}: {len(task.train):,} images to train on, {len(task.test):,} held out")
    for number, (name, experiment) in enumerate(experiments.items(), 1):
        plan = Plan(fit_to_base(experiment, task), args.out / "runs" / f"trial{number}")
        config = plan.folder / CONFIG
        if config.exists() and config.read_text() != plan.experiment.to_json():
            raise SystemExit(f"{plan.folder} is of another variant: give another folder with --out")
        plan.folder.mkdir(parents=True, exist_ok=True)
        write_config(plan.folder, plan.experiment)
        plans[plan.folder] = (name, plan)
    rows: list[Row] = []

    def keep(plan: Plan, outcome: RunResult | Exception) -> None:
        name, _ = plans[plan.folder]
        row: Row = {"variant": name, "settings": variants[name], "seed": args.seed}
        if isinstance(outcome, RunResult):
            trial = Trial(1, {}, {}).finished(outcome)
            row |= {measure: trial.mean(measure) for measure in MEASURES}
            row["seconds"] = trial.seconds[0]
        else:
            row["error"] = f"{type(outcome).__name__}: {outcome}"
        rows.append(print_row(row))
        about: Row = {"benchmark": args.benchmark, "split": task.split.name, "method": METHOD}
        record("own_recipe", options.device, rows, about, args.record, part=args.part)

    runner.run_plans([plan for _, plan in plans.values()], task, options, keep, keep)
    whole = loaded.benchmark
    new_share = 1 - whole.base / whole.classes
    # Not before: embedding beside runs that capture their steps would invalidate these.
    for name, plan in plans.values():
        if (plan.folder / RESULT).exists():
            write_features(plan, args.seed, task, new_share, options, args.out / f"{name}.npz")


def main() -> None:
    """Run the variants of a file."""
    parser = make_parser(__doc__)
    parser.add_argument("variants", type=Path, help="JSON: settings by name")
    parser.add_argument("--benchmark", default="cifar100")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=Path("own-recipe"))
    parser.add_argument("--part", help="name of this part of the search in the record")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", type=int, default=0, help="of held-out images and shots")
    parser.add_argument("--device")
    parser.add_argument("--parallel", type=int, help="runs side by side")
    args = parser.parse_args()
    options = run_options(args.device, args.parallel, accel=True, precision=None)
    run_variants(json.loads(args.variants.read_text()), args, options)


if __name__ == "__main__":
    main()
