"""Is our stage 1 as good as the same thing in torchvision's parts? Several seeds of each on miniImageNet, side by side.

    python benchmarks/parity.py --data-root DATA [--device cuda] [--seeds 3] [--epochs 30] [--record results]

One arm is torchvision's network and transforms in a plain loop, the other is ours: views on the GPU, captured steps, kernels of our own.
Accuracy is on the base classes' test pictures, by class means of the training pictures; nothing is chosen by it. Needs torchvision.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev

import torch
from common import record, shown
from resolution import Arm, by_cecil, by_torchvision

ARM = Arm(seen=84, stored=84)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--device", type=torch.device, default="cuda")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--workers", type=int, default=4, help="processes that crop, for each training by torchvision")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    with ProcessPoolExecutor(2 * args.seeds, mp_context=get_context("spawn")) as pool:
        common = (ARM, args.data_root, args.epochs, args.device)
        pending = {
            "torchvision": [pool.submit(by_torchvision, *common, args.workers, seed) for seed in range(args.seeds)],
            "cecil": [pool.submit(by_cecil, *common, seed) for seed in range(args.seeds)],
        }
        rows = []
        for name, runs in pending.items():
            found = [run.result() for run in runs]
            spread = stdev(found) if len(found) > 1 else None
            rows.append(shown({"stage 1 of": name, "test accuracy %": mean(found), "± over seeds": spread, "seeds": len(found)}))
    record("parity", args.device, rows, {"epochs": args.epochs, "seeds": list(range(args.seeds))}, args.record)


if __name__ == "__main__":
    main()
