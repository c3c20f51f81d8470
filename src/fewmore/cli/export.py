"""Define `fewmore export`: a classifier for programs without PyTorch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewmore.cli.describe import file_size
from fewmore.cli.model_options import ModelFile
from fewmore.cli.output_files import check_graph_file
from fewmore.cli.terminal import plain, stages
from fewmore.errors import ConfigError

if TYPE_CHECKING:  # torch and rich are imported when a command runs
    from rich.console import Console

    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.one_file import OneFile


def export(
    model: ModelFile,
    onnx: Annotated[
        Path | None,
        typer.Option(
            "--onnx",
            help="A file, such as birds.onnx, or the folder of two graphs.",
            show_default=False,
        ),
    ] = None,
    web: Annotated[
        Path | None,
        typer.Option(help="A folder for a web page that runs the model.", show_default=False),
    ] = None,
    int8: Annotated[
        Path | None,
        typer.Option(
            metavar="PHOTOS",
            help="Compute with 8 bits, calibrated with these photos.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a model for programs without PyTorch: as ONNX, or as a web page.

    A file, birds.onnx, takes a photo of any size and gives the name of its class. A folder gets two
    graphs and the classes beside them: after a later change the same command writes the classes
    anew, and reuses the graphs. What is written is checked with onnxruntime.

    Example: fewmore export birds.fewmore --onnx birds.onnx
    """
    from fewmore.classifier.export import check_folder, import_onnxruntime

    if onnx is None and web is None:
        raise ConfigError(
            "say what to write: --onnx birds.onnx, --onnx FOLDER for two graphs, or --web FOLDER"
        )
    if int8 is not None and onnx is not None and not _is_graph_file(onnx):
        raise ConfigError(
            f"--int8 is for one file or a web page, and --onnx {onnx} is no .onnx file: "
            "give --onnx birds.onnx, or --web FOLDER"
        )
    import_onnxruntime()  # a missing package is reported before the model is loaded
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.web import OWN_FILES, to_web_page

    if onnx is not None:
        _check_onnx(onnx)
    if web is not None:
        check_folder(web.expanduser(), OWN_FILES)
    out = plain()
    classifier = IncrementalClassifier.load(model, "cpu")
    if onnx is not None:
        _write_onnx(out, classifier, onnx, int8)
    if web is not None:
        with stages(plain(stderr=True), patient=True) as progress:
            file = to_web_page(classifier, web, int8, progress)
        _print_file(out, file)
        out.print(f"see it: python -m http.server --directory {web}, then http://localhost:8000")
    out.print("checked with onnxruntime; docs/export.md shows how to use it")


def _is_graph_file(place: Path) -> bool:
    """Return whether --onnx names a single file, not the folder of two graphs."""
    return place.suffix.lower() == ".onnx"


def _write_onnx(
    out: "Console", classifier: "IncrementalClassifier", place: Path, int8: Path | None
) -> None:
    """Write one file or a folder of two graphs, and print what was written."""
    from fewmore.classifier.export import to_onnx
    from fewmore.classifier.one_file import to_onnx_file

    if _is_graph_file(place):
        with stages(plain(stderr=True), patient=True) as progress:
            file = to_onnx_file(classifier, place, int8, progress)
        _print_file(out, file)
        return
    with stages(plain(stderr=True), patient=True) as progress:
        files = to_onnx(classifier, place, progress)
    for each in files:
        result = "written" if each.written else "kept as it was"
        out.print(f"{each.path}: {file_size(each.path)}, {result}")


def _print_file(out: "Console", file: "OneFile") -> None:
    """Print the size of a file that was written, and of int8 how many answers stay the same."""
    out.print(f"{file.path}: {file_size(file.path)}, written")
    if file.compared:
        share = 100 * file.agreeing / file.compared
        out.print(
            f"int8: {file.agreeing} of {file.compared} photos get the same answer as before "
            f"({share:.1f} %)"
        )


def _check_onnx(place: Path) -> None:
    """Refuse what is neither a .onnx file nor a folder, and what fewmore did not export."""
    from fewmore.classifier.export import FILES, check_folder

    if _is_graph_file(place):
        check_graph_file(place)
    elif place.suffix and not place.expanduser().is_dir():
        raise ConfigError(
            f"--onnx {place} does not end in .onnx: use --onnx {place.with_suffix('.onnx')} for "
            f"one file, or --onnx {place.with_suffix('')}-onnx for a folder of two graphs"
        )
    else:
        check_folder(place.expanduser(), FILES)
