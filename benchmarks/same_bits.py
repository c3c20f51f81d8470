"""Train a few steps part by part of the fast path; say whether runs repeat, and how far they agree.

    python benchmarks/same_bits.py --device cuda [--steps 24] [--side 224] [--record results]

ResNet18 learns drawn images from random weights, with deterministic convolutions. Each row is
trained twice: two runs that differ show a race. How far the weights have moved is compared with
plain PyTorch: by their distance, and along its direction, where 1 is as far. Last, three seeds are
trained in threads of one process, and compared with each seed alone.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from common import Row, make_parser, print_row, record
from torch import Tensor

from fewmore.accel import PARTS, batch_norm
from fewmore.data.augment import Transform
from fewmore.data.benchmarks import IMAGENET_MEAN, IMAGENET_STD
from fewmore.data.images import ImageSet
from fewmore.nn.backbones import build
from fewmore.nn.prototypes import Classifier, random_prototypes
from fewmore.training.fast_path import share_gpu
from fewmore.training.pretrain import PretrainConfig, pretrain
from fewmore.training.runtime import Runtime

CLASSES = 30
STEPS = 8  # of an epoch
NEVER = 2**62  # numbers of a map, more than any has
THREADS = 3


@dataclass(frozen=True)
class Variant:
    """Name parts of the fast path, and from how many numbers on a map is large."""

    parts: frozenset[str]
    exclusive: bool = False
    large: int = batch_norm.LARGE_MAP


VARIANTS = {
    "plain": Variant(frozenset()),
    "batch norm, small tiles": Variant(frozenset({"batch-norm"}), large=NEVER),
    "batch norm, large tiles": Variant(frozenset({"batch-norm"})),
    "max pooling": Variant(frozenset({"max-pool"})),
    "side streams": Variant(frozenset({"conv", "side-streams"}), exclusive=True),
    "all, beside other runs": Variant(PARTS - {"graphs"}),
    "all, alone": Variant(PARTS - {"graphs"}, exclusive=True),
}


@dataclass(frozen=True)
class Learnt:
    """Hold a hash of all weights and statistics, how far the weights moved, and the last loss."""

    digest: str
    moved: Tensor
    loss: float


def draw_images(side: int, batch: int, device: torch.device) -> ImageSet:
    """Draw an epoch of images whose classes differ in their coarse colors."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(STEPS * batch) % CLASSES
    coarse = 200 * torch.rand(CLASSES, 3, 8, 8, generator=generator)[labels]
    brightness = 55 * torch.rand(len(labels), 3, 1, 1, generator=generator)
    pixels = F.interpolate(coarse, (side, side), mode="bilinear") + brightness
    names = [str(label) for label in range(CLASSES)]
    return ImageSet.from_images(pixels.to(torch.uint8), labels, names).to(device)


def learn(images: ImageSet, variant: Variant, epochs: int, seed: int = 0) -> Learnt:
    """Train ResNet18 for a few steps."""
    side = images.short_side
    scale = {"crop": "resized", "scale": (0.08, 1.0), "resize": side}
    transform = Transform(side * 7 // 8, IMAGENET_MEAN, IMAGENET_STD, **scale)  # type: ignore[arg-type]
    config = PretrainConfig(epochs=epochs, batch=len(images) // STEPS, lr=0.05, milestones=())
    losses: list[float] = []
    runtime = Runtime(
        images.device,
        accel=variant.parts or False,
        exclusive=variant.exclusive,
        on_round=lambda report: losses.append(report.loss),
    )
    with share_gpu(images.device):
        backbone = build("resnet18").to(images.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        prototypes = random_prototypes(CLASSES, backbone.dim, torch.Generator().manual_seed(0))
        classifier = Classifier("cosine", prototypes).to(images.device)
        before = _weights(backbone)
        pretrain(backbone, classifier, images, transform, config, runtime, seed)
        moved = _weights(backbone) - before
        digest = hashlib.sha256()
        for tensor in [*backbone.state_dict().values(), *classifier.state_dict().values()]:
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return Learnt(digest.hexdigest(), moved, losses[-1])


def _weights(network: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten().cpu() for p in network.parameters()])


@contextmanager
def large_from(numbers: int) -> Iterator[None]:
    """Let maps be large from so many numbers on meanwhile."""
    before = batch_norm.LARGE_MAP
    batch_norm.LARGE_MAP = numbers
    try:
        yield
    finally:
        batch_norm.LARGE_MAP = before


def compare(images: ImageSet, epochs: int) -> Iterator[Row]:
    """Train each variant twice, without and with graphs, and compare it with plain PyTorch."""
    plain = learn(images, VARIANTS["plain"], epochs).moved
    for name, variant in VARIANTS.items():
        for graphs in (False, True):
            parts = variant.parts | ({"graphs"} if graphs else set())
            with large_from(variant.large):
                chosen = Variant(parts, variant.exclusive)
                one, other = (learn(images, chosen, epochs) for _ in range(2))
            yield {
                "trained by": name,
                "graphs": "yes" if graphs else "no",
                "repeats": "yes" if one.digest == other.digest else "no",
                "distance": float((one.moved - plain).norm() / plain.norm()),
                "along": float(one.moved @ plain / plain.square().sum()),
                "loss": one.loss,
            }


def threads_repeat(images: ImageSet, epochs: int) -> bool:
    """Say whether seeds that are trained in threads have the bits that each has alone."""
    variant = Variant(PARTS)

    def bits(seed: int) -> str:
        return learn(images, variant, epochs, seed).digest

    alone = [bits(seed) for seed in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(bits, range(THREADS))) == alone


def main() -> None:
    """Compare all variants."""
    parser = make_parser(__doc__)
    parser.add_argument("--device", type=torch.device, default="cuda")
    parser.add_argument("--steps", type=int, default=3 * STEPS)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--side", type=int, default=256, help="of an image, in pixels")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    images = draw_images(args.side, args.batch, args.device)
    epochs = -(-args.steps // STEPS)
    rows = [print_row(row) for row in compare(images, epochs)]
    facts = {
        "steps": epochs * STEPS,
        "batch": args.batch,
        "side": args.side,
        f"{THREADS} seeds in threads are as alone": threads_repeat(images, epochs),
    }
    record("same_bits", args.device, rows, facts, args.record)


if __name__ == "__main__":
    main()
