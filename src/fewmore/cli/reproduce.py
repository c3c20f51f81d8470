"""`fewmore reproduce`: the paper's tables and figures, by name."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.cli.compare import slug
from fewmore.cli.run import DATA, command_line, device_of
from fewmore.errors import ConfigError, FewmoreError, UnknownName

if TYPE_CHECKING:
    import torch

    from fewmore.cli.live import StudyWatcher
    from fewmore.research.runner import Experiment
    from fewmore.research.studies import Drawn, Setting, Study

ALL = "all"
SKIPPING = ("comparison", "ablation")  # studies of several methods


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
    recipe: Annotated[
        str | None,
        typer.Option(help="official, paper, mild or quick.", show_default="the benchmark's"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Run seeds 0 … N−1.")] = 1,
    skip: Annotated[
        list[str] | None, typer.Option(help="Leave a method out. Repeatable.", show_default=False)
    ] = None,
    data_root: Annotated[Path | None, DATA] = None,
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
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda.", show_default="cuda if there is one")
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Runs side by side.", show_default="5 on a GPU, else 1"),
    ] = None,
) -> None:
    """Run what is missing of a table or figure of the paper, then draw it. Stopped, it goes on with the same command."""
    if study == "list":
        _list()
        return
    if quick and recipe is not None:
        raise ConfigError(
            "--quick is a recipe of its own, and --recipe was given too: keep one of them"
        )
    if skip and study not in (*SKIPPING, ALL):
        raise ConfigError(
            f"--skip leaves methods out of a comparison or an ablation, and {study} is of one method: leave it away"
        )
    from fewmore.research import studies

    chosen = list(studies.STUDIES.values()) if study == ALL else [studies.find(study)]
    place = device_of(device)
    names = {
        one: "-".join([one.name, slug(benchmark), *(["quick"] if quick else [])]) for one in chosen
    }
    folder = out or runs / "reproduce"
    targets = {
        one: folder if out and study != ALL else folder / name for one, name in names.items()
    }
    try:
        _reproduce(
            targets,
            benchmark,
            "quick" if quick else recipe,
            quick,
            seeds,
            skip or [],
            data_root,
            runs,
            place,
            parallel,
        )
    except KeyboardInterrupt:
        typer.secho("stopped; go on with the same command", err=True)
        raise typer.Exit(130) from None


def _list() -> None:
    from rich.table import Table

    from fewmore.cli.live import console
    from fewmore.research.studies import STUDIES

    table = Table(
        "name",
        "of the paper",
        "experiments",
        "what it shows",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    table.columns[2].justify = "right"
    for study in STUDIES.values():
        table.add_row(study.name, study.paper, str(study.size), study.title)
    table.add_row(ALL, "", "", "All of these in turn; what several need is run once")
    console().print(table)


def _reproduce(
    targets: "Mapping[Study, Path]",
    benchmark: str,
    recipe: str | None,
    quick: bool,
    seeds: int,
    skip: list[str],
    data_root: Path | None,
    runs: Path,
    device: "torch.device",
    parallel: int | None,
) -> None:
    """Each study into its folder, one after the other."""

    from fewmore.cli.live import StudyWatcher, console
    from fewmore.cli.tables import render, render_grid
    from fewmore.data import benchmarks
    from fewmore.research.reporting.tables import Table
    from fewmore.research.studies import Setting
    from fewmore.training.loop import enable_cudnn_benchmark

    enable_cudnn_benchmark(device)
    screen = console()
    with StudyWatcher(screen) as watcher:
        task = benchmarks.load(benchmark, data_root, on_progress=watcher.on_load)
    setting = Setting(benchmark, task, recipe, quick, tuple(range(seeds)))
    wanted = _wanted(setting, list(targets), skip)
    for study, out in targets.items():
        with StudyWatcher(screen) as watcher:
            table = _one(study, setting, wanted[study], runs, out, device, parallel, watcher)
        screen.print()
        screen.print(
            render(table, screen.width) if isinstance(table, Table) else render_grid(table)
        )
        screen.print(
            f"tables, figures and results: {out}", markup=False, style="dim", soft_wrap=True
        )


def _wanted(
    setting: "Setting", studies: "list[Study]", skip: list[str]
) -> "dict[Study, dict[str, Experiment]]":
    """The experiments of each study by label, without methods that are to be left out."""
    every = {study: study.experiments(setting) for study in studies}
    skipping = [study for study in studies if study.name in SKIPPING]
    known = {one.method for study in skipping for one in every[study].values()}
    for name in skip:
        if name not in known:
            raise UnknownName(
                f"method of {' or '.join(study.name for study in skipping)}", name, known
            )
    for study in skipping:
        every[study] = {label: one for label, one in every[study].items() if one.method not in skip}
        if not every[study]:
            raise ConfigError(f"--skip leaves nothing of {study.name}: keep at least one method")
    return every


def _one(
    study: "Study",
    setting: "Setting",
    experiments: "Mapping[str, Experiment]",
    runs: Path,
    out: Path,
    device: "torch.device",
    parallel: int | None,
    watcher: "StudyWatcher",
) -> "Drawn":
    """Run what is missing of a study, and draw it."""
    from fewmore.research import runner
    from fewmore.research.reporting import html as report
    from fewmore.research.studies import measured, write

    known = dict(zip(experiments, runner.folders_of(runs, list(experiments.values())), strict=True))
    missing = [
        label for label, folder in known.items() if folder is None or not runner.is_finished(folder)
    ]
    done = f"{len(experiments) - len(missing)} of {len(experiments)} experiments are done"
    watcher.out.print(f"{study.name} on {setting.benchmark}: {done}", markup=False)
    folders = {
        label: folder or runner.new_folder(runs, experiments[label])
        for label, folder in known.items()
    }
    plans = [
        runner.Plan(experiments[label], folders[label], watcher.of(label)) for label in missing
    ]
    watcher.expect(sum(len(plan.experiment.runs()) for plan in plans))
    try:
        runner.run_together(
            plans, setting.task, device, command_line(sys.argv[1:]), parallel, share=runs / "stage1"
        )
    except FewmoreError:
        for plan in plans:
            runner.discard_unused(plan.folder)
        raise
    table = write(study, setting, measured(experiments, folders), out)
    for number, folder in enumerate(
        folders.values()
    ):  # not as they finish: drawing would keep a GPU waiting
        watcher.move("reports", number, len(folders), "")
        if not (folder / "report.html").exists():
            report.write(folder, setting.task)
    return table
