"""Warm a GPU up while images are loaded, and find out whether the kernels work on it.

A new process makes the GPU's context, loads libraries and compiles kernels before it can take a
step: seconds in which images can be read. So every kind of layer takes a step in a thread of its
own meanwhile, and training waits for them: while a step is captured, no other thread may work on
the GPU.
"""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor, nn

from fewmore.accel.augmentation import apply_operations
from fewmore.accel.batch_norm import LARGE, LARGE_MAP, FusedBatchNormAct2d
from fewmore.accel.conv import COLORS, FEW, few_channels, few_channels_weight_grad
from fewmore.accel.max_pool import FastMaxPool2d
from fewmore.accel.triton_import import triton
from fewmore.data.paths import cache_folder
from fewmore.io import locked

IMAGES = 16
SIDE = 32  # kernels are compiled for sizes that are multiples of 16
WIDE = 64  # channels of cuDNN's convolutions
CAPABILITY = (8, 0)  # the oldest GPUs with bfloat16: Ampere

Task = Callable[[], None]


class WarmUp:
    """Run the tasks of a warm-up in the background, and keep what went wrong."""

    def __init__(self, tasks: list[Task]) -> None:
        self.failure: str | None = None
        # No daemon: Python would end beneath a compiler that is at work, which aborts the process.
        self._thread = threading.Thread(target=self._run, args=(tasks,))
        self._thread.start()

    def finish(self) -> str | None:
        """Wait for the tasks; return why fused layers cannot be used, or None."""
        self._thread.join()
        return self.failure

    def _run(self, tasks: list[Task]) -> None:
        context, *kernels = tasks
        try:
            context()  # of which there must be one
            with _compiling(), ThreadPoolExecutor(len(tasks)) as pool:
                for group in (kernels[:1], kernels[1:]):  # the first one makes Triton's driver
                    for future in [pool.submit(task) for task in group]:
                        future.result()
        except Exception as error:  # Triton raises errors of many kinds
            first_line = str(error).strip().partition("\n")[0]
            self.failure = f"{type(error).__name__}: {first_line}"


def _compiling() -> AbstractContextManager[None]:
    """Return a context in which no other process puts kernels into Triton's cache.

    A process that finds none there compiles them all, and replaces what others have just loaded.
    Five that began together once got the launcher of one kernel for another: "function takes
    exactly 33 arguments (27 given)".
    """
    return locked(cache_folder() / "kernels.lock")


_lock = threading.Lock()
_started: dict[torch.device, WarmUp] = {}


def start_warm_up(device: torch.device) -> None:
    """Begin to warm a GPU up, once; on a CPU there is nothing to do."""
    if device.type != "cuda" or why_unsupported(device) is not None:
        return
    with _lock:
        if device not in _started:
            _started[device] = WarmUp(tasks(device))


def finish(device: torch.device) -> str | None:
    """Wait until a GPU is warm; return why fused layers cannot be used on it, or None."""
    start_warm_up(device)
    warm_up = _started.get(device)
    return why_unsupported(device) if warm_up is None else warm_up.finish()


def why_unsupported(device: torch.device) -> str | None:
    """Say why the kernels are not even tried on a GPU."""
    if triton is None:
        return "Triton is not installed"
    if torch.version.hip is not None:
        return "the kernels are written for NVIDIA GPUs"
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < CAPABILITY:
        return f"{torch.cuda.get_device_name(device)} has no bfloat16"
    return None


def tasks(device: torch.device) -> list[Task]:
    """List a step of each kind: in training, with fixed statistics, and in full precision.

    The first needs PyTorch alone.
    """
    few = FEW[0]
    # Constructors draw from the global generator, which is put back as it was.
    with torch.random.fork_rng(devices=[]):
        wide = [_wide_convolutions() for _ in range(2)]
    listed: list[Task] = [
        partial(_forward, wide[0], WIDE, device),
        partial(_forward, FusedBatchNormAct2d(few).eval(), few, device),
        partial(_step, wide[1], WIDE, device),
        partial(_step, FusedBatchNormAct2d(few), few, device),
        partial(_step, FusedBatchNormAct2d(few).eval(), few, device),
        partial(_step, FastMaxPool2d(3, 2, 1), WIDE, device),
    ]
    for channels in (tile.channels for tile in LARGE):
        for layer in (FusedBatchNormAct2d(channels), FusedBatchNormAct2d(channels).eval()):
            listed.append(partial(_step, layer, channels, device, _large_side(channels)))
    for channels in FEW:
        for part in ("output", "input", "weight"):
            listed.append(partial(_convolution, channels, channels, part, device))
    for part in ("output", "weight"):
        listed.append(partial(_convolution, COLORS, few, part, device))
    listed.append(partial(_augmentation, device))
    return [partial(_on_device, device, task) for task in listed]


def _on_device(device: torch.device, task: Task) -> None:
    """Run a task with its GPU as the current one, on which kernels are launched."""
    with torch.cuda.device(device):
        task()


def _large_side(channels: int) -> int:
    """Return the side of maps that are large for batch norm's kernels."""
    return SIDE * math.ceil(math.sqrt(LARGE_MAP / (IMAGES * channels)) / SIDE)


def _wide_convolutions() -> nn.Module:
    shapes = ((3, 1, 1), (3, 2, 1), (1, 2))
    return nn.Sequential(*(nn.Conv2d(WIDE, WIDE, *shape) for shape in shapes))


def _forward(layer: nn.Module, channels: int, device: torch.device) -> None:
    with torch.no_grad():
        layer.to(device)(_maps(channels, device))


def _step(layer: nn.Module, channels: int, device: torch.device, side: int = SIDE) -> None:
    """Run a forward and a backward pass in bfloat16."""
    maps = _maps(channels, device, side).bfloat16().requires_grad_()
    with torch.autocast(device.type, torch.bfloat16):
        out = layer.to(device)(maps)
    if hasattr(out.grad_fn, "apply"):
        # A backward pass of ours runs in this thread, as autograd has only one thread for a GPU.
        out.grad_fn.apply(torch.ones_like(out))
    else:
        out.sum().backward()


def _convolution(inputs: int, outputs: int, part: str, device: torch.device) -> None:
    """Run one kernel of a convolution of few channels."""
    x = _maps(inputs, device).bfloat16()
    out = _maps(outputs, device).bfloat16()
    if part == "weight":
        few_channels_weight_grad(out, x)
    else:
        weight = torch.zeros(outputs, inputs, 3, 3, dtype=torch.bfloat16, device=device)
        few_channels(x if part == "output" else out, weight, backward=part == "input")


def _augmentation(device: torch.device) -> None:
    """Run the kernels of the operations of AutoAugment, those that they share in one thread."""
    pixels = torch.zeros(IMAGES, 3, SIDE, SIDE, dtype=torch.uint8, device=device)
    kinds = torch.zeros(IMAGES, dtype=torch.int64, device=device)
    for bilinear in (False, True):
        apply_operations(pixels, kinds, torch.zeros(IMAGES, device=device), bilinear)


def _maps(channels: int, device: torch.device, side: int = SIDE) -> Tensor:
    maps = torch.zeros(IMAGES, channels, side, side, device=device)
    return maps.to(memory_format=torch.channels_last)
