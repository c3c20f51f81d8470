"""Declare the options of the research commands, and turn them into the runner's options."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.errors import ConfigError

if TYPE_CHECKING:  # torch waits until a command runs
    from fewmore.research.launchers.base import Launcher
    from fewmore.research.runner import RunOptions

PLACES = ("--data-root", "--runs", "--record", "--out")  # differ from machine to machine

# Options that `run` and `reproduce` share.
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe", help="official, paper, mild or quick.", show_default="the benchmark's"
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root", envvar="FEWMORE_DATA", help="Where data sets lie.", show_default=False
    ),
]
Device = Annotated[
    str | None,
    typer.Option("--device", help="cpu, cuda or mps.", show_default="cuda if there is one"),
]
Parallel = Annotated[
    int | None,
    typer.Option("--parallel", min=1, help="Runs side by side.", show_default="5 on a GPU, else 1"),
]
Accel = Annotated[
    bool, typer.Option("--accel/--no-accel", help="Use the GPU fast path, or plain PyTorch.")
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="Of training: fp32 or bf16; on a GPU also tf32 or fp16.",
        show_default="bf16 on a GPU that has it, else fp32",
    ),
]
BatchNorm = Annotated[
    str,
    typer.Option(
        "--batch-norm",
        help="Under torchrun: statistics over all processes (sync), or in each (local).",
    ),
]

LauncherName = Annotated[
    str,
    typer.Option("--launcher", help="Where runs are computed: local, processes, ray or slurm."),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Of the Ray cluster: auto, or host:port.",
        show_default="this machine's cluster, or a new one",
    ),
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-run",
        min=0,
        help="GPUs of a run with another launcher than local, or the part of one that it gets.",
        show_default="0: the CPU",
    ),
]
CpusPerRun = Annotated[
    int | None,
    typer.Option(
        "--cpus-per-run",
        min=1,
        help="Cores and threads of a run with another launcher than local.",
        show_default="PyTorch's threads here; 1 beside a GPU and in processes",
    ),
]
SlurmSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        help="A setting of Slurm: --slurm partition=gpu --slurm timeout_min=60. Repeatable.",
        show_default=False,
    ),
]

# Options of `run` alone.
BenchmarkName = Annotated[
    str | None,
    typer.Argument(
        help="A benchmark (see: fewmore benchmarks), folder:PATH, FILE.json or file.py:NAME.",
        show_default=False,
    ),
]
MethodNames = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        help="A method (see: fewmore methods), file.py:Class, module:Class, or all. Repeatable.",
    ),
]
Features = Annotated[
    list[str] | None,
    typer.Option(
        "--features",
        help="What stage 1 learns features by (see: fewmore methods), or file.py:Class. "
        "Repeatable: then every method runs on each.",
        show_default="the method's own",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting: --set pretrain.epochs=50. Repeatable."),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="Run seeds 0 … N−1.", show_default="1")
]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Run this one seed.", show_default=False)
]
Draws = Annotated[
    int | None,
    typer.Option("--draws", min=1, help="Draw the shots anew N times.", show_default=False),
]
Draw = Annotated[
    int | None,
    typer.Option(
        "--draw", min=0, help="Use this one draw of the shots.", show_default="the official lists"
    ),
]
Base = Annotated[
    int | None, typer.Option("--base", help="Base classes.", show_default="the benchmark's")
]
Way = Annotated[
    int | None, typer.Option("--way", help="Classes a session.", show_default="the benchmark's")
]
Shot = Annotated[
    int | None,
    typer.Option("--shot", help="Images of a new class.", show_default="the benchmark's"),
]
ClassOrder = Annotated[
    int | None,
    typer.Option(
        "--class-order", help="Shuffle the classes by this seed.", show_default="label order"
    ),
]
Runs = Annotated[Path, typer.Option("--runs", help="Where run folders go.")]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with the newest unfinished run of the same settings; start it if there is "
        "none, and show its table if it is finished.",
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Train stage 1 anew even where another run's lies in stage1 of the cache folder "
        "($FEWMORE_CACHE, or ~/.cache/fewmore).",
    ),
]
Record = Annotated[
    Path | None,
    typer.Option("--record", help="Also write each result into this folder.", show_default=False),
]

SaveScores = Annotated[
    bool,
    typer.Option(
        "--save-scores",
        help="Write the scores of all test images after each session, with the images' files: "
        "sessionN/scores.npz of each run; with --resume, after those that are still to be learnt.",
    ),
]
SaveSessions = Annotated[
    bool,
    typer.Option(
        "--save-sessions",
        help="Write the model after each session: sessionN/model.safetensors of each run; with "
        "--resume, after those that are still to be learnt.",
    ),
]


def _check_loggers(names: list[str] | None) -> list[str] | None:
    """Refuse a logger that is unknown or not installed, before PyTorch is imported."""
    from fewmore.research.loggers import check

    check(names or ())
    return names


Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        callback=_check_loggers,
        help="Also log every round and session: csv, tensorboard, wandb or mlflow. Repeatable.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", help="Repeat a run: the config.json of its folder.", show_default=False
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and exit.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the table alone.")]
Json = Annotated[bool, typer.Option("--json", help="Print the results alone, as JSON.")]


def command_line(words: list[str]) -> str:
    """Return the typed command without the places that differ from machine to machine."""
    recorded = ["fewmore"]
    for before, word in zip(["", *words], words, strict=False):
        if before not in PLACES and word.partition("=")[0] not in PLACES:
            recorded.append(word)
    return shlex.join(recorded)


def run_options(
    device: str | None,
    parallel: int | None,
    accel: bool,
    precision: str | None,
    share_stage1: bool = True,
    loggers: Sequence[str] = (),
    launcher: "Launcher | None" = None,
    *,
    save_scores: bool = False,
    save_sessions: bool = False,
    batch_norm: str = "sync",
) -> "RunOptions":
    """Return the runner's options, and say where the device cannot do what was asked for."""
    from fewmore.research.runner import RunOptions
    from fewmore.training import stage1_cache
    from fewmore.training.device import select_device
    from fewmore.training.distributed import is_first

    chosen = RunOptions(
        select_device("cpu" if launcher is not None else device),
        command=command_line(sys.argv[1:]),
        parallel=parallel,
        stage1_cache=stage1_cache.make_folder() if share_stage1 else None,
        accel=accel,
        precision=precision,
        loggers=tuple(loggers),
        launcher=launcher,
        save_scores=save_scores,
        save_sessions=save_sessions,
        batch_norm=batch_norm,
    )
    notes = chosen.notes()
    for note in notes if is_first() else ():
        typer.secho(note, err=True, fg="yellow")
    return chosen


def build_launcher(
    name: str,
    address: str | None,
    gpus_per_run: float | None,
    cpus_per_run: int | None,
    slurm: list[str] | None,
    device: str | None,
) -> "Launcher | None":
    """Return the launcher of a command, connected to its cluster; None for this process."""
    from fewmore.research import launchers

    settings = {
        "address": address,
        "gpus_per_run": gpus_per_run,
        "cpus_per_run": cpus_per_run,
        "slurm": dict(map(_parse_setting, slurm)) if slurm else None,
    }
    launchers.check(name, **settings)
    if name == "local":
        return None
    if device is not None:
        raise ConfigError(
            f"--device {device} is not for --launcher {name}: its runs are on a GPU with "
            "--gpus-per-run 1, or less than 1 for a part of it, else on a CPU"
        )
    return launchers.build(name, **settings)


def _parse_setting(text: str) -> tuple[str, str | int]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError(f"--slurm {text}: write it as name=value, such as --slurm partition=gpu")
    return name, int(value) if value.isdecimal() else value
