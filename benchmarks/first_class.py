"""Measure how long it takes from a bare machine to the first class that is learnt.

    python benchmarks/first_class.py --data-root DATA --record results

Makes an environment, installs fewmore from this checkout, and types what README says, on drawn
shapes: 80 images to train on and five to learn. Weights are taken from the data root; where they
are fetched, the connection decides.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import Row, make_parser, print_row, record

from fewmore.data.paths import data_root

ROOT = Path(__file__).resolve().parent.parent
DRAW = (
    "import shapes; shapes.write('photos', ['triangle', 'square', 'circle', 'cross'], 20); "
    "shapes.write('new', ['star'], 6)"
)


def steps(folder: Path) -> dict[str, list[object]]:
    """Return the commands by what they do, in order."""
    python, fewmore = (folder / "env" / "bin" / name for name in ("python", "fewmore"))
    pip = ["-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", ROOT]
    stars = sorted((folder / "new" / "star").glob("*.png"))
    return {
        "make an environment": [sys.executable, "-m", "venv", folder / "env"],
        "pip install fewmore": [python, *pip],
        "fewmore train photos": [fewmore, "train", "photos", "-o", "shapes.fewmore"],
        "fewmore learn": [fewmore, "learn", "shapes.fewmore", "--name", "star", *stars[:5]],
        "fewmore predict": [fewmore, "predict", "shapes.fewmore", *stars[5:]],
    }


def main() -> None:
    """Time each command."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-root", type=Path)
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        examples = {**os.environ, "PYTHONPATH": str(ROOT / "examples")}
        subprocess.run([sys.executable, "-c", DRAW], cwd=folder, env=examples, check=True)
        root = str(data_root(args.data_root))
        environment = {**os.environ, "FEWMORE_DATA": root, "FEWMORE_CACHE": str(folder / "cache")}
        for step, words in steps(folder).items():
            start = time.perf_counter()
            done = subprocess.run(
                list(map(str, words)), cwd=folder, env=environment, capture_output=True, text=True
            )
            if done.returncode:
                sys.exit(done.stdout + done.stderr)
            rows.append(print_row({"step": step, "seconds": time.perf_counter() - start}))
        answer = done.stdout.strip()
    total = sum(float(str(row["seconds"])) for row in rows)
    record(
        "first_class", torch.device("cpu"), rows, {"total s": total, "says": answer}, args.record
    )


if __name__ == "__main__":
    main()
