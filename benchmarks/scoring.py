"""Compare scoring by the adapter's closed form with the naive graph and a plain cosine classifier.

    python benchmarks/scoring.py [--device cuda] [--record results]

All three run in one process, on the same batch and threads. The naive graph builds N + 1 nodes for
each query, a few queries at a time, as memory permits. Time is the median of several calls; memory
is what a call adds at its peak.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from common import Row, median_ms, parse_device, peak_memory, print_row, record
from torch import Tensor

from fewmore.nn.adapter import Adapter
from fewmore.nn.backbones import build
from fewmore.nn.closed_form import CLASS_AXIS, Context

BATCH = 100
CLASSES = (100, 1000, 10_000, 100_000)
NAIVE_NUMBERS = 2**28  # of the naive graph's attention that may be in memory at once
UNMEASURED = "–"


def naive_scores(adapter: Adapter, features: Tensor, prototypes: Tensor) -> Tensor:
    """Score by the graph as the paper draws it: a graph of N + 1 nodes for every query."""
    size = len(prototypes) + 1
    chunk = min(len(features), NAIVE_NUMBERS // size // max(size, adapter.dim))
    scores = []
    for part in torch.split(features, max(1, chunk)):
        nodes = torch.cat([prototypes.expand(len(part), -1, -1), part[:, None]], 1)
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


def repeated_context(adapter: Adapter, prototypes: Tensor) -> Context:
    """Return a context of the right shapes by repeating that of the first thousand classes."""
    few = adapter.context(prototypes[:1000])
    times = len(prototypes) // len(few)
    repeated = {
        name: getattr(few, name).repeat_interleave(times, axis) for name, axis in CLASS_AXIS.items()
    }
    return replace(few, **repeated)


def measure(classes: int, dim: int, device: torch.device) -> Row:
    """Measure all three at one number of classes."""
    generator = torch.Generator().manual_seed(0)
    adapter = Adapter(dim, generator=generator).eval().requires_grad_(False).to(device)
    prototypes = torch.rand(classes, dim, generator=generator).to(device)
    features = torch.rand(BATCH, dim, generator=generator).to(device)
    build_ms: float | str = UNMEASURED
    if device.type == "cuda" or classes <= 10_000:
        (build_ms,) = median_ms(device, lambda: adapter.context(prototypes))
        context = adapter.context(prototypes)
    else:  # takes minutes on a CPU, and the cost of scoring does not depend on the numbers in it
        context = repeated_context(adapter, prototypes)
    unit = F.normalize(prototypes, dim=1)
    closed_form, cosine = median_ms(
        device,
        lambda: adapter.scores(features, context),
        lambda: 16 * F.normalize(features, dim=1) @ unit.T,
    )
    row: Row = {
        "classes": classes,
        "d": dim,
        "build ms": build_ms,
        "closed form ms": closed_form,
        "cosine ms": cosine,
        "× cosine": closed_form / cosine,
        "closed form MB": peak_memory(lambda: adapter.scores(features, context), device),
        "naive ms": UNMEASURED,
        "naive ×": UNMEASURED,
        "naive MB": UNMEASURED,
    }
    if classes > (1_000 if device.type == "cpu" else 10_000):
        return row
    # The naive graph is timed on few queries where it is slow, and scaled to the whole batch.
    queries = BATCH if classes <= 100 else 4

    def naive() -> Tensor:
        return naive_scores(adapter, features[:queries], prototypes)

    naive_ms = median_ms(device, naive)[0] * BATCH / queries
    row["naive ms"] = naive_ms
    row["naive ×"] = naive_ms / closed_form
    row["naive MB"] = peak_memory(naive, device)
    return row


def main() -> None:
    """Measure all sizes, and ResNet20 on the same batch."""
    device, folder = parse_device(__doc__)
    with torch.inference_mode():
        rows = [
            print_row(measure(classes, dim, device)) for dim in (64, 512) for classes in CLASSES
        ]
        network = build("resnet20").eval().to(device, memory_format=torch.channels_last)
        images = torch.rand(BATCH, 3, 32, 32, device=device)
        images = images.contiguous(memory_format=torch.channels_last)
        (backbone_ms,) = median_ms(device, lambda: network(images))
    first = rows[0]["closed form ms"]
    assert isinstance(first, float)
    about: Row = {
        "batch": BATCH,
        "threads": torch.get_num_threads(),
        "resnet20 ms": backbone_ms,
        "closed form at 100 classes, share of resnet20": first / backbone_ms,
    }
    record("scoring", device, rows, about, folder)


if __name__ == "__main__":
    main()
