"""`fewmore data`: fetch a benchmark, and check what is there for which use."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.cli.terminal import plain

if TYPE_CHECKING:
    from rich.console import Console

    from fewmore.data.benchmarks import Benchmark, BenchmarkImages
    from fewmore.data.images import ImageSet

app = typer.Typer(help="Fetch benchmarks, and check what is there.", no_args_is_help=True)

Root = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        envvar="FEWMORE_DATA",
        help="The folder that benchmarks lie in.",
        show_default="~/.cache/fewmore/data",
    ),
]


@app.command()
def get(
    name: Annotated[
        str,
        typer.Argument(
            help="cifar100, miniimagenet, cub200, or resnet18 or mobilenet_v2 for their ImageNet weights."
        ),
    ],
    data_root: Root = None,
) -> None:
    """Download a benchmark from its publisher, and say what has to be fetched by hand.

    A download that was interrupted goes on where it stopped; what is there already is left alone.
    """
    from fewmore.data import download, files
    from fewmore.data.benchmarks import BENCHMARKS, FOLDER
    from fewmore.data.sources import SOURCES
    from fewmore.errors import UnknownName

    console, root = plain(), files.data_root(data_root)
    if name not in SOURCES and (name in BENCHMARKS or name.startswith(FOLDER)):
        console.print(f"{name} needs no download.")
        return
    if name not in SOURCES:
        raise UnknownName("data set", name, SOURCES)
    source = SOURCES[name]
    if source.by_hand:
        console.print(f"By hand: {source.by_hand} The data root is {root}")
    console.print(f"{name}: {len(source.files)} files, into {root}")
    remarks = {
        "fetched": "fetched",
        "there": "there already",
        "different": "there already, and not the published file: left as it is; remove it to fetch that",
    }
    for file in source.files:
        place = file.unpacked or file.to
        with _bar(console, place, bytes_=True) as on_progress:
            outcome = download.get(file, root, on_progress)
        origin = f" from {file.url}" if outcome == "fetched" else ""
        console.print(f"  {place}: {remarks[outcome]}{origin}")
    if name in BENCHMARKS:
        console.print(f"Check it with `fewmore data check {name}`.")


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="A benchmark, or folder:PATH.")],
    data_root: Root = None,
) -> None:
    """Read all images and session lists of a benchmark, and say for which use they suffice."""
    from fewmore.data import benchmarks, files

    console, root = plain(), files.data_root(data_root)
    benchmark = benchmarks.find(name)
    with _bar(console, "reading images") as on_progress:
        found = benchmarks.images(benchmark, root, on_progress)
    console.print(
        f"{name}: {benchmark.title}"
        + (f", in {root}" if name in benchmarks.BENCHMARKS and name != "glyphs" else "")
    )
    for part, images in (("train", found.train), ("test", found.test)):
        console.print(f"  {part}: {_describe(images, benchmark)}")
    usable = False
    for use, problem in (
        ("official split", _official_problem(benchmark, found, root)),
        ("other draws", _draw_problem(benchmark, found)),
    ):
        usable |= problem is None
        shape = f"{benchmark.base} base classes, then {benchmark.sessions - 1} sessions of {benchmark.way}-way {benchmark.shot}-shot"
        console.print(f"  {use}: {f'ready ({shape})' if problem is None else problem}")
    if benchmark.pretrained:
        console.print(f"  ImageNet weights: {_weights_state(benchmark, root)}")
    if not usable:
        raise typer.Exit(1)


@app.command("list")
def list_(data_root: Root = None) -> None:
    """The benchmarks, and which of them are on this machine."""
    from fewmore.data import files
    from fewmore.data.benchmarks import BENCHMARKS
    from fewmore.data.sources import SOURCES

    console, root = plain(), files.data_root(data_root)
    places = {
        "cifar100": "cifar-100-python/train",
        "miniimagenet": "miniimagenet/images",
        "cub200": "CUB_200_2011/images",
    }
    for name, benchmark in BENCHMARKS.items():
        there = name not in SOURCES or (root / places[name]).exists()
        console.print(
            f"{name}: {benchmark.title} ({'there' if there else f'not there: fewmore data get {name}'})"
        )
    console.print(
        f"Data root: {root}\nCache: {files.cache_folder()} (may be deleted at any time, but for a data root inside it)"
    )


def _describe(images: "ImageSet", benchmark: "Benchmark") -> str:
    """How many images, of how many classes, of which size."""
    counts = images.counts().tolist()
    each = (
        f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    )
    size = f"{images.size[0]} × {images.size[1]} pixels" if images.size else "of several sizes"
    text = f"{len(images):,} images of {len(counts)} classes, {each} of each, {size}"
    if len(counts) != benchmark.classes:
        text += f"; {benchmark.name} has {benchmark.classes} classes"
    if empty := [images.class_names[label] for label, count in enumerate(counts) if not count]:
        text += f"; no images of {', '.join(empty[:5])}" + (
            f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        )
    return text


def _official_problem(benchmark: "Benchmark", found: "BenchmarkImages", root: Path) -> str | None:
    from fewmore.data import benchmarks
    from fewmore.errors import FewmoreError

    if benchmark.lists is None:
        return "none is published, splits are drawn"
    if not benchmarks.has_lists(benchmark, root):
        return f"not ready: there are no session lists; run `fewmore data get {benchmark.name}`"
    try:
        benchmarks.official_split(benchmark, found, root)
    except FewmoreError as error:
        return f"not ready: {error}"
    return None


def _draw_problem(benchmark: "Benchmark", found: "BenchmarkImages") -> str | None:
    from fewmore.data import splits
    from fewmore.errors import FewmoreError

    if found.missing:
        few = int(found.train.counts().min())
        classes = int((found.train.counts() == few).sum())
        return (
            f"not ready: {classes} classes have only {few} images, and {len(found.missing):,} are missing, such as {found.missing[0]}; "
            f"put them there, or use the official split only"
        )
    try:
        splits.draw(found.train, benchmark.base, benchmark.way, benchmark.shot)
    except FewmoreError as error:
        return f"not ready: {error}"
    return None


def _weights_state(benchmark: "Benchmark", root: Path) -> str:
    from fewmore.data.sources import WEIGHTS

    path = root / WEIGHTS[benchmark.backbone].to
    return (
        "ready"
        if path.exists()
        else f"not there, will be downloaded when needed; or run `fewmore data get {benchmark.backbone}`"
    )


@contextmanager
def _bar(
    console: "Console", title: str, bytes_: bool = False
) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar that goes away when it is done; nothing where nobody looks."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = DownloadColumn() if bytes_ else MofNCompleteColumn()
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        amount,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)
