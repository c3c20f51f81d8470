"""Put measured results side by side, with the published rows beside them: `fewmore compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.errors import ConfigError, DataError, FewmoreError

if TYPE_CHECKING:  # torch and matplotlib wait until the command runs
    from fewmore.research.reporting.tables import Table
    from fewmore.research.results import RunResult


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, or result files such as those in results/.", show_default=False
        ),
    ],
    published: Annotated[
        bool, typer.Option(help="Put the published row of each method below it.")
    ] = True,
    all_published: Annotated[
        bool, typer.Option("--all-published", help="Add all published rows of the benchmark.")
    ] = False,
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
) -> None:
    """Compare results by session, average, PD, base and novel accuracy, and gAcc."""
    _check_options(published, all_published, csv, latex, markdown, plot)
    from fewmore.research.reporting import formats, tables

    groups = tables.groups(_read_results(runs))
    built = [
        tables.build(group, with_published=published, all_published=all_published)
        for group in groups
    ]
    if csv:
        typer.echo(formats.to_csv(built), nl=False)
    elif latex or markdown:
        write = formats.to_latex if latex else formats.to_markdown
        typer.echo("\n".join(map(write, built)), nl=False)
    else:
        _print_tables(built)
    if plot:
        for path in _plot(groups, plot, published, all_published):
            # A table for another program stays alone on standard output.
            typer.echo(f"plot: {path}", err=csv or latex or markdown)


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


def _read_results(paths: list[Path]) -> "list[RunResult]":
    """Read all results, or report all problems at once; a path given twice counts once."""
    from fewmore.research.results import read

    results = []
    problems = []
    for path in dict.fromkeys(paths):
        try:
            results.append(read(path))
        except FewmoreError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return results


def _print_tables(tables: "list[Table]") -> None:
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
    from fewmore.research.reporting import figures, tables

    written: list[Path] = []
    for group in groups:
        stem = path.stem if len(groups) == 1 else f"{path.stem}-{slug(group[0].benchmark)}"
        target = path.with_stem(stem)
        count = 2
        while target in written:
            target = path.with_stem(f"{stem}-{count}")
            count += 1
        rows = tables.published_rows(group, with_published=published, all_published=all_published)
        written += figures.save(figures.sessions_figure(group, rows), target)
    return written


def slug(name: str) -> str:
    """Return a benchmark's name as part of a file's name: letters, digits and dashes."""
    return "".join(c if c.isalnum() else "-" for c in name).strip("-")
