"""Declare the arguments and options of the commands that use a model file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fewmore.cli.describe import quote
from fewmore.errors import ConfigError, FewmoreError

ModelFile = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A model file, such as birds.fewmore.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SkipBroken = Annotated[
    bool, typer.Option("--skip-broken", help="Leave out images that cannot be read, and say which.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Engine = Annotated[
    str,
    typer.Option(
        help="What computes features: torch, onnxruntime or openvino; auto is the fastest that is "
        "installed. onnxruntime-int8 is faster and less exact."
    ),
]
Places = Annotated[
    list[str],
    typer.Argument(
        metavar="IMAGE",
        help="Images, folders of them, tar archives, globs, addresses such as s3://bucket/photos, "
        "and lists: .csv or .jsonl with a column path, or .txt with a path a line.",
        show_default=False,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Processes that decode images; 0 for threads. Default: a process a core from 20,000 "
        "images on.",
        show_default=False,
    ),
]
StreamLauncher = Annotated[
    str,
    typer.Option(
        "--launcher", help="Where images are embedded: local, or ray for a cluster (Parquet only)."
    ),
]


def check_order(command: str, model: Path, others: Sequence[Path | str]) -> None:
    """Refuse a model file that stands behind the photos."""
    if _is_model(model):  # then thousands of photos need not be looked into
        return
    behind = next((Path(other) for other in others if _is_model(Path(other))), None)
    if behind is not None:
        raise ConfigError(
            f"{model} is no model file, and {behind} is one, which comes first: "
            f"type fewmore {command} {quote(behind)} {quote(model)}"
        )


def _is_model(path: Path) -> bool:
    from fewmore.classifier.model_file import check_exists

    if not path.expanduser().is_file():
        return False
    try:
        check_exists(path)
    except FewmoreError:
        return False
    return True
