"""Sample operations for the images of a batch by a policy: AutoAugment or RandAugment.

AutoAugment (Cubuk et al., 2019) has 25 sub-policies of two operations, each with a probability
and one of ten magnitudes; an image gets one of the sub-policies. RandAugment (Cubuk et al., 2020)
draws operations of one magnitude, all with the same probability.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from fewmore.data.constants import cache_tensor
from fewmore.data.operations import KINDS, current_apply
from fewmore.data.transform import MAX_MAGNITUDE, Transform

# A sub-policy is a line: operation, tenths of probability, magnitude 0 … 9, and again.
CIFAR10 = """
invert 1 0 contrast 2 6
rotate 7 2 translate-x 3 9
sharpness 8 1 sharpness 9 3
shear-y 5 8 translate-y 7 9
auto-contrast 5 0 equalize 9 0
shear-y 2 7 posterize 3 7
color 4 3 brightness 6 7
sharpness 3 9 brightness 7 9
equalize 6 0 equalize 5 0
contrast 6 7 sharpness 6 5
color 7 7 translate-x 5 8
equalize 3 0 auto-contrast 4 0
translate-y 4 3 sharpness 2 6
brightness 9 6 color 2 8
solarize 5 2 invert 0 0
equalize 2 0 auto-contrast 6 0
equalize 2 0 equalize 6 0
color 9 9 equalize 6 0
auto-contrast 8 0 solarize 2 8
brightness 1 3 color 7 0
solarize 4 5 auto-contrast 9 0
translate-y 9 9 translate-y 7 9
auto-contrast 9 0 solarize 8 3
equalize 8 0 invert 1 0
translate-y 7 9 auto-contrast 9 0
"""
IMAGENET = """
posterize 4 8 rotate 6 9
solarize 6 5 auto-contrast 6 0
equalize 8 0 equalize 6 0
posterize 6 7 posterize 6 6
equalize 4 0 solarize 2 4
equalize 4 0 rotate 8 8
solarize 6 3 equalize 6 0
posterize 8 5 equalize 10 0
rotate 2 3 solarize 6 8
equalize 6 0 posterize 4 6
rotate 8 8 color 4 0
rotate 4 9 equalize 6 0
equalize 0 0 equalize 8 0
invert 6 0 equalize 10 0
color 6 4 contrast 10 8
rotate 8 8 color 10 2
color 8 8 solarize 8 7
sharpness 4 7 invert 6 0
shear-x 6 5 equalize 10 0
color 4 0 equalize 6 0
equalize 4 0 solarize 2 4
solarize 6 5 auto-contrast 6 0
invert 6 0 equalize 10 0
color 6 4 contrast 10 8
equalize 8 0 equalize 6 0
"""
RANDAUGMENT_KINDS = tuple(kind for kind in KINDS if kind != "invert")


class Operation(NamedTuple):
    """Describe an operation of a policy; its strength is `center` ± `spread`."""

    kind: str
    probability: float
    center: float
    spread: float


SubPolicy = tuple[Operation, ...]


def sub_policies(transform: Transform) -> tuple[SubPolicy, ...]:
    """Return the sub-policies of a transform's policy, of which an image gets one."""
    if transform.policy == "randaugment":
        magnitude = transform.randaugment_magnitude / MAX_MAGNITUDE
        return tuple((_operation(kind, 1.0, magnitude),) for kind in RANDAUGMENT_KINDS)
    lines = {"autoaugment-cifar10": CIFAR10, "autoaugment-imagenet": IMAGENET}[transform.policy]
    return tuple(_parse(line) for line in lines.split("\n") if line)


def _parse(line: str) -> SubPolicy:
    """Read a sub-policy of AutoAugment from its line."""
    words = line.split()
    return tuple(
        _operation(kind, int(tenths) / 10, int(bin_) / 9)
        for kind, tenths, bin_ in zip(words[::3], words[1::3], words[2::3], strict=True)
    )


def _operation(kind: str, probability: float, magnitude: float) -> Operation:
    """Return an operation of a magnitude, 0 … 1, with the strength that it means."""
    center, spread = _STRENGTHS[kind](magnitude) if kind in _STRENGTHS else (0.0, 0.0)
    return Operation(kind, probability, center, spread)


_STRENGTHS: dict[str, Callable[[float], tuple[float, float]]] = {
    "shear-x": lambda magnitude: (0.0, 0.3 * magnitude),
    "shear-y": lambda magnitude: (0.0, 0.3 * magnitude),
    "translate-x": lambda magnitude: (0.0, 150 / 331 * magnitude),
    "translate-y": lambda magnitude: (0.0, 150 / 331 * magnitude),
    "rotate": lambda magnitude: (0.0, 30 * magnitude),
    "brightness": lambda magnitude: (1.0, 0.9 * magnitude),
    "color": lambda magnitude: (1.0, 0.9 * magnitude),
    "contrast": lambda magnitude: (1.0, 0.9 * magnitude),
    "sharpness": lambda magnitude: (1.0, 0.9 * magnitude),
    "posterize": lambda magnitude: (8.0 - round(4 * magnitude), 0.0),
    "solarize": lambda magnitude: (255 * (1 - magnitude), 0.0),
}


def apply_policy(pixels: Tensor, transform: Transform, generator: Generator) -> Tensor:
    """Apply the transform's policy to a batch of pixels, (n, 3, s, s) uint8."""
    bilinear = transform.policy_resampling == "bilinear"
    apply = current_apply()
    for kinds, strengths in sample_operations(len(pixels), transform, pixels.device, generator):
        pixels = apply(pixels, kinds, strengths, bilinear)
    return pixels


def sample_operations(
    n: int, transform: Transform, device: torch.device, generator: Generator
) -> list[tuple[Tensor, Tensor]]:
    """Sample the operations of n images, in their order: kinds (n,) and strengths (n,) of each."""
    numbers = _numbers(sub_policies(transform), device)
    rows, slots = numbers.shape[1:]
    applied = torch.rand(n, device=device, generator=generator) < transform.policy_probability
    operations = []
    for _ in range(transform.randaugment_ops if transform.policy == "randaugment" else 1):
        chosen = torch.randint(rows, (n,), device=device, generator=generator)
        draws = torch.rand(2, slots, n, device=device, generator=generator)
        for slot, (coin, side) in enumerate(draws.unbind(1)):
            kind, probability, center, spread = numbers[:, chosen, slot]
            kinds = torch.where(applied & (coin < probability), kind, 0).long()
            operations.append((kinds, torch.where(side < 0.5, center - spread, center + spread)))
    return operations


@cache_tensor
def _numbers(policy: tuple[SubPolicy, ...], device: torch.device) -> Tensor:
    """Return kind, probability, center and spread of all operations: (4, sub-policies, slots)."""
    # Fill on the device: a copy from the host would make the step wait for the device.
    filled = [
        torch.full((), float(value), device=device)
        for sub_policy in policy
        for operation in sub_policy
        for value in (KINDS.index(operation.kind), *operation[1:])
    ]
    return torch.stack(filled).view(len(policy), -1, 4).permute(2, 0, 1).contiguous()
