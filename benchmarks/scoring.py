"""Scoring by the adapter: the closed form against the naive graph and against a plain cosine classifier.

    python benchmarks/scoring.py [--device cuda] [--record results]

One run, one machine, the same batch and threads for all three. The naive graph builds N + 1 nodes for each query, a few queries
at a time, as memory permits. Time is the median of several calls; memory is what a call adds at its peak.
"""

import math

import torch
import torch.nn.functional as F
from common import asked, peak_memory, record, shown, timed
from torch import Tensor

from fewmore.nn.adapter import Adapter, Context
from fewmore.nn.backbones import build

BATCH = 100
NAIVE_NUMBERS = 2**28  # of the naive graph's attention that may lie in memory at once


def naive(adapter: Adapter, features: Tensor, rows: Tensor) -> Tensor:
    """The graph as the paper draws it: every query is one more node of a graph of its own."""
    at_once = max(
        1, min(len(features), NAIVE_NUMBERS // (len(rows) + 1) // max(len(rows) + 1, adapter.dim))
    )
    scores = []
    for part in torch.split(features, at_once):
        nodes = torch.cat([rows.expand(len(part), -1, -1), part[:, None]], 1)
        q, k, v = (nodes @ m[0].T for m in (adapter.queries, adapter.keys, adapter.values))
        attention = (q @ k.transpose(1, 2) / math.sqrt(adapter.dim)).softmax(-1)
        z = F.layer_norm(
            nodes + (attention @ v) @ adapter.output[0].T + adapter.bias,
            (adapter.dim,),
            adapter.gain,
            adapter.shift,
        )
        scores.append(16 * F.cosine_similarity(z[:, -1:], z[:, :-1], dim=-1))
    return torch.cat(scores)


def stand_in(adapter: Adapter, rows: Tensor) -> Context:
    """A context of the right shapes, made of a few classes' numbers over and over."""
    few = adapter.context(rows[:1000])
    times = len(rows) // len(few)
    wide = {
        name: value.repeat_interleave(times, -2)
        for name, value in vars(few).items()
        if name in ("rows", "asking", "messages", "basis")
    }
    flat = ("largest", "log_rest", "left", "gram", "along_shift")
    long = {
        name: value.repeat_interleave(times, -1)
        for name, value in vars(few).items()
        if name in flat
    }
    return Context(**wide, **long, similar=few.similar, message=few.message)


def measure(classes: int, dim: int, device: torch.device) -> dict[str, object]:
    """One row: all three ways at one number of classes."""
    generator = torch.Generator().manual_seed(0)
    adapter = Adapter(dim, generator=generator).eval().requires_grad_(False).to(device)
    rows = torch.rand(classes, dim, generator=generator).to(device)
    features = torch.rand(BATCH, dim, generator=generator).to(device)
    build_ms: float | str = "–"
    if device.type == "cuda" or classes <= 10_000:
        (build_ms,) = timed(device, lambda: adapter.context(rows))
        context = adapter.context(rows)
    else:  # minutes on a CPU; what scoring costs does not depend on the numbers in it
        context = stand_in(adapter, rows)
    unit = F.normalize(rows, dim=1)
    ours, cosine = timed(
        device,
        lambda: adapter.scores(features, context),
        lambda: 16 * F.normalize(features, dim=1) @ unit.T,
    )
    row: dict[str, object] = {
        "classes": classes,
        "d": dim,
        "build ms": build_ms,
        "closed form ms": ours,
        "cosine ms": cosine,
    }
    row["× cosine"] = ours / cosine
    row["closed form MB"] = peak_memory(lambda: adapter.scores(features, context), device)
    feasible = classes <= (1_000 if device.type == "cpu" else 10_000)
    # The naive graph is timed on as many queries as take a bearable time, and counted for the whole batch.
    part = BATCH if classes <= 100 else 4
    if feasible:
        slow = timed(device, lambda: naive(adapter, features[:part], rows))[0] * BATCH / part
        row |= {
            "naive ms": slow,
            "naive ×": slow / ours,
            "naive MB": peak_memory(lambda: naive(adapter, features[:part], rows), device),
        }
    else:
        row |= {"naive ms": "–", "naive ×": "–", "naive MB": "–"}
    return row


def main() -> None:
    device, folder = asked(__doc__)
    rows = []
    with torch.inference_mode():
        for dim in (64, 512):
            for classes in (100, 1000, 10_000, 100_000):
                rows.append(shown(measure(classes, dim, device)))
        network = build("resnet20").eval().to(device, memory_format=torch.channels_last)
        images = torch.rand(BATCH, 3, 32, 32, device=device).contiguous(
            memory_format=torch.channels_last
        )
        (backbone,) = timed(device, lambda: network(images))
    first = rows[0]["closed form ms"]
    assert isinstance(first, float)
    about = {
        "batch": BATCH,
        "threads": torch.get_num_threads(),
        "resnet20 ms": backbone,
        "closed form at 100 classes, share of resnet20": first / backbone,
    }
    record("scoring", device, rows, about, folder)


if __name__ == "__main__":
    main()
