"""Write the page and the figures of a run folder: `fewmore report`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewmore.cli import research_options as options
from fewmore.cli.terminal import console, plain
from fewmore.errors import DataError, FewmoreError
from fewmore.io import write_bytes

if TYPE_CHECKING:  # torch waits until the command runs
    from fewmore.data.benchmarks import Task
    from fewmore.research.results import RunResult

PER_CLASS = "per-class.csv"
SHOWN = 20  # classes that are printed


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    images: Annotated[
        bool,
        typer.Option(
            "--images", help="Also write predictions.csv in each run: one line a test image."
        ),
    ] = False,
    data_root: options.DataRoot = None,
) -> None:
    """Show a run class by class; write its report.html, figures and per-class.csv anew."""
    from fewmore.research import results

    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give the folder of a finished run")
    result = results.read(folder)
    _check_files(result, folder)
    try:
        task = _load_task(folder, data_root)
    except FewmoreError as error:
        typer.secho(f"the page has no images of confusions: {error}", err=True, fg="yellow")
        task = None
    write_report(result, folder, task)
    _print_classes(folder, task)
    out = plain()
    out.print(f"\nreport: {folder / 'report.html'}")
    out.print(f"accuracy of all classes: {folder / PER_CLASS}")
    out.print(f"confusion matrix: {folder / 'figures' / 'confusion.png'}")
    if images:
        for path in _write_images(result, folder, task):
            out.print(f"predictions: {path}")


def _print_classes(folder: Path, task: "Task | None") -> None:
    """Print the classes of the lowest accuracy, and what they are taken for."""
    from rich.table import Table as RichTable
    from rich.text import Text

    from fewmore.research.predictions import read_run_folder
    from fewmore.research.reporting import per_class, tables

    rows = per_class.class_rows(read_run_folder(folder, task))
    shown = per_class.weakest(rows, SHOWN)
    heading = "class" if len(shown) == len(rows) else f"lowest {len(shown)} of {len(rows)} classes"
    table = RichTable(heading, box=None, header_style="bold")
    for name in ("session", "images", "accuracy", "±"):
        table.add_column(name, justify="right")
    table.add_column("most often taken for")
    for row in shown:
        taken_for = f"{row.taken_for}, {row.share:.0f} %" if row.taken_for else "–"
        std = "" if row.accuracy.std is None else tables.number(row.accuracy.std)
        cells = (row.name, str(row.session), str(row.images), row.accuracy.text, std, taken_for)
        table.add_row(*map(Text, cells))
    console().print(table)


def _write_images(result: "RunResult", folder: Path, task: "Task | None") -> list[Path]:
    """Write what was predicted for each test image, and return the files."""
    from fewmore.research.experiment import run_name
    from fewmore.research.predictions import read_run_folder

    names = [run_name(*pair) for pair in zip(result.seeds, result.draws, strict=True)]
    written = []
    for name, run in zip(names, read_run_folder(folder, task), strict=True):
        written.append(folder / name / "predictions.csv")
        write_bytes(written[-1], run.to_csv().encode())
    return written


def _check_files(result: "RunResult", folder: Path) -> None:
    """Refuse a folder that lacks what the page is made of."""
    from fewmore.research.experiment import run_name

    runs = zip(result.seeds, result.draws, strict=True)
    needed = [folder / run_name(*pair) / "predictions.safetensors" for pair in runs]
    missing = [str(path) for path in (folder / "config.json", *needed) if not path.exists()]
    if missing:
        raise DataError(
            f"{folder} lacks {', '.join(missing)}: give a folder as fewmore run wrote it"
        )
    try:
        json.loads((folder / "config.json").read_bytes())
    except ValueError as error:
        raise DataError(
            f"{folder / 'config.json'} is not JSON ({error}): give a folder as fewmore run wrote it"
        ) from None


def _load_task(folder: Path, data_root: Path | None) -> "Task":
    """Load the images and the split of a run's config."""
    from fewmore.data import loading
    from fewmore.data.transform import Transform
    from fewmore.research.validation import validation_task

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    split = {name: config[name] for name in ("base", "way", "shot", "class_order")}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in config["recipe"]["transform"].items()
    }
    is_validation = config.get("validation", False)
    task = loading.load_task(
        config["benchmark"],
        data_root,
        draw=None if is_validation else config["draws"][0],
        transforms=[Transform(**values)],  # images are stored as large as the run needed them
        **split,
    )
    return validation_task(task, config["draws"][0] or 0) if is_validation else task


def write_report(result: "RunResult", folder: Path, task: "Task | None") -> None:
    """Write the report and the figures of a run folder."""
    from fewmore.research.predictions import read_run_folder
    from fewmore.research.reporting import figures, html, per_class, tables

    html.write(folder, task)
    runs = read_run_folder(folder, task)
    write_bytes(folder / PER_CLASS, per_class.to_csv(per_class.class_rows(runs)).encode())
    confusion = figures.confusion_figure(
        per_class.pooled_confusion(runs),
        runs[0].session_of_class,
        class_names=runs[0].class_names,
    )
    figures.save(confusion, folder / "figures" / "confusion")
    sessions = figures.sessions_figure([result], tables.published_rows([result]))
    figures.save(sessions, folder / "figures" / "sessions")
    if len(result.sessions) > 1:
        figures.save(figures.base_novel_figure([result]), folder / "figures" / "base-novel")
