"""Choose settings on the validation split: `fewmore tune`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewmore.cli import research_options as options
from fewmore.cli.experiments import check_names, numbers
from fewmore.cli.terminal import console, interrupt_hint, json_alone, plain
from fewmore.errors import ConfigError

if TYPE_CHECKING:  # torch waits until the command runs
    from fewmore.cli.live import StudyWatcher
    from fewmore.research.tuning import Range, Record, Search, Values

BenchmarkName = Annotated[str, typer.Argument(help="A benchmark, as in fewmore run.")]
MethodName = Annotated[
    list[str],  # which lets several be refused, where the last would hide the others
    typer.Option("--method", "-m", help="One method: its name, file.py:Class or module:Class."),
]
Grid = Annotated[
    list[str] | None,
    typer.Option("--grid", help="Try these values: --grid pretrain.lr=0.01,0.03,0.1. Repeatable."),
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(
        "--range",
        help="Draw from this range, with --random: --range pretrain.lr=log:0.001..0.1. Repeatable.",
    ),
]
Random = Annotated[
    int | None,
    typer.Option(
        "--random",
        min=1,
        help="Try so many random combinations.",
        show_default="all combinations",
    ),
]
SearchSeed = Annotated[
    int, typer.Option("--search-seed", min=0, help="Decides the random combinations.")
]
By = Annotated[
    str,
    typer.Option("--by", help="The measure to choose by: last, average, harmonic, base or novel."),
]
Draws = Annotated[
    int | None,
    typer.Option("--draws", min=1, help="Draw the shots anew N times.", show_default="1"),
]
Out = Annotated[Path, typer.Option("--out", help="Where the folders of searches go.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with the newest search of the same trials; start it if there is none.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the record alone, as JSON.")]


def tune(
    benchmark: BenchmarkName,
    methods: MethodName,
    grid: Grid = None,
    ranges: Ranges = None,
    random: Random = None,
    search_seed: SearchSeed = 0,
    by: By = "last",
    recipe: options.RecipeName = None,
    settings: options.Settings = None,
    seeds: options.Seeds = None,
    seed: options.Seed = None,
    draws: Draws = None,
    base: options.Base = None,
    way: options.Way = None,
    shot: options.Shot = None,
    class_order: options.ClassOrder = None,
    data_root: options.DataRoot = None,
    out: Out = Path("tune"),
    resume: Resume = False,
    device: options.Device = None,
    parallel: options.Parallel = None,
    accel: options.Accel = True,
    precision: options.Precision = None,
    launcher: options.LauncherName = "local",
    address: options.Address = None,
    gpus_per_run: options.GpusPerRun = None,
    cpus_per_run: options.CpusPerRun = None,
    slurm: options.SlurmSettings = None,
    log: options.Log = None,
    quiet: options.Quiet = False,
    as_json: Json = False,
) -> None:
    """Try settings on held-out images of the base classes; the test images are never used."""
    method = _single(methods)
    check_names(benchmark, [method])
    from fewmore.cli.live import StudyWatcher
    from fewmore.research.tuning import Search
    from fewmore.research.tuning import tune as run_search

    search = Search(
        benchmark,
        method,
        _space(grid or [], ranges or []),
        recipe,
        tuple(settings or ()),
        random,
        search_seed,
        seeds=numbers("--seeds", seeds, "--seed", seed) or (0,),
        draws=tuple(range(draws or 1)),
        split={"base": base, "way": way, "shot": shot, "class_order": class_order},
    )
    screen = console(quiet=quiet or as_json)
    shown = _Shown(search, screen)
    with interrupt_hint("stopped; go on with the same command and --resume"), json_alone(as_json):
        remote = options.build_launcher(
            launcher, address, gpus_per_run, cpus_per_run, slurm, device
        )
        run_options = options.run_options(
            device, parallel, accel, precision, loggers=log or (), launcher=remote
        )
        with StudyWatcher(screen) as shown.watcher:
            record = run_search(
                search,
                out,
                by,
                run_options,
                resume,
                data_root,
                shown.watcher.on_load,
                lambda trial: shown.watcher.of(trial.name),
                shown.begin,
            )
    _print_record(record, shown.folder, as_json)


def _single(methods: list[str]) -> str:
    """Return the method, if there is one alone."""
    [method, *others] = ",".join(methods).split(",")
    if others:
        raise ConfigError(
            f"--method {method}, {', '.join(others)}: a search is of one method; "
            "search for each of them by a command of its own"
        )
    return method


def _space(grid: list[str], ranges: list[str]) -> "dict[str, Values | Range]":
    """Return the values and ranges by setting."""
    from fewmore.research.tuning import parse_range, parse_values

    space: dict[str, Values | Range] = {}
    pairs: list[tuple[str, Any]] = [*map(parse_values, grid), *map(parse_range, ranges)]
    for name, values in pairs:
        if name in space:
            raise ConfigError(f"{name} was given twice: put all its values into one --grid")
        space[name] = values
    return space


class _Shown:
    """Show what a search is about when it begins."""

    def __init__(self, search: "Search", screen: Any) -> None:
        self.search = search
        self.screen = screen
        self.folder = Path()
        self.watcher: StudyWatcher

    def begin(self, folder: Path, record: "Record") -> None:
        """Print how much there is to do, and where it is recorded."""
        self.folder = folder
        search = self.search
        done, runs = len(record.ranked), len(search.seeds) * len(search.draws)
        lines = [
            f"{search.method} on the validation split of {search.benchmark} ({record.split}), "
            f"{len(record.trials)} trials of {runs} run{'s' if runs > 1 else ''}",
            f"record: {folder / 'search.json'}",
        ]
        if done:
            lines.insert(1, f"{done} of {len(record.trials)} trials are done")
        if search.random is not None and len(record.trials) < search.random:
            lines.append(f"there are {len(record.trials)} combinations, not {search.random}")
        for line in lines:
            self.screen.print(line, markup=False, soft_wrap=True)
        self.watcher.expect((len(record.trials) - done - len(record.failed)) * runs)


def _print_record(record: "Record", folder: Path, as_json: bool) -> None:
    """Print the table of the trials and the command of the best, or the record."""
    from fewmore.cli.tables import render
    from fewmore.research import tuning
    from fewmore.research.reporting import figures

    figures.save(figures.trials_figure(record), folder / "figures" / "trials")
    if as_json:
        typer.echo(record.to_json(), nl=False)
        return
    out = console()
    out.print()
    out.print(render(tuning.grid_of_trials(record), out.width))
    plain().print(f"on the test images:\n  {tuning.command_of_best(record)}")
