"""Compare training as plain PyTorch, with torch.compile, and with fewmore's fast path, on a GPU.

    python benchmarks/acceleration.py --device cuda [--record results]

All are measured in this one run: milliseconds of a step, the median of the rounds after the first;
and, for two of them, the seconds until the first round is over, with empty and with
filled caches of compiled kernels. Images are random, as speed does not depend on what they show.
cuDNN times its kernels everywhere. Steps are those of the recipe `official`: stage 1 and stage 2 of
CIFAR100 (ResNet20, 32 pixels), stage 1 of ResNet18 at 84 pixels, and both stages at 224 pixels.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from common import Row, make_parser, print_row, record

from fewmore.accel import PARTS
from fewmore.data.benchmarks import BENCHMARKS
from fewmore.data.images import ImageSet
from fewmore.methods.base import Recipe
from fewmore.nn.adapter import Adapter
from fewmore.nn.backbones import Backbone, build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.research.recipes import recipe
from fewmore.training.device import enable_cudnn_benchmark
from fewmore.training.pretrain import PretrainConfig, pretrain
from fewmore.training.pseudo_incremental import ROUND, pseudo_incremental
from fewmore.training.runtime import Round, Runtime

BEGAN = time.perf_counter()  # of the process, but for its imports
BATCH = 128
CLASSES = 60
MOST_IMAGES = 6000
ROUNDS = 4


@dataclass(frozen=True)
class Workload:
    """Name a stage of training on a benchmark's images."""

    benchmark: str
    stage: int
    steps: int  # in a round of stage 1


@dataclass(frozen=True)
class Variant:
    """Name a way to run the steps: parts of the fast path, and whether the backbone is compiled."""

    parts: frozenset[str]
    compiled: bool = False


WORKLOADS = {
    "CIFAR100, stage 1": Workload("cifar100", 1, 100),
    "CIFAR100, stage 2": Workload("cifar100", 2, ROUND),
    "ResNet18 at 84, stage 1": Workload("miniimagenet", 1, 50),
    "ResNet18 at 224, stage 1": Workload("cub200", 1, 20),
    "ResNet18 at 224, stage 2": Workload("cub200", 2, ROUND),
}
VARIANTS = {
    "plain": Variant(frozenset()),
    "plain, captured": Variant(frozenset({"graphs"})),
    "torch.compile": Variant(frozenset(), compiled=True),
    "torch.compile, captured": Variant(frozenset({"graphs"}), compiled=True),
    "fewmore": Variant(PARTS),
    "fewmore without batch-norm": Variant(PARTS - {"batch-norm"}),
    "fewmore without conv": Variant(PARTS - {"conv"}),
    "fewmore without max-pool": Variant(PARTS - {"max-pool"}),
    "fewmore without side-streams": Variant(PARTS - {"side-streams"}),
}
STARTED_APART = ("torch.compile, captured", "fewmore")


def measure(workload: Workload, variant: Variant, device: torch.device) -> Row:
    """Train for a few rounds; return milliseconds of a step and seconds since the start."""
    settings = recipe("official", BENCHMARKS[workload.benchmark], "cec")
    size = settings.transform.size
    count = min(BATCH * workload.steps, MOST_IMAGES) if workload.stage == 1 else MOST_IMAGES
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    names = [str(label) for label in range(CLASSES)]
    images = ImageSet.from_images(pixels, torch.arange(count) % CLASSES, names).to(device)
    backbone = build(settings.backbone).to(device, memory_format=torch.channels_last)
    if variant.compiled:
        backbone.compile()
    reports: list[Round] = []
    runtime = Runtime(device, accel=variant.parts or False, on_round=reports.append)
    train(workload, backbone, images, settings, runtime, device)
    torch.cuda.synchronize()
    rounds = [report.seconds for report in reports]
    steps = count // BATCH if workload.stage == 1 else ROUND
    return {
        "step ms": 1e3 * statistics.median(rounds[1:]) / steps,
        "start s": time.perf_counter() - BEGAN - sum(rounds[1:]),
    }


def train(
    workload: Workload,
    backbone: Backbone,
    images: ImageSet,
    settings: Recipe,
    runtime: Runtime,
    device: torch.device,
) -> None:
    """Run the stage of a workload for a few rounds."""
    if workload.stage == 1:
        generator = torch.Generator().manual_seed(1)
        prototypes = random_prototypes(CLASSES, backbone.dim, generator)
        classifier = Classifier("cosine", prototypes).to(device)
        config = PretrainConfig(epochs=ROUNDS, lr=0.01)
        pretrain(backbone, classifier, images, settings.transform, config, runtime, 0)
    else:
        adapter = Adapter(backbone.dim).to(device)
        config = replace(settings.method.pseudo, episodes=ROUNDS * ROUND, augmented_rounds=0)
        pseudo_incremental(backbone, adapter, images, settings.transform, config, runtime, 0)


def measure_here(workload: Workload, variants: list[str], device: torch.device) -> dict[str, Row]:
    """Measure variants of a workload in this process."""
    enable_cudnn_benchmark()
    rows: dict[str, Row] = {}
    for name in variants:
        if VARIANTS[name].compiled:
            torch._dynamo.reset()
        rows[name] = measure(workload, VARIANTS[name], device)
    return rows


def measure_apart(name: str, variants: list[str], device: str, caches: Path) -> dict[str, Row]:
    """Measure variants of a workload in a process of its own, with these caches of kernels."""
    command = [sys.executable, __file__, "--device", device, "--workload", name]
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
    }
    done = subprocess.run(
        [*command, *variants], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    measured: dict[str, Row] = json.loads(done.stdout.splitlines()[-1])
    return measured


def compare(workload: str, device: str, caches: Path) -> list[Row]:
    """Measure all variants of a workload in one process, and the starts of two in their own."""
    starts: dict[str, Row] = {}
    for name in STARTED_APART:
        own_caches = caches / name.replace(" ", "-")
        for state in ("empty", "filled"):
            measured = measure_apart(workload, [name], device, own_caches)[name]
            starts.setdefault(name, {})[f"start s, {state} caches"] = measured["start s"]
    variants = measure_apart(workload, list(VARIANTS), device, caches / "all")
    compiled = float(str(variants["torch.compile, captured"]["step ms"]))
    rows = []
    for name, measured in variants.items():
        step = float(str(measured["step ms"]))
        row: Row = {
            "workload": workload,
            "variant": name,
            "step ms": step,
            "torch.compile, captured / this": compiled / step,
            **starts.get(name, {}),
        }
        rows.append(print_row(row))
    return rows


def main() -> None:
    """Measure all variants of all workloads, each workload in a process of its own."""
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workload", help="measure the variants named here, in this process")
    parser.add_argument("variants", nargs="*")
    args = parser.parse_args()
    device = torch.device(args.device)
    if args.workload:
        print(json.dumps(measure_here(WORKLOADS[args.workload], args.variants, device)))
        return
    rows: list[Row] = []
    for workload in WORKLOADS:
        with tempfile.TemporaryDirectory() as caches:
            rows += compare(workload, args.device, Path(caches))
    record("acceleration", device, rows, {"batch": BATCH, "rounds": ROUNDS}, args.record)


if __name__ == "__main__":
    main()
