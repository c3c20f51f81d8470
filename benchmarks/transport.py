"""Measure the earth mover's similarity of feature maps: images against 100 classes.

    python benchmarks/transport.py [--device cuda] [--record results]

The maps are random, smooth and behind a ReLU; time does not depend on their content. Time is the
median of several calls, scaled to a whole test set of 10,000 images.
"""

import torch
import torch.nn.functional as F
from common import Row, median_ms, parse_device, peak_memory, print_row, record
from torch import Tensor

from fewmore.nn.similarity import earth_mover

CLASSES = 100
TEST_IMAGES = 10_000
SIZES = ((3, 64), (4, 64), (8, 64), (3, 512), (7, 512))  # side of a map, features


def random_maps(images: int, side: int, dim: int, seed: int) -> Tensor:
    """Return smooth random feature maps, (images, cells, dim)."""
    coarse = torch.randn(images, dim, 3, 3, generator=torch.Generator().manual_seed(seed))
    fine = F.relu(F.interpolate(coarse, size=(side, side), mode="bilinear"))
    return fine.flatten(2).transpose(1, 2)


def measure(side: int, dim: int, device: torch.device) -> Row:
    """Measure the maps of one backbone."""
    images = 2000 if device.type == "cuda" else 20
    queries = random_maps(images, side, dim, 0).to(device)
    classes = random_maps(CLASSES, side, dim, 1).to(device)

    def call() -> Tensor:
        return earth_mover(queries, classes, centred=True)

    seconds = median_ms(device, call)[0] / 1e3 / images
    return {
        "cells": f"{side} × {side}",
        "d": dim,
        "problems a second": CLASSES / seconds,
        "10,000 × 100, s": TEST_IMAGES * seconds,
        "peak MB": peak_memory(call, device),
    }


def main() -> None:
    """Measure all sizes."""
    device, folder = parse_device(__doc__)
    rows = [print_row(measure(side, dim, device)) for side, dim in SIZES]
    record("transport", device, rows, {"threads": torch.get_num_threads()}, folder)


if __name__ == "__main__":
    main()
