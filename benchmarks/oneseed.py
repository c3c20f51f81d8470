"""Time one seed of CEC on CIFAR100, from the typed command to the drawn report.

    python benchmarks/oneseed.py --data-root DATA [--device cuda] [--record results]

The run is a process of its own and happens twice: as the first time on a machine, when kernels must
be compiled, and again with the compiled kernels. The recipe is `official`, unchanged; the accuracy
is that of the test images, and nothing is chosen by it.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import Row, make_parser, print_row, record

from fewmore.research import results

STAGES = ("pretrain", "pseudo-incremental")


def time_run(data_root: Path, device: str, runs: Path, kernels: Path) -> Row:
    """Return the seconds from start to end, those of both stages, and the last accuracy."""
    command = [sys.executable, "-m", "fewmore", "run", "cifar100", "--method", "cec"]
    command += ["--device", device, "--data-root", str(data_root), "--runs", str(runs)]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(kernels)}
    began = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    (folder,) = (path.parent for path in runs.glob("*/result.json"))
    result = results.read(folder)
    (times,) = result.seconds
    (last,) = result.last
    stages = {name: times[name] for name in STAGES}
    return {
        "from start to end s": seconds,
        **{f"{name} s": value for name, value in stages.items()},
        "all else s": seconds - sum(stages.values()),
        "last session %": last,
    }


def main() -> None:
    """Run twice and record both times."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(folder) / "kernels"
        for which in ("first", "second"):
            measured = time_run(args.data_root, args.device, Path(folder) / which, kernels)
            rows.append(print_row({"run on a machine": which, **measured}))
    about: Row = {"benchmark": "cifar100", "recipe": "official", "seed": 0}
    record("oneseed", torch.device(args.device), rows, about, args.record)


if __name__ == "__main__":
    main()
