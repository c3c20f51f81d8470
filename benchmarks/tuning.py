"""Choose settings of the compared methods on the validation split of the base classes.

    python benchmarks/tuning.py --data-root DATA --seeds 2 --parallel 12 --record results
    python benchmarks/tuning.py --commands results     # of the runs with what was chosen

Tried are the learning rate of a session, the weights of the terms that preserve the old classes,
and whether batch norm statistics are frozen. A search begins with the recipe's settings, with those
of an earlier search that learnt most of the new classes, and with the paper's, and goes on beside
the best trial by accuracy after the last session and beside the best by harmonic mean (growing.py).
Both are chosen and recorded, with all trials, in a file for each method. Stage 1 is shared.
"""

import argparse
import json
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from common import Row, make_parser, print_row, record
from growing import Growth, Ladders, Settings, best, edges

from fewmore.cli.research_options import run_options
from fewmore.data.benchmarks import Task
from fewmore.research import runner
from fewmore.research.fitting import fit_to_base
from fewmore.research.results import RunResult
from fewmore.research.runner import Plan, RunOptions
from fewmore.research.tuning import MEASURES, Search, Trial
from fewmore.research.validation import validation_task

RATES = [
    "0.00001",
    "0.00003",
    "0.0001",
    "0.0003",
    "0.001",
    "0.003",
    "0.01",
    "0.03",
    "0.1",
    "0.3",
    "1",
]
WEIGHTS = ["0", "0.2", "1", "5", "25", "125", "625", "3125"]
COMMON = {"session.lr": RATES, "session.frozen_norm": ["false", "true"]}
LADDERS: dict[str, Ladders] = {
    "icarl": {**COMMON, "distillation.weight": WEIGHTS},
    "eeil": {**COMMON, "distillation.weight": WEIGHTS},
    "lucir": {**COMMON, "less_forget": WEIGHTS},
    "topic": {
        **COMMON,
        "anchor": ["0", "0.02", "0.1", "0.5", "2.5", "12.5", "62.5"],
        "min_max": ["0", "0.0002", "0.001", "0.005", "0.025", "0.125", "0.625"],
        "rehearse": ["false", "true"],
    },
}
# The recipe's, those with the highest harmonic mean so far (results/bench-tuning-gpu.json), and the
# paper's: values in the order of the ladders. LUCIR's first two are the same.
STARTS = {
    "icarl": ("0.001 true 5", "0.01 false 5", "0.1 false 1"),
    "eeil": ("0.001 true 5", "0.01 false 1", "0.1 false 1"),
    "lucir": ("0.01 false 25", "0.1 false 5"),
    "topic": (
        "0.001 false 0.5 0.005 true",
        "0.01 true 0.5 0.005 true",
        "0.1 false 0.5 0.005 false",
    ),
}
CHOSEN_BY = ("last", "harmonic")


def complete(method: str, settings: Settings) -> Settings:
    """Add the rate of EEIL's second part: a tenth of the first one's, as in its paper."""
    if method != "eeil":
        return settings
    return {**settings, "balanced.lr": f"{float(settings['session.lr']) / 10:g}"}


@dataclass
class MethodSearch:
    """Hold the search of one method: its trials so far, and what comes next."""

    search: Search
    growth: Growth
    trials: list[Trial] = field(default_factory=list)

    def plan(self, folder: Path, task: Task) -> Iterator[Plan]:
        """Add the next trials, and yield their plans."""
        method, ladders = self.search.method, self.growth.ladders
        starts = [dict(zip(ladders, texts.split(), strict=True)) for texts in STARTS[method]]
        for settings in self.growth.propose(self.trials) if self.trials else starts:
            trial = Trial(len(self.trials) + 1, settings, {})
            self.trials.append(trial)
            place = folder / method / trial.folder
            place.mkdir(parents=True)
            experiment = self.search.experiment(complete(method, settings))
            yield Plan(fit_to_base(experiment, task), place)

    def keep(self, plan: Plan, outcome: RunResult | Exception) -> None:
        """Keep what came of a trial: its measures, or the error that it failed with."""
        place = next(i for i, t in enumerate(self.trials) if t.folder == plan.folder.name)
        trial = self.trials[place]
        if isinstance(outcome, RunResult):
            self.trials[place] = trial.finished(outcome)
        else:
            self.trials[place] = replace(trial, error=f"{type(outcome).__name__}: {outcome}")
        print_row({"method": self.search.method, **self.row(self.trials[place])})

    def row(self, trial: Trial) -> Row:
        """Return a trial as it is recorded: means over the seeds, and what each seed reached."""
        row: Row = {"settings": complete(self.search.method, trial.settings)}
        if not trial.measures:
            return {**row, "error": trial.error}
        row |= {name: trial.mean(name) for name in MEASURES}
        return {**row, "by seed": {name: trial.measures[name] for name in CHOSEN_BY}}

    def choices(self) -> Row:
        """Return the best by each measure, what of it is at an edge, and the command of its row."""
        choices: Row = {}
        for measure in CHOSEN_BY:
            choice = best(self.trials, measure)
            choices[f"by {measure}"] = {
                **self.row(choice),
                "at an edge": edges(choice, self.trials, self.growth.ladders),
                "command": self.command(complete(self.search.method, choice.settings)),
            }
        return choices

    def command(self, settings: Settings) -> str:
        """Return the command that runs settings on the test images."""
        words = ["fewmore", "run", self.search.benchmark, "-m", self.search.method, "--seeds", "3"]
        changes = [*self.search.settings, *(f"{name}={text}" for name, text in settings.items())]
        words += [word for change in changes for word in ("--set", change)]
        return shlex.join([*words, "--record", "results/choices"])


def run_all(
    searches: dict[str, MethodSearch], task: Task, options: RunOptions, folder: Path | None
) -> None:
    """Run the trials of all searches side by side, and record them after each batch."""

    def keep(plan: Plan, outcome: RunResult | Exception) -> None:
        searches[plan.folder.parent.name].keep(plan, outcome)

    with tempfile.TemporaryDirectory() as runs:
        while plans := [p for each in searches.values() for p in each.plan(Path(runs), task)]:
            # The first trials of each method first, so that both kinds of stage 1 begin at once.
            plans.sort(key=lambda plan: int(plan.folder.name.removeprefix("trial")))
            runner.run_plans(plans, task, options, keep, keep)
            for method, each in searches.items():
                about: Row = {
                    "benchmark": each.search.benchmark,
                    "split": task.split.name,
                    "method": method,
                    "seeds": len(each.search.seeds),
                    "trials": len(each.trials),
                    **each.choices(),
                }
                rows = [each.row(trial) for trial in each.trials]
                record("tuning", options.device, rows, about, folder, part=method)


def print_commands(folder: Path) -> None:
    """Print the command of each choice that is recorded in a folder, each once."""
    abouts = [
        json.loads(path.read_text())["about"] for path in sorted(folder.glob("bench-tuning-*.json"))
    ]
    choices = [about.get(f"by {measure}") for about in abouts for measure in CHOSEN_BY]
    for command in dict.fromkeys(choice["command"] for choice in choices if choice):
        print(command)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--benchmark", default="cifar100")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--methods", default=",".join(LADDERS))
    parser.add_argument("--set", action="append", default=[], help="change a setting in all runs")
    parser.add_argument("--seeds", type=int, default=2, help="of each trial")
    parser.add_argument("--most", type=int, default=Growth.most, help="trials of a method")
    parser.add_argument("--device")
    parser.add_argument("--parallel", type=int, help="runs side by side; 12 fill a large GPU")
    parser.add_argument("--commands", type=Path, help="print commands from records in this folder")
    return parser.parse_args()


def main() -> None:
    """Search the settings of each method, or print the commands of what was chosen."""
    args = parse_arguments()
    if args.commands:
        print_commands(args.commands)
        return
    options = run_options(args.device, args.parallel, accel=True, precision=None)
    searches = {}
    for method in args.methods.split(","):
        search = Search(
            args.benchmark,
            method,
            LADDERS[method],
            settings=tuple(args.set),
            seeds=tuple(range(args.seeds)),
        )
        growth = Growth(LADDERS[method], CHOSEN_BY, most=args.most)
        searches[method] = MethodSearch(search, growth)
    transforms = [each.search.plain_recipe().transform for each in searches.values()]
    loaded = runner.load_task(args.benchmark, options, args.data_root, transforms=transforms)
    task = validation_task(loaded)
    print(f"{task.split.name}: {len(task.train):,} images to train on, {len(task.test):,} held out")
    run_all(searches, task, options, args.record)


if __name__ == "__main__":
    main()
