"""The first step on a GPU, rehearsed while images are loaded.

A process that has just begun makes the GPU's context, loads its libraries and compiles kernels before a step can be taken: seconds in
which the images can be read. So all kinds of layers take a step of every kind meanwhile, each in a thread of its own, and training
waits for them: while a step is captured, no other thread may work on the GPU.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import torch
from torch import nn

from fewmore.accel.batch_norm import BatchNorm
from fewmore.accel.compiler import triton
from fewmore.accel.conv import COLOURS, FEW, few_channels, few_channels_to_weight

IMAGES, SIDE = 16, 32  # kernels are compiled for sizes that are multiples of 16
MANY = 64  # channels: the library's convolutions
_thread: threading.Thread | None = None


def begin(device: torch.device) -> None:
    """Rehearse on a GPU, in a thread; nothing is to be done on a CPU."""
    global _thread
    if device.type == "cuda" and _thread is None:
        _thread = threading.Thread(target=_rehearse, args=(scenes(device),), daemon=True)
        _thread.start()


def wait() -> None:
    """Until what was begun is over."""
    if _thread is not None:
        _thread.join()


def scenes(device: torch.device) -> list[Callable[[], None]]:
    """Layers in training, with statistics that stand still, and for features in full precision."""
    channels = FEW[0]
    with torch.random.fork_rng(
        devices=[]
    ):  # constructors draw from the global generator: it is put back as it was
        wide, trained = (
            nn.Sequential(
                *(nn.Conv2d(MANY, MANY, *shape) for shape in ((3, 1, 1), (3, 2, 1), (1, 2)))
            )
            for _ in range(2)
        )
    return [
        partial(_features, BatchNorm(channels).eval(), channels, device),
        partial(_features, wide, MANY, device),
        partial(_step, trained, MANY, device),
        partial(_step, BatchNorm(channels), channels, device),
        partial(_step, BatchNorm(channels).eval(), channels, device),
        *(
            partial(_convolution, few, few, part, device)
            for few in FEW
            for part in ("out", "input", "weight")
        ),
        *(partial(_convolution, COLOURS, channels, part, device) for part in ("out", "weight")),
    ]


def _rehearse(scenes: list[Callable[[], None]]) -> None:
    first, *others = scenes
    with suppress(RuntimeError):  # a GPU that cannot do it will say so again when it matters
        first()  # makes the context and whatever else there must be one of
        with ThreadPoolExecutor(len(others)) as pool:
            for scene in [pool.submit(scene) for scene in others]:
                scene.result()


def _features(layer: nn.Module, channels: int, device: torch.device) -> None:
    with torch.no_grad():
        layer.to(device)(_maps(channels, device))


def _step(layer: nn.Module, channels: int, device: torch.device) -> None:
    """Forwards and backwards in half precision."""
    maps = _maps(channels, device).bfloat16().requires_grad_()
    with torch.autocast(device.type, torch.bfloat16):
        out = layer.to(device)(maps)
    if hasattr(
        out.grad_fn, "apply"
    ):  # a backward pass of our own: in this thread, as the engine of gradients has but one for a GPU
        out.grad_fn.apply(torch.ones_like(out))
    else:
        out.sum().backward()


def _convolution(given: int, made: int, part: str, device: torch.device) -> None:
    """One kernel of a convolution of few channels, where we have one."""
    if triton is None:
        return
    x, out = _maps(given, device).bfloat16(), _maps(made, device).bfloat16()
    if part == "weight":
        few_channels_to_weight(out, x)
    else:
        weight = torch.zeros(made, given, 3, 3, dtype=torch.bfloat16, device=device)
        few_channels(x if part == "out" else out, weight, backward=part == "input")


def _maps(channels: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(IMAGES, channels, SIDE, SIDE, device=device).to(
        memory_format=torch.channels_last
    )
