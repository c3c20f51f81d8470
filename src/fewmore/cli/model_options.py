"""Declare the arguments and options of the commands that use a model file."""

from pathlib import Path
from typing import Annotated

import typer

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
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
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
