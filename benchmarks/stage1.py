"""Time a step of every feature recipe's stage 1, and so all of stage 1, on an otherwise idle GPU.

    python benchmarks/stage1.py [cifar100 …] --device cuda [--record results]

A few short epochs of random images are trained with the recipe `official`: speed does not depend on
what images show. The median step of the last two epochs, times the steps of the recipe, is the time
of stage 1; what begins before the first step (kernels are chosen, a step is captured) is a column
of its own. Recipes with AutoAugment are measured without its kernels too. Rows of the tables are
measured beside other work, so their seconds say little.
"""

import statistics
import time
from dataclasses import fields, replace

import torch
from common import Row, make_parser, print_row, record

from fewmore.accel import PARTS
from fewmore.data.benchmarks import Benchmark, find
from fewmore.data.images import ImageSet
from fewmore.methods.base import Recipe
from fewmore.methods.features import FEATURES, PRETRAINED
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.research.recipes import recipe
from fewmore.training.device import enable_cudnn_benchmark
from fewmore.training.pretrain import PretrainConfig, pretrain
from fewmore.training.runtime import Round, Runtime

EPOCHS = 4  # the last has the loss of all later ones
STEPS = 40  # of such an epoch
IMAGES = {"cifar100": 30_000, "miniimagenet": 30_000, "cub200": 3_000}  # of the base session


def shortened(config: PretrainConfig) -> PretrainConfig:
    """Return the settings of a stage 1 of few epochs, whose loss changes before its last epoch."""
    begins = {
        field.name: min(getattr(config, field.name), 1)
        for field in fields(config)
        if field.name.endswith("_from")
    }
    return replace(config, epochs=EPOCHS, milestones=(), warm_up=0, lr=0.001, **begins)


def measure(benchmark_name: str, features: str, device: torch.device) -> Row:
    """Train a few epochs by a feature recipe, and return the time of a step and of stage 1."""
    benchmark = find(benchmark_name)
    settings = recipe("official", benchmark, "decoupled-cosine", features=features)
    config = settings.pretrain
    began = time.perf_counter()
    epoch = train(benchmark, settings, device, PARTS)
    start = time.perf_counter() - began - 2 * epoch
    step = epoch / STEPS
    plain = None  # of a step without the kernels of a policy
    if settings.transform.policy != "none":
        plain = train(benchmark, settings, device, PARTS - {"augmentation"}) / STEPS
    full, rest = divmod(IMAGES[benchmark_name], config.batch)
    steps = config.epochs * (full + (rest > 0 and config.last_batch == "fill"))
    return {
        "benchmark": benchmark_name,
        "features": features,
        "epochs": config.epochs,
        "batch": config.batch,
        "step ms": 1e3 * step,
        "step ms, plain AutoAugment": None if plain is None else 1e3 * plain,
        "start s": start,
        "stage 1 s": step * steps,
    }


def train(
    benchmark: Benchmark, settings: Recipe, device: torch.device, parts: frozenset[str]
) -> float:
    """Train by parts of the fast path; return the seconds of an epoch, the median of the last."""
    config, transform = settings.pretrain, settings.transform.plain
    side = transform.stored or transform.resize or transform.size
    count = config.batch * STEPS
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    names = [str(label) for label in range(benchmark.base)]
    images = ImageSet.from_images(pixels, torch.arange(count) % benchmark.base, names).to(device)
    backbone = build(settings.backbone).to(device, memory_format=torch.channels_last)
    prototypes = random_prototypes(
        benchmark.base * config.labels_per_class, backbone.dim, torch.Generator().manual_seed(1)
    )
    classifier = Classifier("cosine", prototypes).to(device)
    reports: list[Round] = []
    runtime = Runtime(device, accel=parts, on_round=reports.append)
    pretrain(backbone, classifier, images, transform, shortened(config), runtime, 0)
    return statistics.median(report.seconds for report in reports[-2:])


def main() -> None:
    """Measure all feature recipes on some benchmarks."""
    parser = make_parser(__doc__)
    parser.add_argument("benchmarks", nargs="*", default=["cifar100"], metavar="benchmark")
    parser.add_argument("--features", nargs="+", metavar="NAME", help="all, unless named")
    parser.add_argument("--device", type=torch.device, default="cuda")
    args = parser.parse_args()
    if args.device.type == "cuda":
        enable_cudnn_benchmark()
    names = args.features or [name for name in FEATURES if name != PRETRAINED]
    rows = [
        print_row(measure(benchmark, name, args.device))
        for benchmark in args.benchmarks
        for name in names
    ]
    record("stage1", args.device, rows, {"epochs": EPOCHS, "steps": STEPS}, args.record)


if __name__ == "__main__":
    main()
