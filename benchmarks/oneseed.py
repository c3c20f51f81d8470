"""CEC on one seed of CIFAR100 alone, from the typed command to the drawn report: seconds in all, in a process of its own.

    python benchmarks/oneseed.py --data-root DATA [--device cuda] [--record results]

Twice: as the first time on a machine, when kernels must be compiled, and once more with those compiled. The recipe is `official`,
unaltered; the accuracy is that of the test images, and nothing is chosen by it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import record, shown

from fewmore.research import results


def one_run(data_root: Path, device: str, runs: Path, compiled: Path) -> dict[str, object]:
    """Seconds from start to end, the parts of them that the run itself has taken, and its accuracy."""
    command = [
        sys.executable,
        "-m",
        "fewmore",
        "run",
        "cifar100",
        "--method",
        "cec",
        "--device",
        device,
    ]
    command += ["--data-root", str(data_root), "--runs", str(runs)]
    began = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        env={**os.environ, "TRITON_CACHE_DIR": str(compiled)},
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - began
    (folder,) = (path.parent for path in runs.glob("*/result.json"))
    result = results.read(folder)
    (parts,), (last,) = result.seconds, result.last
    rounds = {name: parts[name] for name in ("pretrain", "pseudo-incremental")}
    return {
        "from start to end s": seconds,
        **{f"{name} s": value for name, value in rounds.items()},
        "all else s": seconds - sum(rounds.values()),
        "last session %": last,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, which in enumerate(("first", "second")):
            found = one_run(
                args.data_root, args.device, Path(folder) / str(number), Path(folder) / "compiled"
            )
            rows.append(shown({"run on a machine": which, **found}))
    record(
        "oneseed",
        torch.device(args.device),
        rows,
        {"benchmark": "cifar100", "recipe": "official", "seed": 0},
        args.record,
    )


if __name__ == "__main__":
    main()
