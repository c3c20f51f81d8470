"""`cecil reproduce`: the paper's tables and figures, by name."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cecil.cli.compare import slug
from cecil.cli.research import DATA, command_line, device_of
from cecil.errors import CecilError, ConfigError, UnknownName

if TYPE_CHECKING:
    import torch

    from cecil.studies import Study


def reproduce(
    study: Annotated[str, typer.Argument(help="A table or figure of the paper, or: list.", show_default=False)],
    benchmark: Annotated[str, typer.Option(help="A benchmark (see: cecil benchmarks), or folder:PATH.")] = "cifar100",
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything, for a laptop.")] = False,
    recipe: Annotated[str | None, typer.Option(help="official, paper, mild or quick.", show_default="the benchmark's")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Run seeds 0 … N−1.")] = 1,
    skip: Annotated[list[str] | None, typer.Option(help="Leave a method out. Repeatable.", show_default=False)] = None,
    data_root: Annotated[Path | None, DATA] = None,
    runs: Annotated[Path, typer.Option(help="Where run folders are and go; what is finished in there is not run again.")] = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="Where tables and figures go.", show_default="RUNS/reproduce/STUDY-BENCHMARK")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", show_default="cuda if there is one")] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Runs side by side.", show_default="5 on a GPU, else 1")] = None,
) -> None:
    """Run what is missing of a table or figure of the paper, then draw it. Stopped, it goes on with the same command."""
    if study == "list":
        _list()
        return
    if quick and recipe is not None:
        raise ConfigError("--quick is a recipe of its own, and --recipe was given too: keep one of them")
    if skip and study not in ("comparison", "ablation"):
        raise ConfigError(f"--skip leaves methods out of a comparison or an ablation, and {study} is of one method: leave it away")
    from cecil import studies

    chosen = studies.find(study)
    place = device_of(device)
    target = out or runs / "reproduce" / "-".join([study, slug(benchmark), *(["quick"] if quick else [])])
    try:
        _reproduce(chosen, benchmark, quick, recipe, seeds, skip or [], data_root, runs, target, place, parallel)
    except KeyboardInterrupt:
        typer.secho("stopped; go on with the same command", err=True)
        raise typer.Exit(130) from None


def _list() -> None:
    from rich.table import Table

    from cecil.cli.live import console
    from cecil.studies import STUDIES

    table = Table("name", "what it shows", box=None, header_style="bold")
    for study in STUDIES.values():
        table.add_row(study.name, study.title)
    console().print(table)


def _reproduce(
    study: "Study",
    benchmark: str,
    quick: bool,
    recipe: str | None,
    seeds: int,
    skip: list[str],
    data_root: Path | None,
    runs: Path,
    out: Path,
    device: "torch.device",
    parallel: int | None,
) -> None:
    import torch

    from cecil.cli.live import StudyWatcher, console
    from cecil.cli.tables import render, render_grid
    from cecil.data import benchmarks
    from cecil.evaluation import report, runner
    from cecil.evaluation.tables import Table
    from cecil.studies import Setting, measured, write

    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    screen = console()
    with StudyWatcher(screen) as watcher:
        task = benchmarks.load(benchmark, data_root, on_progress=watcher.on_load)
        setting = Setting(benchmark, task, "quick" if quick else recipe, quick, tuple(range(seeds)))
        every = study.experiments(setting)
        for name in skip:
            if name not in (one.method for one in every.values()):
                raise UnknownName(f"method of {study.name}", name, {one.method for one in every.values()})
        experiments = {label: one for label, one in every.items() if one.method not in skip}
        if not experiments:
            raise ConfigError(f"--skip leaves nothing of {study.name}: keep at least one method")
        known = dict(zip(experiments, runner.folders_of(runs, list(experiments.values())), strict=True))
        missing = [label for label, folder in known.items() if folder is None or not runner.is_finished(folder)]
        screen.print(
            f"{study.name} on {benchmark}: {len(experiments) - len(missing)} of {len(experiments)} experiments are done", markup=False
        )
        folders = {label: folder or runner.new_folder(runs, experiments[label]) for label, folder in known.items()}
        plans = [runner.Plan(experiments[label], folders[label], watcher.of(label)) for label in missing]
        watcher.expect(sum(len(plan.experiment.runs()) for plan in plans))
        try:
            runner.run_together(plans, task, device, command_line(sys.argv[1:]), parallel, share=runs / "stage1")
        except CecilError:
            for plan in plans:
                runner.discard_unused(plan.folder)
            raise
        table = write(study, setting, measured(experiments, folders), out)
        for number, folder in enumerate(folders.values()):  # not as they finish: drawing would keep a GPU waiting
            watcher.move("reports", number, len(folders), "")
            if not (folder / "report.html").exists():
                report.write(folder, task)
    screen.print(render(table, screen.width) if isinstance(table, Table) else render_grid(table))
    screen.print(f"tables, figures and results: {out}", markup=False, style="dim", soft_wrap=True)
