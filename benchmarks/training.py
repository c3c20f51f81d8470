"""Training on a GPU: a step of stage 1 with and without augmentation, and an episode of stage 2.

    python benchmarks/training.py [--device cuda] [--record results]

Images are random: speed does not depend on what they show. Steps are those of the recipe `official` on CIFAR100 and miniImageNet.
"""

import argparse
from pathlib import Path

import torch
from common import record

from fewmore.data.benchmarks import BENCHMARKS, Benchmark
from fewmore.data.images import ImageSet
from fewmore.nn.adapter import Adapter
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.research.recipes import official
from fewmore.training.loop import Round, Runtime, enable_cudnn_benchmark
from fewmore.training.pretrain import PretrainConfig, pretrain
from fewmore.training.pseudo_incremental import PseudoConfig, pseudo_incremental


def measure(
    benchmark: Benchmark, device: torch.device, batch: int, epochs: int, episodes: int
) -> dict[str, object]:
    """Milliseconds of a step with and without augmentation, and of an episode; the fastest round of each."""
    recipe = official(benchmark, "cec")
    side = recipe.transform.size
    generator = torch.Generator().manual_seed(0)
    storage = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, generator=generator)
    images = ImageSet.of(storage, torch.arange(batch) % 60, [str(i) for i in range(60)]).to(device)
    reports: list[Round] = []
    runtime = Runtime(device, on_round=reports.append, forbid_waiting=True)
    backbone = build(recipe.backbone).to(device, memory_format=torch.channels_last)
    classifier = Classifier("cosine", random_prototypes(60, backbone.dim, generator)).to(device)
    steps = batch // min(batch, recipe.pretrain.batch)
    fastest = {}
    for name, augment in (("augmented", True), ("plain", False)):
        pretrain(
            backbone,
            classifier,
            images,
            recipe.transform,
            PretrainConfig(epochs=epochs, augment=augment),
            runtime,
            0,
            name,
        )
        fastest[name] = min(r.seconds for r in reports if r.stage == name) / steps * 1e3
    adapter = Adapter(backbone.dim).to(device)
    pseudo_incremental(
        backbone, adapter, images, recipe.transform, PseudoConfig(episodes=episodes), runtime, 0
    )
    episode = min(r.seconds for r in reports if r.stage.startswith("pseudo")) / 50 * 1e3
    return {
        "benchmark": benchmark.name,
        "backbone": recipe.backbone,
        "step ms": fastest["augmented"],
        "without augmentation ms": fastest["plain"],
        "ratio": fastest["augmented"] / fastest["plain"],
        "stage 1, 100 epochs, s": fastest["augmented"] / 1e3 * (30_000 // 128) * 100,
        "episode ms": episode,
        "stage 2, 5,000 episodes, s": episode * 5,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    enable_cudnn_benchmark(device)
    large = device.type == "cuda"
    sizes = (
        {"cifar100": (30_000, 6, 250), "miniimagenet": (6_000, 6, 150)}
        if large
        else {"cifar100": (1_280, 2, 50)}
    )
    rows = [measure(BENCHMARKS[name], device, *size) for name, size in sizes.items()]
    for row in rows:
        print(row)
    record("training", device, rows, {"threads": torch.get_num_threads()}, args.record)


if __name__ == "__main__":
    main()
