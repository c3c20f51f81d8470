"""The earth mover's similarity of feature maps: pictures against 100 classes.

    python benchmarks/transport.py [--device cuda] [--record results]

Maps are random, smooth and behind a ReLU; time does not depend on what is in them. Time is the median of several calls, counted for a
whole test set of 10,000 pictures.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from common import record
from scoring import timed
from torch import Tensor

from cecil.nn.similarity import earth_mover

CLASSES, TEST = 100, 10_000


def maps(pictures: int, side: int, dim: int, seed: int) -> Tensor:
    coarse = torch.randn(pictures, dim, 3, 3, generator=torch.Generator().manual_seed(seed))
    return F.relu(F.interpolate(coarse, size=(side, side), mode="bilinear")).flatten(2).transpose(1, 2)


def measure(side: int, dim: int, device: torch.device) -> dict[str, object]:
    """One row: the maps of one backbone."""
    pictures = 2000 if device.type == "cuda" else 20
    queries, classes = maps(pictures, side, dim, 0).to(device), maps(CLASSES, side, dim, 1).to(device)
    milliseconds, memory = timed(lambda: earth_mover(queries, classes, centred=True), device)
    seconds = milliseconds / 1e3 / pictures
    row: dict[str, object] = {
        "cells": f"{side} × {side}",
        "d": dim,
        "problems a second": CLASSES / seconds,
        "10,000 × 100, s": TEST * seconds,
    }
    if device.type == "cuda":
        row["peak MB"] = memory
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    for side, dim in ((3, 64), (4, 64), (8, 64), (3, 512), (7, 512)):
        rows.append(measure(side, dim, device))
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    record("transport", device, rows, {"threads": torch.get_num_threads()}, args.record)


if __name__ == "__main__":
    main()
