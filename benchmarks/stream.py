"""Predict a million small images in shards, killing the command on the way: each row once.

    python benchmarks/stream.py [--images 1000000] [--kills 2] [--beside] [--record results]

The images are drawn characters of 32 × 32 pixels in tar shards of 10,000, one in 50,000 of them
damaged; the model is a resnet8 with 100 classes. `fewmore predict … -o rows.parquet` is started,
killed (SIGKILL) when it has written some rows, and started again by the same command, until it
ends by itself. Then all rows are read: the names must be those of the images, in order, each once.

Memory is that of the command with all its processes, sampled five times a second: the
proportional set size, in which a page that processes share counts once.
"""

import io
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from common import make_parser, print_row, record
from PIL import Image
from pyarrow import parquet

from fewmore import IncrementalClassifier
from fewmore.cli.parts import Parts
from fewmore.data import glyphs
from fewmore.data.images import ImageSet
from fewmore.data.streams import PlaceList
from fewmore.nn.backbones import build

SHARD = 10_000  # images
DRAWN = 6  # different images of each class
BROKEN = 50_000  # one in so many images is damaged
BACKBONE = "resnet8"
LIMIT = 1024  # megabytes


def draw() -> ImageSet:
    """Draw the different images."""
    return glyphs.render("train", DRAWN)


def make_model(drawn: ImageSet, folder: Path) -> Path:
    """Write a model with random weights, which are as fast as trained ones."""
    weights = folder / "weights.pth"
    torch.save(build(BACKBONE, seed=0).state_dict(), weights)
    classifier = IncrementalClassifier(BACKBONE, weights, device="cpu").fit(drawn)
    classifier.save(folder / "glyphs.fewmore")
    return folder / "glyphs.fewmore"


def make_shards(drawn: ImageSet, folder: Path, count: int) -> None:
    """Write so many images to shards; each has a name of its own."""
    encoded = []
    for number in range(len(drawn)):
        buffer = io.BytesIO()
        Image.fromarray(drawn.image(number).permute(1, 2, 0).numpy()).save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    for start in range(0, count, SHARD):
        with tarfile.open(folder / f"shard-{start // SHARD:04d}.tar", "w") as shard:
            for number in range(start, min(start + SHARD, count)):
                is_broken = number % BROKEN == BROKEN - 1
                data = b"no image" if is_broken else encoded[number % len(encoded)]
                info = tarfile.TarInfo(f"{number:09d}.png")
                info.size = len(data)
                shard.addfile(info, io.BytesIO(data))


def processes(group: int) -> Iterator[Path]:
    """Yield the folders in /proc of the processes of a group."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                yield folder
        except (OSError, ValueError):
            continue


def memory(group: int) -> float:
    """Return the proportional set size of a group of processes, in megabytes."""
    size = 0
    for folder in processes(group):
        try:
            lines = (folder / "smaps_rollup").read_text().splitlines()
        except OSError:  # it has just ended
            continue
        size += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return size / 1024


def rows_written(output: Path) -> int:
    """Return how many rows the parts of an unfinished file have."""
    folder = output.with_name(f"{output.name}.unfinished")
    if not (folder / "places.jsonl").exists():
        return 0
    return Parts(folder, PlaceList(folder / "places.jsonl")).rows


def run(command: list[str], output: Path, kill_at: int | None) -> tuple[float, float, int]:
    """Run a command, and kill it at so many rows; return seconds, peak megabytes and exit code."""
    began = time.monotonic()
    process = subprocess.Popen(command, start_new_session=True)
    peak = 0.0
    ended = threading.Event()
    waiter = threading.Thread(target=lambda: (process.wait(), ended.set()))
    waiter.start()
    while not ended.wait(0.2):
        peak = max(peak, memory(process.pid))
        if kill_at is not None and rows_written(output) >= kill_at:
            process.send_signal(signal.SIGKILL)
            ended.wait()
    waiter.join()
    return time.monotonic() - began, peak, process.returncode


def check(output: Path, count: int) -> tuple[int, int]:
    """Read all rows; return how many are of the image whose turn it is, and how many errors."""
    right = 0
    errors = 0
    number = 0
    with parquet.ParquetFile(output) as file:
        for batch in file.iter_batches(columns=["image", "name", "error"]):
            for row in batch.to_pylist():
                is_broken = number % BROKEN == BROKEN - 1
                shard = f"shard-{number // SHARD:04d}.tar/{number:09d}.png"
                right += row["image"].endswith(shard) and (row["error"] is not None) == is_broken
                errors += row["error"] is not None
                number += 1
    return right if number == count else -number, errors


def main() -> None:
    """Make the images, predict them with kills on the way, and check all rows."""
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("/tmp"), help="for temporary files")
    parser.add_argument("--beside", action="store_true", help="other work runs on this machine")
    args = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory(dir=args.work) as temporary:
        folder = Path(temporary)
        drawn = draw()
        model = make_model(drawn, folder)
        make_shards(drawn, folder, args.images)
        output = folder / "rows.parquet"
        last = (args.images - 1) // SHARD
        command = [sys.executable, "-m", "fewmore", "predict", str(model)]
        command += [str(folder / f"shard-{{0000..{last:04d}}}.tar"), "-o", str(output)]
        for kill in range(args.kills + 1):
            kill_at = None if kill == args.kills else args.images * (kill + 1) // (args.kills + 1)
            before = rows_written(output)
            seconds, peak, code = run(command, output, kill_at)
            after = rows_written(output) if kill_at else args.images
            runs.append(
                print_row(
                    {
                        "run": kill + 1,
                        "ended by": "SIGKILL" if code == -signal.SIGKILL else f"exit code {code}",
                        "rows before": before,
                        "rows after": after,
                        "seconds": seconds,
                        "images/s": (after - before) / seconds,
                        "peak megabytes": peak,
                    }
                )
            )
        right, errors = check(output, args.images)
    about = {
        "images": args.images,
        "shards of": SHARD,
        "backbone": BACKBONE,
        "classes": len(glyphs.CLASSES),
        "damaged images": args.images // BROKEN,
        "rows that are right, in order": right,
        "rows with an error": errors,
        "peak megabytes": max(float(str(row["peak megabytes"])) for row in runs),
        "limit, megabytes": LIMIT,
        "beside other work": args.beside,
    }
    record("stream", torch.device("cpu"), runs, about, args.record)


if __name__ == "__main__":
    main()
