"""Reproduce the paper's tables and figures by name: `fewmore reproduce`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.cli import research_options as options
from fewmore.cli.compare import slug
from fewmore.cli.terminal import interrupt_hint
from fewmore.errors import ConfigError, UnknownName

if TYPE_CHECKING:  # torch waits until the command runs
    from fewmore.cli.live import StudyWatcher
    from fewmore.data.benchmarks import Task
    from fewmore.research.experiment import Experiment
    from fewmore.research.runner import RunOptions
    from fewmore.research.studies import Finished, Setting, Study

ALL = "all"
OF_SEVERAL_METHODS = ("comparison", "ablation")  # studies that --skip applies to


def reproduce(
    study: Annotated[
        str,
        typer.Argument(help="A table or figure of the paper, or: all, list.", show_default=False),
    ],
    benchmark: Annotated[
        str, typer.Option(help="A benchmark (see: fewmore benchmarks), or folder:PATH.")
    ] = "cifar100",
    quick: Annotated[
        bool, typer.Option("--quick", help="Less of everything, for a laptop.")
    ] = False,
    recipe: options.RecipeName = None,
    settings: options.Settings = None,
    seeds: Annotated[int, typer.Option(min=1, help="Run seeds 0 … N−1.")] = 1,
    skip: Annotated[
        list[str] | None, typer.Option(help="Leave a method out. Repeatable.", show_default=False)
    ] = None,
    data_root: options.DataRoot = None,
    runs: Annotated[
        Path,
        typer.Option(
            help="Where run folders are and go; what is finished in there is not run again."
        ),
    ] = Path("runs"),
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where tables and figures go; with all, a folder STUDY-BENCHMARK each.",
            show_default="in RUNS/reproduce",
        ),
    ] = None,
    device: options.Device = None,
    parallel: options.Parallel = None,
    accel: options.Accel = True,
    precision: options.Precision = None,
    launcher: options.LauncherName = "local",
    address: options.Address = None,
    gpus_per_run: options.GpusPerRun = None,
    cpus_per_run: options.CpusPerRun = None,
    slurm: options.SlurmSettings = None,
) -> None:
    """Run what a table or figure of the paper lacks, then draw it; if stopped, it resumes."""
    if study == "list":
        _print_studies()
        return
    _check_options(study, quick, recipe, skip)
    from fewmore.cli.live import StudyWatcher
    from fewmore.cli.tables import render
    from fewmore.cli.terminal import console
    from fewmore.data.benchmarks import find
    from fewmore.research import recipes, runner, studies

    chosen = list(studies.STUDIES.values()) if study == ALL else [studies.find(study)]
    remote = options.build_launcher(launcher, address, gpus_per_run, cpus_per_run, slurm, device)
    run_options = options.run_options(device, parallel, accel, precision, launcher=remote)
    folders = _folders(chosen, benchmark, quick, runs, out)
    for folder in folders.values():
        studies.check_out(folder)
    screen = console()
    with interrupt_hint("stopped; go on with the same command"):
        with StudyWatcher(screen) as watcher:
            recipe = "quick" if quick else recipe
            changes = tuple(settings or ())
            transform = recipes.recipe(recipe, find(benchmark), "cec", changes).transform
            task = runner.load_task(
                benchmark, run_options, data_root, watcher.on_load, transforms=[transform]
            )
        setting = studies.Setting(benchmark, task, recipe, quick, tuple(range(seeds)), changes)
        experiments = _experiments(setting, chosen, skip or [])
        for each, folder in folders.items():
            with StudyWatcher(screen) as watcher:
                screen.print(f"{each.name} on {benchmark}:", markup=False, end=" ")
                finished = _run_missing(experiments[each], task, runs, run_options, watcher)
                table = studies.write(each, setting, finished, folder)
                _write_reports(finished, task, watcher)
            screen.print()
            screen.print(render(table, screen.width))
            message = f"tables, figures and results: {folder}"
            screen.print(message, markup=False, style="dim", soft_wrap=True)


def _folders(
    chosen: "Sequence[Study]", benchmark: str, quick: bool, runs: Path, out: Path | None
) -> "dict[Study, Path]":
    """Return a folder for the tables and figures of each study."""
    if out is not None and len(chosen) == 1:
        return {chosen[0]: out}
    kind = [slug(benchmark), *(["quick"] if quick else [])]
    return {each: (out or runs / "reproduce") / "-".join([each.name, *kind]) for each in chosen}


def _print_studies() -> None:
    from rich.table import Table

    from fewmore.cli.terminal import console
    from fewmore.research.studies import STUDIES

    columns = ("name", "of the paper", "experiments", "what it shows")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    table.columns[2].justify = "right"
    for study in STUDIES.values():
        table.add_row(study.name, study.paper, str(study.size), study.title)
    table.add_row(ALL, "", "", "All of these in turn; what several need is run once")
    console().print(table)


def _check_options(study: str, quick: bool, recipe: str | None, skip: list[str] | None) -> None:
    if quick and recipe is not None:
        raise ConfigError(
            "--quick is a recipe of its own, and --recipe was given too: keep one of them"
        )
    if skip and study not in (*OF_SEVERAL_METHODS, ALL):
        raise ConfigError(
            "--skip leaves methods out of a comparison or an ablation, "
            f"and {study} is of one method: leave it away"
        )


def _experiments(
    setting: "Setting", studies: "list[Study]", skip: list[str]
) -> "dict[Study, dict[str, Experiment]]":
    """Return the experiments of each study by label, without the methods to skip."""
    experiments = {study: study.experiments(setting) for study in studies}
    skippable = [study for study in studies if study.name in OF_SEVERAL_METHODS]
    known = {each.method for study in skippable for each in experiments[study].values()}
    for name in skip:
        if name not in known:
            names = " or ".join(study.name for study in skippable)
            raise UnknownName(f"method of {names}", name, known)
    for study in skippable:
        kept = {label: e for label, e in experiments[study].items() if e.method not in skip}
        if not kept:
            raise ConfigError(f"--skip leaves nothing of {study.name}: keep at least one method")
        experiments[study] = kept
    return experiments


def _run_missing(
    experiments: "Mapping[str, Experiment]",
    task: "Task",
    runs: Path,
    run_options: "RunOptions",
    watcher: "StudyWatcher",
) -> "dict[str, Finished]":
    """Run the experiments that no run folder holds yet; return all of them by label."""
    from fewmore.research import results, run_folder, runner
    from fewmore.research.studies import Finished

    known = run_folder.find(runs, list(experiments.values()))
    plans = {
        label: runner.Plan(
            experiment, folder or run_folder.create(runs, experiment), watcher.of(label)
        )
        for (label, experiment), folder in zip(experiments.items(), known, strict=True)
    }
    missing = [plan for plan in plans.values() if not run_folder.is_finished(plan.folder)]
    watcher.out.print(f"{len(plans) - len(missing)} of {len(plans)} experiments are done")
    watcher.expect(sum(len(plan.experiment.runs()) for plan in missing))
    runner.run_plans(missing, task, run_options)
    return {
        label: Finished(plan.experiment, plan.folder, results.read(plan.folder))
        for label, plan in plans.items()
    }


def _write_reports(
    finished: "Mapping[str, Finished]", task: "Task", watcher: "StudyWatcher"
) -> None:
    """Write the missing reports. To write each after its run would keep a GPU waiting."""
    from fewmore.research.reporting import html

    for number, each in enumerate(finished.values()):
        watcher.move("reports", number, len(finished), "")
        if not (each.folder / "report.html").exists():
            html.write(each.folder, task)
