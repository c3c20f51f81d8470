"""Run methods on a benchmark: `fewmore run`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fewmore.cli import research_options as options
from fewmore.cli import torchrun
from fewmore.cli.dry_run import print_plan
from fewmore.cli.experiments import experiments_of, numbers, read_config
from fewmore.cli.report import write_report
from fewmore.cli.terminal import console, interrupt_hint, json_alone
from fewmore.errors import ConfigError, FewmoreError

if TYPE_CHECKING:  # torch waits until the command runs
    from rich.console import Console

    from fewmore.data.benchmarks import StoredSize, Task
    from fewmore.research.experiment import Experiment
    from fewmore.research.results import RunResult
    from fewmore.research.runner import Plan, RunOptions


def run(
    benchmark: options.BenchmarkName = None,
    method: options.MethodNames = None,
    features: options.Features = None,
    recipe: options.RecipeName = None,
    settings: options.Settings = None,
    seeds: options.Seeds = None,
    seed: options.Seed = None,
    draws: options.Draws = None,
    draw: options.Draw = None,
    base: options.Base = None,
    way: options.Way = None,
    shot: options.Shot = None,
    class_order: options.ClassOrder = None,
    data_root: options.DataRoot = None,
    runs: options.Runs = Path("runs"),
    resume: options.Resume = False,
    device: options.Device = None,
    parallel: options.Parallel = None,
    accel: options.Accel = True,
    precision: options.Precision = None,
    batch_norm: options.BatchNorm = "sync",
    launcher: options.LauncherName = "local",
    address: options.Address = None,
    gpus_per_run: options.GpusPerRun = None,
    cpus_per_run: options.CpusPerRun = None,
    slurm: options.SlurmSettings = None,
    fresh: options.Fresh = False,
    record: options.Record = None,
    save_scores: options.SaveScores = False,
    save_sessions: options.SaveSessions = False,
    log: options.Log = None,
    config: options.Config = None,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Run methods on a benchmark session by session; show what they remember and learn."""
    split = {"base": base, "way": way, "shot": shot, "class_order": class_order}
    if config is not None:
        given = [benchmark, method, features, recipe, settings, seeds, seed, draws, draw]
        experiments = [read_config(config, [*given, *split.values()])]
    else:
        all_seeds = numbers("--seeds", seeds, "--seed", seed) or (0,)
        all_draws = numbers("--draws", draws, "--draw", draw) or (None,)
        common: dict[str, Any] = {"seeds": all_seeds, "draws": all_draws, **split}
        experiments = experiments_of(benchmark, method, features, recipe, settings or [], **common)
    if dry_run:
        _print_plan(experiments, runs, resume, data_root)
        return
    device, runs, record = torchrun.join(device, runs, record, launcher, parallel)
    if resume and (done := _read_finished(experiments, runs)):
        unsaved = ", and nothing more is saved" if save_scores or save_sessions else ""
        console(quiet=quiet or as_json).print(f"all runs are finished{unsaved}")
        _record(done, record)
        _print_results(done, as_json)
        return
    run_options = options.run_options(
        device,
        parallel,
        accel,
        precision,
        not fresh,
        log or (),
        options.build_launcher(launcher, address, gpus_per_run, cpus_per_run, slurm, device),
        save_scores=save_scores,
        save_sessions=save_sessions,
        batch_norm=batch_norm,
    )
    _make_folders(runs, record)
    out = console(quiet=quiet or as_json)
    failures = Failures(single=len(experiments) == 1 or torchrun.process_count() > 1)
    with interrupt_hint("stopped; go on with the same command and --resume"), json_alone(as_json):
        tasks = _load_tasks(experiments, run_options, data_root, out)
        experiments = _fit_all(experiments, tasks, out, failures)
        plans = _Plans(runs, tasks, run_options, record, out, failures)
        finished = plans.run(experiments, resume)
    _print_results(finished, as_json)
    if failures.methods:
        raise typer.Exit(2)


def _print_plan(
    experiments: "list[Experiment]", runs: Path, resume: bool, data_root: Path | None
) -> None:
    """Print what would be run."""
    from fewmore.research.runner import RunOptions

    def load() -> "Task":
        first = experiments[:1]
        return _load_tasks(first, RunOptions(), data_root, console(quiet=True))[_stored(first[0])]

    print_plan(experiments, runs, resume, load)


class _Plans:
    """Run experiments and show their progress: all at once where runs go side by side."""

    def __init__(
        self,
        runs: Path,
        tasks: "dict[StoredSize, Task]",
        run_options: "RunOptions",
        record: Path | None,
        out: "Console",
        failures: "Failures",
    ) -> None:
        self.runs = runs
        self.tasks = tasks
        self.run_options = run_options
        self.record = record
        self.out = out
        self.failures = failures
        self.finished: dict[int, RunResult] = {}  # by the id of the experiment

    def run(self, experiments: "list[Experiment]", resume: bool) -> "list[RunResult]":
        """Run the experiments, or only those that are not finished; return the results of all."""
        from fewmore.research import run_folder
        from fewmore.training.distributed import from_first, is_first

        known: list[Path | None] = [None] * len(experiments)
        if resume and is_first():
            known = run_folder.find(self.runs, experiments, prefer_finished=False)
        done = from_first(lambda: [_read_result(folder) for folder in known])
        missing: list[tuple[Experiment, Path | None]] = []
        for experiment, folder, result in zip(experiments, known, done, strict=True):
            if result is not None:
                self.finished[id(experiment)] = result
                _record([result], self.record)
                self._print(f"finished already: {folder}")
            else:
                missing.append((experiment, folder))
                if resume and folder is None and is_first():
                    self._name_other_code(experiment)
        options = self.run_options
        at_once = options.launcher is not None or options.workers(len(missing)) > 1
        if at_once and len(missing) > 1:
            self._run_together(missing)
        else:
            self._run_in_turn(missing)
        numbers = map(id, experiments)
        return [self.finished[number] for number in numbers if number in self.finished]

    def _name_other_code(self, experiment: "Experiment") -> None:
        """Say which runs are not gone on with, because a user's file was edited since."""
        from fewmore.research import run_folder

        for folder in run_folder.find_of_other_code(self.runs, experiment):
            self._print(
                f"left as it is: {folder}, which was begun with another version of "
                f"{experiment.method}, its features or its benchmark"
            )

    def _run_in_turn(self, experiments: "list[tuple[Experiment, Path | None]]") -> None:
        from fewmore.cli.live import LiveWatcher
        from fewmore.research.runner import Plan, run_plans

        for experiment, known in experiments:
            with self.failures.reported(experiment):
                folder = known or _create_folder(self.runs, experiment)
                with LiveWatcher(self.out, experiment, self.run_options.place) as watcher:
                    plan = Plan(experiment, folder, watcher)
                    task = self.tasks[_stored(experiment)]
                    [result] = run_plans([plan], task, self.run_options)
                self._keep(plan, result)

    def _run_together(self, experiments: "list[tuple[Experiment, Path | None]]") -> None:
        from fewmore.cli.live import StudyWatcher, heading
        from fewmore.research.runner import Plan, run_plans

        with StudyWatcher(self.out) as watcher:
            self.out.print(heading([each for each, _ in experiments], self.run_options.place))
            watcher.expect(sum(len(experiment.runs()) for experiment, _ in experiments))
            for size, task in self.tasks.items():
                plans = [
                    Plan(
                        experiment,
                        known or _create_folder(self.runs, experiment),
                        watcher.of(_name(experiment)),
                    )
                    for experiment, known in experiments
                    if _stored(experiment) == size
                ]
                run_plans(plans, task, self.run_options, self._keep, self._fail)

    def _keep(self, plan: "Plan", result: "RunResult") -> None:
        self.finished[id(plan.experiment)] = result
        task = self.tasks[_stored(plan.experiment)]
        _write_outputs(result, plan.folder, task, self.record)
        self._print(f"run folder: {plan.folder}")

    def _fail(self, plan: "Plan", error: Exception) -> None:
        with self.failures.reported(plan.experiment):
            raise error

    def _print(self, text: str) -> None:
        self.out.print(text, style="dim", markup=False, soft_wrap=True)


def _name(experiment: "Experiment") -> str:
    """Return the name of an experiment's method, and of its features if they are not its own."""
    from fewmore.methods import find
    from fewmore.research.results import short_features

    features = short_features(experiment.settings)
    return find(experiment.method).name + (f"-{features}" if features else "")


def _create_folder(runs: Path, experiment: "Experiment") -> Path:
    from fewmore.research import run_folder

    return run_folder.create(runs, experiment, _name(experiment))


def _read_finished(experiments: "list[Experiment]", runs: Path) -> "list[RunResult]":
    """Return the results if all experiments are finished: then no image has to be loaded."""
    from fewmore.research import run_folder
    from fewmore.training.distributed import from_first

    def read() -> "list[RunResult]":
        folders = run_folder.find(runs, experiments, prefer_finished=False)
        if not all(folder is not None and run_folder.is_finished(folder) for folder in folders):
            return []
        return [result for result in map(_read_result, folders) if result is not None]

    return from_first(read)


def _read_result(folder: Path | None) -> "RunResult | None":
    """Return the result of a run folder, if there is one."""
    from fewmore.research import results, run_folder

    finished = folder is not None and run_folder.is_finished(folder)
    return results.read(folder) if folder is not None and finished else None


def _print_results(finished: "list[RunResult]", as_json: bool) -> None:
    """Print the tables of the results, or the results themselves as a list in JSON."""
    from fewmore.cli.tables import render
    from fewmore.research import results
    from fewmore.research.reporting import tables

    if as_json:
        typer.echo("[" + ",\n".join(results.to_json(result).strip() for result in finished) + "]")
        return
    out = console()
    for group in tables.groups(finished):
        out.print(render(tables.build(group), out.width))


def _stored(experiment: "Experiment") -> "StoredSize":
    """Return the size that an experiment's images are stored at."""
    from fewmore.data.loading import stored_size

    return stored_size([experiment.recipe.transform])


def _load_tasks(
    experiments: "list[Experiment]",
    run_options: "RunOptions",
    data_root: Path | None,
    out: "Console",
) -> "dict[StoredSize, Task]":
    """Load the images of all experiments, once for each size that they are stored at.

    So an experiment has the same images whatever else is run.
    """
    from fewmore.cli.live import StudyWatcher
    from fewmore.research import runner
    from fewmore.training.distributed import first_goes_ahead

    tasks = {}
    for experiment in {_stored(each): each for each in experiments}.values():
        with first_goes_ahead(), StudyWatcher(out) as watcher:
            tasks[_stored(experiment)] = runner.load_experiment(
                experiment, run_options, data_root, watcher.on_load
            )
    return tasks


class Failures:
    """Report what a method fails with and let the others go on; a single one stops the command.

    So does the first of those that several processes train: not all of them may have failed.
    """

    def __init__(self, single: bool) -> None:
        self.single = single
        self.methods: list[str] = []

    @contextmanager
    def reported(self, experiment: "Experiment") -> Iterator[None]:
        """Print an error in the input as a sentence, after the name of the method."""
        try:
            yield
        except FewmoreError as error:
            if self.single:
                raise
            self.methods.append(experiment.method)
            typer.secho(f"fewmore: {experiment.method}: {error}", err=True, fg="red")


def _fit_all(
    experiments: "list[Experiment]",
    tasks: "dict[StoredSize, Task]",
    out: "Console",
    failures: Failures,
) -> "list[Experiment]":
    """Fit the methods' settings to the base session, and say what was changed."""
    from fewmore.research.fitting import base_counts, fit_to_base

    fitted: list[Experiment] = []
    for experiment in experiments:
        with failures.reported(experiment):
            task = tasks[_stored(experiment)]
            fitted.append(fit_to_base(experiment, task))
            changes = fitted[-1].settings.items() - experiment.settings.items()
            if changes:
                counts = base_counts(task)
                texts = ", ".join(f"{name}={value}" for name, value in sorted(changes))
                out.print(
                    f"{experiment.method}: {texts}, because the base session has {len(counts)} "
                    f"classes with {min(counts)} images or more",
                    markup=False,
                    soft_wrap=True,
                )
    return fitted


def _make_folders(runs: Path, record: Path | None) -> None:
    """Make the folders of results before the run: it may take hours to reach them."""
    from fewmore.research import run_folder

    run_folder.ensure_parent(runs)
    if record is not None:
        try:
            record.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--record {record} cannot be made ({error.strerror}): "
                "give a folder that you may write to"
            ) from error


def _write_outputs(result: "RunResult", folder: Path, task: "Task", record: Path | None) -> None:
    """Write the report and the figures of a run folder, and the result into `record`."""
    write_report(result, folder, task)
    _record([result], record)


def _record(finished: "list[RunResult]", record: Path | None) -> None:
    """Write results into the folder of `--record`, if there is one."""
    from fewmore.research import results

    if record is not None:
        for result in finished:
            results.record(record, result)
