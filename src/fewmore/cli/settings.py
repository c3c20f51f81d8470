"""List the settings of a method: `fewmore settings`."""

from typing import Annotated

import typer

from fewmore.cli import research_options as options
from fewmore.cli.terminal import console


def settings(
    method: Annotated[
        str, typer.Argument(help="A method (see: fewmore methods), or file.py:Class.")
    ],
    recipe: options.RecipeName = None,
    benchmark: Annotated[str, typer.Option("--benchmark", help="Whose settings.")] = "glyphs",
    features: Annotated[
        str | None,
        typer.Option(
            "--features", help="What stage 1 learns features by.", show_default="the method's own"
        ),
    ] = None,
) -> None:
    """List the settings that --set changes, with their values and meanings."""
    from fewmore.data import benchmarks
    from fewmore.methods import FEATURES, find

    chosen, info = benchmarks.find(benchmark), find(method)
    from rich.markup import escape
    from rich.table import Table

    from fewmore.research import recipes
    from fewmore.research.setting_list import list_settings

    made = recipes.recipe(recipe, chosen, method, features=features)
    listed = list_settings(made)
    out = console()
    known = ", ".join(FEATURES)
    out.print(f"{info.name} on {benchmark}, recipe {made.name}", markup=False)
    out.print(f"features {made.features}; --features takes {known} or file.py:Class", markup=False)
    for title, own in ((f"settings of {info.name}", True), ("common settings", False)):
        rows = [setting for setting in listed if setting.own == own]
        table = Table(title, "value", "meaning", box=None, header_style="bold")
        for setting in rows:
            table.add_row(setting.name, escape(setting.value), escape(setting.meaning))
        if rows:
            out.print()
            out.print(table)
