"""The earth mover's similarity of feature maps: images against 100 classes.

    python benchmarks/transport.py [--device cuda] [--record results]

Maps are random, smooth and behind a ReLU; time does not depend on what is in them. Time is the median of several calls, counted for a
whole test set of 10,000 images.
"""

import torch
import torch.nn.functional as F
from common import asked, peak_memory, record, shown, timed
from torch import Tensor

from fewmore.nn.similarity import earth_mover

CLASSES, TEST = 100, 10_000


def maps(images: int, side: int, dim: int, seed: int) -> Tensor:
    coarse = torch.randn(images, dim, 3, 3, generator=torch.Generator().manual_seed(seed))
    return (
        F.relu(F.interpolate(coarse, size=(side, side), mode="bilinear")).flatten(2).transpose(1, 2)
    )


def measure(side: int, dim: int, device: torch.device) -> dict[str, object]:
    """One row: the maps of one backbone."""
    images = 2000 if device.type == "cuda" else 20
    queries, classes = maps(images, side, dim, 0).to(device), maps(CLASSES, side, dim, 1).to(device)

    def call() -> Tensor:
        return earth_mover(queries, classes, centred=True)

    seconds = timed(device, call)[0] / 1e3 / images
    return {
        "cells": f"{side} × {side}",
        "d": dim,
        "problems a second": CLASSES / seconds,
        "10,000 × 100, s": TEST * seconds,
        "peak MB": peak_memory(call, device),
    }


def main() -> None:
    device, folder = asked(__doc__)
    rows = [
        shown(measure(side, dim, device))
        for side, dim in ((3, 64), (4, 64), (8, 64), (3, 512), (7, 512))
    ]
    record("transport", device, rows, {"threads": torch.get_num_threads()}, folder)


if __name__ == "__main__":
    main()
