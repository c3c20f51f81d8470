"""List what research commands can name: `fewmore benchmarks`, `fewmore methods`."""


def benchmarks() -> None:
    """List the benchmarks."""
    from rich.table import Table

    from fewmore.cli.terminal import console
    from fewmore.data.benchmarks import BENCHMARKS

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
    any_folder = "any folder with one sub-folder a class"
    table.add_row("folder:PATH", any_folder, "", "", "", "84", "resnet18")
    console().print(table)


def methods() -> None:
    """List the methods."""
    from rich.table import Table

    from fewmore.cli.terminal import console
    from fewmore.methods import METHODS, user_code

    columns = ("name", "what it is", "from", "keeps of old images")
    table = Table(*columns, box=None, header_style="bold")
    for info in METHODS.values():
        table.add_row(info.name, info.title, info.paper, info.memory)
    for name, entry in user_code.installed().items():
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""
        table.add_row(name, entry.value, package, "")
    table.add_row("file.py:Class", "a method of your own", "", "")
    console().print(table)
