"""Define `fewmore embed`: the features of images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewmore.classifier.text import count_noun
from fewmore.cli.model_options import (
    Device,
    Engine,
    ModelFile,
    Places,
    StreamLauncher,
    Workers,
    check_order,
)
from fewmore.cli.output_files import with_end
from fewmore.cli.prediction_rows import import_pyarrow
from fewmore.cli.research_options import Address
from fewmore.cli.stream_job import StreamJob
from fewmore.cli.terminal import plain
from fewmore.errors import ConfigError

if TYPE_CHECKING:  # torch is imported when a command runs
    from fewmore.classifier.estimator import IncrementalClassifier
    from fewmore.classifier.streaming import EmbeddedChunk


def embed(
    model: ModelFile,
    images: Places,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "--out",
            "-o",
            help="Write to a new Parquet file; it goes on where it was stopped.",
            show_default=False,
        ),
    ],
    workers: Workers = None,
    launcher: StreamLauncher = "local",
    address: Address = None,
    engine: Engine = "auto",
    device: Device = "auto",
) -> None:
    """Write the features of images, a row an image: image, features and error.

    They are what the classifier compares with its classes. If some images cannot be read, their
    rows have an error and no features, and the exit code is 1. If the command is stopped, or
    killed, the same command goes on.

    Example: fewmore embed birds.fewmore photos -o features.parquet

    Example: fewmore embed birds.fewmore s3://bucket/birds -o birds.parquet --launcher ray
    """
    check_order("embed", model, images)
    if output.suffix.lower() != ".parquet":
        raise ConfigError(
            f"-o {output} does not end in .parquet: use -o {with_end(output, '.parquet')}"
        )
    if output.exists():
        raise ConfigError(f"-o {output} is there already: give another name, or remove it")
    import_pyarrow()
    job = StreamJob(model, images, device, engine, workers, launcher, address)
    job.check(output)
    done, errors = job.write_parquet("embedding", output, {"command": "embed"}, _as_table)
    plain().print(f"{output}: {count_noun(done, 'image')}")
    if errors:
        broken = count_noun(errors, "image")
        typer.secho(f"fewmore: {broken} cannot be read: see the column error", err=True, fg="red")
        raise typer.Exit(1)


def _as_table(classifier: "IncrementalClassifier", chunk: "EmbeddedChunk") -> Any:
    pa = import_pyarrow()
    dim = chunk.features.shape[1]
    flat = pa.array(chunk.features.cpu().numpy().ravel())
    # Lists of any length: with missing ones, those of a fixed length cannot be read by pyarrow 25.
    starts = iter(range(0, len(flat), dim))
    offsets = [None if i in chunk.errors else next(starts) for i in range(len(chunk.names))]
    rows = pa.ListArray.from_arrays(pa.array([*offsets, len(flat)], pa.int32()), flat)
    return pa.table(
        {
            "image": pa.array(chunk.names, pa.string()),
            "features": rows,
            "error": pa.array(map(chunk.errors.get, range(len(chunk.names))), pa.string()),
        }
    )
