"""Put measured results side by side, with the published rows beside them: `fewmore compare`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.errors import ConfigError, DataError, FewmoreError, MissingData

if TYPE_CHECKING:  # torch and matplotlib wait until the command runs
    from fewmore.research.reporting.tables import Grid, Table
    from fewmore.research.results import RunResult


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, or result files such as those in results/. "
            "Jobs that differ in seeds or draws alone are pooled; unfinished runs are left out.",
            show_default=False,
        ),
    ],
    published: Annotated[
        bool,
        typer.Option(
            help="Put the published row of each method below it (official split only), and first "
            "of all stage 1 without any later learning, computed from a base session."
        ),
    ] = True,
    all_published: Annotated[
        bool, typer.Option("--all-published", help="Add all published rows with a known PD.")
    ] = False,
    paired: Annotated[
        bool,
        typer.Option(
            "--paired",
            help="Show differences over shared seeds and draws, with 95 % intervals and p values.",
        ),
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            help="The method or row that --paired subtracts.", show_default="the first result"
        ),
    ] = None,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV: one table of everything, with more decimals.")
    ] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX (booktabs).")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw accuracy by session into this .png, .svg or .pdf.", show_default=False
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Write each row into this folder as one result; jobs of several commits are none.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compare results by session, average, PD, base and novel accuracy, and gAcc; or in pairs."""
    _check_options(published, all_published, csv, latex, markdown, plot)
    _check_reference(reference, paired)
    from fewmore.research import results
    from fewmore.research.reporting import tables

    pools = [results.pools(group) for group in tables.groups(_read_results(runs))]
    _check_versions([pool for group in pools for pool in group] if record else [])
    groups = [[results.merge(pool) for pool in group] for group in pools]
    file_format = "csv" if csv else "latex" if latex else "markdown" if markdown else None
    if paired:
        _print_grids(_paired_grids(groups, reference), file_format)
    else:
        built = [
            tables.build(
                group,
                with_published=published,
                all_published=all_published,
                remarks=list(map(results.describe_pool, jobs)),
                with_nothing_learnt=published,
            )
            for group, jobs in zip(groups, pools, strict=True)
        ]
        _print_tables(built, file_format)
    drawn = _plot(groups, plot, published, all_published) if plot else []
    written = _record([result for group in groups for result in group], record) if record else []
    for line in (*(f"plot: {path}" for path in drawn), *(f"recorded: {path}" for path in written)):
        # A table for another program stays alone on standard output.
        typer.echo(line, err=file_format is not None)


def _check_options(
    published: bool, all_published: bool, csv: bool, latex: bool, markdown: bool, plot: Path | None
) -> None:
    flags = {"--csv": csv, "--latex": latex, "--markdown": markdown}
    formats = [name for name, chosen in flags.items() if chosen]
    wrong = []
    if len(formats) > 1:
        wrong.append(
            f"{' and '.join(formats)} were given together, and a table is printed in one format: "
            "keep one of them"
        )
    if all_published and not published:
        wrong.append("--all-published and --no-published contradict each other: keep one of them")
    if plot and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        wrong.append(
            f"--plot {plot} does not end in .png, .svg or .pdf: "
            f"use --plot {plot.with_suffix('.png')}"
        )
    if wrong:
        raise ConfigError("; ".join(wrong))


def _check_reference(reference: str | None, paired: bool) -> None:
    if reference is not None and not paired:
        raise ConfigError("--reference is of --paired, which was not given: add it")


def _check_versions(pools: "Sequence[Sequence[RunResult]]") -> None:
    """Refuse to record jobs of several versions of fewmore as one result."""
    from fewmore.research.results import code_version

    for pool in pools:
        if len(set(map(code_version, pool))) > 1:
            commits = sorted({str(result.commit) for result in pool})
            raise ConfigError(
                f"the jobs of {pool[0].method} on {pool[0].benchmark} are of several versions of "
                f"the code (commit {', '.join(commits)}), and a result is of one: leave out those "
                "of the others, or compare without --record"
            )


def _record(rows: "Sequence[RunResult]", folder: Path) -> list[Path]:
    """Write each row as a result; return the files."""
    from fewmore.research import results

    return [results.record(folder, row) for row in rows]


def _read_results(paths: list[Path]) -> "list[RunResult]":
    """Read all finished results, or report all problems at once; a path counts once.

    Unfinished runs are named and left out. Folders that are no runs, which `runs/*` may bring
    along, are passed over.
    """
    from fewmore.research.results import read
    from fewmore.research.run_folder import is_finished

    results = []
    problems = []
    unfinished = []
    for path in dict.fromkeys(paths):
        if path.is_dir() and not is_finished(path):
            unfinished += [path] if _is_run(path) else []
            continue
        try:
            results.append(read(path))
        except FewmoreError as error:
            problems.append(str(error))
    for path in unfinished:
        typer.secho(
            f"{path} is not finished and left out: go on with its command and --resume",
            err=True,
            fg="yellow",
        )
    if problems:
        raise DataError("\n".join(problems))
    if not results:
        raise MissingData(
            f"there is no finished run to compare among {', '.join(map(str, paths))}: "
            "give run folders such as runs/*, or result files such as results/cifar100-cec.json"
        )
    return results


def _is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, even if its config was lost."""
    from fewmore.research.run_folder import CONFIG

    return (folder / CONFIG).exists() or any(folder.glob("*/metrics.jsonl"))


def _paired_grids(groups: "list[list[RunResult]]", reference: str | None) -> "list[Grid]":
    """Return the differences of each group; say where there are none."""
    from fewmore.research.reporting import paired

    grids: list[Grid] = []
    problems = []
    for group in groups:
        try:
            grids += paired.build(group, reference)
        except ConfigError as error:
            problems.append(str(error))
    if not grids:
        raise ConfigError("\n".join(problems))
    for problem in problems:
        typer.secho(problem, err=True, fg="yellow")
    return grids


def _print_grids(grids: "list[Grid]", file_format: str | None) -> None:
    from fewmore.research.reporting import formats

    if file_format == "csv":
        typer.echo(formats.grids_to_csv(grids), nl=False)
        for note in dict.fromkeys(note for grid in grids for note in grid.notes):
            typer.echo(note, err=True)
    elif file_format:
        latex = file_format == "latex"
        write = formats.grid_to_latex if latex else formats.grid_to_markdown
        typer.echo("\n".join(map(write, grids)), nl=False)
    else:
        _render(grids)


def _print_tables(tables: "list[Table]", file_format: str | None) -> None:
    from fewmore.research.reporting import formats

    if file_format == "csv":
        typer.echo(formats.to_csv(tables), nl=False)
    elif file_format:
        write = formats.to_latex if file_format == "latex" else formats.to_markdown
        typer.echo("\n".join(map(write, tables)), nl=False)
    else:
        _render(tables)


def _render(tables: "Sequence[Table | Grid]") -> None:
    """Show tables on the terminal."""
    from fewmore.cli.tables import render
    from fewmore.cli.terminal import console

    out = console()
    for number, table in enumerate(tables):
        if number:
            out.print()
        out.print(render(table, out.width))


def _plot(
    groups: "list[list[RunResult]]", path: Path, published: bool, all_published: bool
) -> list[Path]:
    """Draw a figure for each group; with several, the benchmark is added to the file's name."""
    from fewmore.cli.output_files import check_figure
    from fewmore.research.reporting import figures, tables

    path = path.expanduser()
    written: list[Path] = []
    for group in groups:
        stem = path.stem if len(groups) == 1 else f"{path.stem}-{slug(group[0].benchmark)}"
        target = path.with_stem(stem)
        count = 2
        while target in written:
            target = path.with_stem(f"{stem}-{count}")
            count += 1
        target.parent.mkdir(parents=True, exist_ok=True)
        check_figure(target)
        rows = tables.published_rows(group, with_published=published, all_published=all_published)
        written += figures.save(figures.sessions_figure(group, rows), target)
    return written


def slug(name: str) -> str:
    """Return a benchmark's name as part of a file's name: letters, digits and dashes."""
    return "".join(c if c.isalnum() else "-" for c in name).strip("-")
