"""Write the page and the figures of a run folder: `fewmore report`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewmore.cli import research_options as options
from fewmore.cli.terminal import plain
from fewmore.errors import DataError, FewmoreError

if TYPE_CHECKING:  # torch waits until the command runs
    from fewmore.data.benchmarks import Task
    from fewmore.research.results import RunResult


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data_root: options.DataRoot = None,
) -> None:
    """Write a run's report.html and figures anew, from what its folder holds."""
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
    plain().print(f"report: {folder / 'report.html'}")


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


def _load_task(folder: Path, data_root: Path | None) -> "Task":
    """Load the images and the split of a run's config."""
    from fewmore.data import loading
    from fewmore.data.transform import Transform

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    split = {name: config[name] for name in ("base", "way", "shot", "class_order")}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in config["recipe"]["transform"].items()
    }
    return loading.load_task(
        config["benchmark"],
        data_root,
        draw=config["draws"][0],
        transforms=[Transform(**values)],  # images are stored as large as the run needed them
        **split,
    )


def write_report(result: "RunResult", folder: Path, task: "Task | None") -> None:
    """Write the report and the figures of a run folder."""
    from fewmore.research.reporting import figures, html, tables

    html.write(folder, task)
    sessions = figures.sessions_figure([result], tables.published_rows([result]))
    figures.save(sessions, folder / "figures" / "sessions")
    if len(result.sessions) > 1:
        figures.save(figures.base_novel_figure([result]), folder / "figures" / "base-novel")
