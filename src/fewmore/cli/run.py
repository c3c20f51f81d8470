"""The researcher's door: `fewmore run`, `fewmore benchmarks`, `fewmore methods`."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.errors import ConfigError, FewmoreError

if TYPE_CHECKING:
    import torch

    from fewmore.data.benchmarks import Task
    from fewmore.research.results import RunResult
    from fewmore.research.runner import Experiment

DATA = typer.Option(
    "--data-root", envvar="FEWMORE_DATA", help="Where data sets lie.", show_default=False
)


def run(
    benchmark: Annotated[
        str,
        typer.Argument(
            help="A benchmark (see: fewmore benchmarks), or folder:PATH.", show_default=False
        ),
    ],
    method: Annotated[
        list[str],
        typer.Option(
            "--method",
            "-m",
            help="A method (see: fewmore methods), file.py:Class, or all. Repeatable.",
        ),
    ],
    recipe: Annotated[
        str | None,
        typer.Option(help="official, paper, mild or quick.", show_default="the benchmark's"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting: --set pretrain.epochs=50. Repeatable."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Run seeds 0 … N−1.", show_default="1")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Run this one seed.", show_default=False)
    ] = None,
    draws: Annotated[
        int | None, typer.Option(min=1, help="Draw the shots anew N times.", show_default=False)
    ] = None,
    draw: Annotated[
        int | None,
        typer.Option(
            min=0, help="Use this one draw of the shots.", show_default="the official lists"
        ),
    ] = None,
    base: Annotated[
        int | None, typer.Option(help="Base classes.", show_default="the benchmark's")
    ] = None,
    way: Annotated[
        int | None, typer.Option(help="Classes a session.", show_default="the benchmark's")
    ] = None,
    shot: Annotated[
        int | None, typer.Option(help="Images of a new class.", show_default="the benchmark's")
    ] = None,
    class_order: Annotated[
        int | None,
        typer.Option(help="Shuffle the classes by this seed.", show_default="label order"),
    ] = None,
    data_root: Annotated[Path | None, DATA] = None,
    runs: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the newest unfinished run of the same settings."),
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda.", show_default="cuda if there is one")
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Runs side by side.", show_default="5 on a GPU, else 1"),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Train stage 1 anew even where another method's can be shared."
        ),
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(help="Also write each result into this folder.", show_default=False),
    ] = None,
) -> None:
    """Run methods on a benchmark, session by session, and show how much they keep and how much they learn."""
    if seeds is not None and seed is not None:
        raise ConfigError(
            "--seeds (how many) and --seed (which one) were both given: keep one of them"
        )
    if draws is not None and draw is not None:
        raise ConfigError(
            "--draws (how many) and --draw (which one) were both given: keep one of them"
        )
    from fewmore import methods as table
    from fewmore.data import benchmarks as known
    from fewmore.research import recipes
    from fewmore.research.runner import Experiment

    entry = known.find(benchmark)
    given = [name for names in method for name in names.split(",")]
    names = list(
        dict.fromkeys(one for name in given for one in (table.METHODS if name == "all" else [name]))
    )
    made = recipes.recipes_for(recipe, entry, names, settings or ())
    experiments = [
        Experiment(
            benchmark,
            name,
            own_recipe,
            changed,
            (seed,) if seed is not None else tuple(range(seeds or 1)),
            (draw,) if draw is not None else tuple(range(draws)) if draws else (None,),
            base,
            way,
            shot,
            class_order,
        )
        for name, (own_recipe, changed) in zip(names, made, strict=True)
    ]
    try:
        _run_all(
            experiments,
            runs,
            resume,
            device,
            data_root,
            parallel,
            None if fresh else runs / "stage1",
            record,
        )
    except KeyboardInterrupt:
        typer.secho("stopped; go on with the same command and --resume", err=True)
        raise typer.Exit(130) from None


def _run_all(
    experiments: "list[Experiment]",
    runs: Path,
    resume: bool,
    device: str | None,
    data_root: Path | None,
    parallel: int | None,
    share: Path | None,
    record: Path | None,
) -> None:
    from rich.markup import escape

    from fewmore.accel import warm_up as rehearsal
    from fewmore.cli.live import LiveWatcher, console
    from fewmore.cli.tables import render
    from fewmore.research import results, runner
    from fewmore.research.reporting import tables
    from fewmore.training.device import enable_cudnn_benchmark

    place = device_of(device)
    if record is not None:
        _make(record)
    enable_cudnn_benchmark(place)
    rehearsal.begin(place)
    command = command_line(sys.argv[1:])
    task = None  # all experiments share it
    out = console()
    finished: list[RunResult] = []
    folders = runner.folders_to_resume(runs, experiments) if resume else [None] * len(experiments)
    for experiment, begun in zip(experiments, folders, strict=True):
        if begun is not None and runner.is_finished(begun):
            finished.append(results.read(begun))
            continue
        folder = begun or runner.new_folder(runs, experiment)
        try:
            with LiveWatcher(out, experiment, place) as watcher:
                result = runner.run(
                    experiment,
                    folder,
                    place,
                    data_root,
                    command,
                    parallel,
                    share=share,
                    watcher=watcher,
                    task=task,
                )
        except FewmoreError:
            runner.discard_unused(folder)
            raise
        finished.append(result)
        task = watcher.task
        _draw(result, folder, task)
        if record is not None:
            results.write(record / f"{results.file_name(result)}.json", result)
        out.print(f"[dim]run folder: {escape(str(folder))}[/dim]", soft_wrap=True)
    for group in tables.groups(finished):
        out.print(render(tables.build(group), out.width))


def _draw(result: "RunResult", folder: Path, task: "Task | None") -> None:
    """The report and the figures of a run folder."""
    from fewmore.research.reporting import figures, tables
    from fewmore.research.reporting import html as report

    if task is not None:
        report.write(folder, task)
    figures.save(
        figures.sessions_figure([result], tables.published_rows([result])),
        folder / "figures" / "sessions",
    )
    if len(result.sessions) > 1:
        figures.save(figures.base_novel_figure([result]), folder / "figures" / "base-novel")


def _make(record: Path) -> None:
    """Before the run: hours later would be a bad time to learn that its result cannot be written."""
    try:
        record.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--record {record} cannot be made ({error.strerror}): give a folder that you may write to"
        ) from error


def command_line(words: list[str]) -> str:
    """What was typed, without the places that differ from machine to machine."""
    kept, places = ["fewmore"], ("--data-root", "--runs", "--record", "--out")
    for before, word in zip(["", *words], words, strict=False):
        if before not in places and word.partition("=")[0] not in places:
            kept.append(word)
    return shlex.join(kept)


def device_of(name: str | None) -> "torch.device":
    import torch

    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise ConfigError(f"--device {name}: there is no such device; use cpu or cuda")
    count = torch.cuda.device_count()
    if kind == "cuda" and int(number or 0) >= count:
        seen = f"only {count} GPUs, numbered from 0" if count else "no GPU"
        raise ConfigError(
            f"--device {name}: PyTorch sees {seen} here; use --device {'cuda' if count else 'cpu'}"
        )
    return torch.device(name)


def benchmarks() -> None:
    """List the benchmarks."""
    from rich.table import Table

    from fewmore.cli.live import console
    from fewmore.data.benchmarks import BENCHMARKS

    out = console()
    table = Table(
        "name",
        "what it is",
        "classes",
        "base",
        "way × shot",
        "pixels",
        "backbone",
        box=None,
        header_style="bold",
    )
    for b in BENCHMARKS.values():
        table.add_row(
            b.name,
            b.title,
            str(b.classes),
            str(b.base),
            f"{b.way} × {b.shot}",
            str(b.transform.size),
            b.backbone,
        )
    table.add_row(
        "folder:PATH", "any folder with one sub-folder a class", "", "", "", "84", "resnet18"
    )
    out.print(table)


def methods() -> None:
    """List the methods."""
    from rich.table import Table

    from fewmore.cli.live import console
    from fewmore.methods import METHODS

    out = console()
    table = Table(
        "name", "what it is", "from", "keeps of old images", box=None, header_style="bold"
    )
    for info in METHODS.values():
        table.add_row(info.name, info.title, info.paper, info.memory)
    table.add_row("file.py:Class", "a method of your own", "", "")
    out.print(table)
