"""Define `fewmore export`: a classifier for programs without PyTorch."""

from pathlib import Path
from typing import Annotated

import typer

from fewmore.cli.describe import file_size
from fewmore.cli.model_options import ModelFile
from fewmore.cli.terminal import plain


def export(
    model: ModelFile,
    onnx: Annotated[
        Path, typer.Option("--onnx", help="The folder to write to.", show_default=False)
    ],
) -> None:
    """Write a model as ONNX, for programs without PyTorch.

    What is written is checked with onnxruntime. After a later change the same command writes what
    is known of the classes anew, and reuses backbone and scorer.

    Example: fewmore export birds.fewmore --onnx birds-onnx
    """
    from fewmore.classifier.export import import_onnxruntime, to_onnx

    import_onnxruntime()  # a missing package is reported before the model is loaded
    from fewmore.classifier.estimator import IncrementalClassifier

    out = plain()
    for file in to_onnx(IncrementalClassifier.load(model, "cpu"), onnx):
        result = "written" if file.written else "kept as it was"
        out.print(f"{file.path}: {file_size(file.path)}, {result}")
    out.print("checked with onnxruntime; docs/quickstart.md shows how to use it")
