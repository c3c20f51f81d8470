"""Fetch benchmarks and check what is there: `fewmore data`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.classifier.text import count_noun, join_names
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
        help="The folder of benchmarks and weights.",
        show_default="~/.cache/fewmore/data",
    ),
]

OUTCOMES = {
    "fetched": "fetched",
    "there": "there already",
    "different": (
        "there already, and not the published file: left as it is; remove it to fetch that"
    ),
}


@app.command()
def get(
    name: Annotated[
        str,
        typer.Argument(
            help="cifar100, miniimagenet, cub200, "
            "or resnet18 or mobilenet_v2 for their ImageNet weights."
        ),
    ],
    data_root: Root = None,
) -> None:
    """Download a benchmark from its publisher, and say what has to be fetched by hand.

    An interrupted download resumes where it stopped. Files that are there are not replaced.
    """
    from fewmore.data import download, paths
    from fewmore.data.benchmarks import BENCHMARKS, FOLDER_PREFIX
    from fewmore.data.sources import SOURCES
    from fewmore.errors import UnknownName

    console = plain()
    root = paths.data_root(data_root)
    if name not in SOURCES and (name in BENCHMARKS or name.startswith(FOLDER_PREFIX)):
        console.print(f"{name} needs no download.")
        return
    if name not in SOURCES:
        raise UnknownName("data set", name, SOURCES)
    source = SOURCES[name]
    if source.by_hand:
        console.print(f"By hand: {source.by_hand} The data root is {root}")
    console.print(f"{name}: {count_noun(len(source.files), 'file')}, into {root}")
    for file in source.files:
        place = file.unpacked or file.path
        with _progress_bar(console, place, in_bytes=True) as on_progress:
            outcome = download.fetch_file(file, root, on_progress)
        origin = f" from {file.url}" if outcome == "fetched" else ""
        console.print(f"  {place}: {OUTCOMES[outcome]}{origin}")
    if name in BENCHMARKS:
        console.print(f"Check it with `fewmore data check {name}`.")


@app.command()
def check(
    name: Annotated[
        str,
        typer.Argument(help="A benchmark, folder:PATH, or resnet18 or mobilenet_v2: weights."),
    ],
    data_root: Root = None,
) -> None:
    """Read all images and session lists of a benchmark, and say for which use they suffice."""
    from fewmore.data import benchmarks, loading, paths
    from fewmore.data.sources import WEIGHTS

    console = plain()
    root = paths.data_root(data_root)
    if name in WEIGHTS:
        _check_weights(console, name, root)
        return
    benchmark = benchmarks.find(name)
    with _progress_bar(console, "reading images") as on_progress:
        images = loading.load_benchmark_images(benchmark, root, on_progress)
    is_below_root = name in benchmarks.BENCHMARKS and name != "glyphs"
    console.print(f"{name}: {benchmark.title}" + (f", in {root}" if is_below_root else ""))
    console.print(f"  train: {_describe(images.train, benchmark)}")
    console.print(f"  test: {_describe(images.test, benchmark)}")
    problems = {
        "official split": _official_problem(benchmark, images, root),
        "other draws": _sampling_problem(benchmark, images),
    }
    ready = f"ready ({benchmark.describe_sessions()})"
    for use, problem in problems.items():
        console.print(f"  {use}: {problem or ready}")
    if benchmark.pretrained:
        console.print(f"  ImageNet weights: {_describe_weights(benchmark, root)}")
    if all(problems.values()):
        raise typer.Exit(1)


@app.command("list")
def list_(data_root: Root = None) -> None:
    """List the benchmarks, and say which of them are on this machine.

    Decoded images are cached in ~/.cache/fewmore, or in the folder FEWMORE_CACHE.
    """
    from fewmore.data import paths
    from fewmore.data.benchmarks import BENCHMARKS
    from fewmore.data.sources import SOURCES

    console = plain()
    root = paths.data_root(data_root)
    places = {
        "cifar100": "cifar-100-python/train",
        "miniimagenet": "miniimagenet/images",
        "cub200": "CUB_200_2011/images",
    }
    for name, benchmark in BENCHMARKS.items():
        is_there = name not in SOURCES or (root / places[name]).exists()
        state = "there" if is_there else f"not there: fewmore data get {name}"
        console.print(f"{name}: {benchmark.title} ({state})")
    console.print(
        f"Data root: {root}\nCache: {paths.cache_folder()} "
        f"(may be deleted at any time, but for a data root inside it)"
    )


def _describe(images: "ImageSet", benchmark: "Benchmark") -> str:
    """Say how many images there are, of how many classes and of which size."""
    counts = images.class_counts().tolist()
    each = f"{min(counts):,}"
    if min(counts) != max(counts):
        each += f" to {max(counts):,}"
    size = f"{images.size[0]} × {images.size[1]} pixels" if images.size else "of several sizes"
    text = f"{len(images):,} images of {len(counts)} classes, {each} of each, {size}"
    if len(counts) != benchmark.classes:
        text += f"; {benchmark.name} has {benchmark.classes} classes"
    if empty := [images.class_names[label] for label, count in enumerate(counts) if not count]:
        text += f"; no images of {join_names(empty)}"
    return text


def _official_problem(benchmark: "Benchmark", images: "BenchmarkImages", root: Path) -> str | None:
    """Say why the official split cannot be used, or return None."""
    from fewmore.data import session_lists
    from fewmore.errors import FewmoreError

    if benchmark.lists is None:
        return "none is published, splits are drawn"
    if not session_lists.has_session_lists(benchmark, images, root):
        return f"not ready: there are no session lists; run `fewmore data get {benchmark.name}`"
    try:
        session_lists.official_split(benchmark, images, root)
    except FewmoreError as error:
        return f"not ready: {error}"
    return None


def _sampling_problem(benchmark: "Benchmark", images: "BenchmarkImages") -> str | None:
    """Say why no split can be sampled, or return None."""
    from fewmore.data import loading
    from fewmore.errors import FewmoreError

    if images.missing:
        counts = images.train.class_counts()
        fewest = int(counts.min())
        classes = int((counts == fewest).sum())
        return (
            f"not ready: {classes} classes have only {fewest} images, and "
            f"{len(images.missing):,} are missing, such as {images.missing[0]}; "
            f"put them there, or use the official split only"
        )
    try:
        loading.draw_split(benchmark, images.train, images.keys)
    except FewmoreError as error:
        return f"not ready: {error}"
    return None


def _check_weights(console: "Console", name: str, root: Path) -> None:
    """Say whether a backbone's ImageNet weights are there, and the published file."""
    from fewmore.data.download import fetch_file
    from fewmore.data.sources import WEIGHTS

    file = WEIGHTS[name]
    path = root / file.path
    if not path.exists():
        console.print(f"{path} is not there: fetch it with `fewmore data get {name}`")
        raise typer.Exit(1)
    is_published = fetch_file(file, root) == "there"  # a file that is there is only checked
    console.print(f"{path}: {'the published file' if is_published else OUTCOMES['different']}")
    if not is_published:
        raise typer.Exit(1)


def _describe_weights(benchmark: "Benchmark", root: Path) -> str:
    from fewmore.data.sources import WEIGHTS

    if (root / WEIGHTS[benchmark.backbone].path).exists():
        return "ready"
    return (
        f"not there, will be downloaded when needed; or run `fewmore data get {benchmark.backbone}`"
    )


@contextmanager
def _progress_bar(
    console: "Console", title: str, in_bytes: bool = False
) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar until the work is done, where the output is a terminal."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
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
