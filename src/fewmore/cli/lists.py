"""List what research commands can name: `fewmore benchmarks`, `fewmore methods`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def benchmarks() -> None:
    """List the benchmarks."""
    from rich.table import Table

    from fewmore import plugins
    from fewmore.cli.terminal import console
    from fewmore.data.benchmarks import BENCHMARKS, GROUP

    columns = ("name", "what it is", "classes", "base", "way × shot", "pixels", "backbone")
    table = Table(*columns, box=None, header_style="bold")
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
    for name, entry in _installed(GROUP).items():
        table.add_row(name, f"{entry.value}, of {plugins.package_of(entry)}", "", "", "", "", "")
    any_folder = "any folder with one sub-folder a class"
    table.add_row("folder:PATH", any_folder, "", "", "", "84", "resnet18")
    table.add_row("FILE.json", "sessions and classes of your own, from a file", "", "", "", "", "")
    table.add_row("file.py:NAME", "a benchmark of your own, from Python", "", "", "", "", "")
    console().print(table)


def methods() -> None:
    """List the methods, and the features that --features names."""
    from rich.table import Table

    from fewmore import plugins
    from fewmore.cli.terminal import console
    from fewmore.methods import FEATURES, METHODS, user_code

    columns = ("name", "what it is", "from", "features", "keeps of old images")
    table = Table(*columns, box=None, header_style="bold")
    for info in METHODS.values():
        table.add_row(info.name, info.title, info.paper, info.features, info.memory)
    for name, entry in _installed(user_code.GROUP).items():
        table.add_row(name, entry.value, plugins.package_of(entry), "", "")
    table.add_row("file.py:Class", "a method of your own", "", "", "")
    out = console()
    out.print(table)
    out.print()
    features = Table("features", "what stage 1 learns them by", "from", box=None)
    features.header_style = "bold"
    for feature in FEATURES.values():
        features.add_row(feature.name, feature.title, feature.paper)
    features.add_row("file.py:Class", "a feature recipe of your own", "")
    out.print(features)


def _installed(group: str) -> "dict[str, EntryPoint]":
    """Return what installed packages offer; what cannot be loaded is named and left out."""
    import typer

    from fewmore import plugins

    entries = {}
    for name, entry in plugins.installed(group).items():
        if problem := plugins.problem_of(entry):
            package = plugins.package_of(entry)
            typer.secho(f"left out: {name} of {package}: {problem}", err=True, fg="yellow")
        else:
            entries[name] = entry
    return entries
