"""Swap fast layers into networks while they train, and capture steps as CUDA graphs."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from fewmore.accel import augmentation, warm_up
from fewmore.accel.batch_norm import FusedBatchNormAct2d
from fewmore.accel.conv import FastConv2d
from fewmore.accel.graphs import capture
from fewmore.accel.max_pool import FastMaxPool2d
from fewmore.accel.sgd import LightSGD
from fewmore.accel.side_streams import SideStreams
from fewmore.data import operations
from fewmore.nn.layers import BatchNormAct2d

# The parts that can be switched on one by one, to measure or to test them.
PARTS = frozenset({"batch-norm", "conv", "max-pool", "augmentation", "side-streams", "graphs"})
FAST_LAYERS: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "batch-norm": (BatchNormAct2d, FusedBatchNormAct2d),
    "conv": (nn.Conv2d, FastConv2d),
    "max-pool": (nn.MaxPool2d, FastMaxPool2d),
}

Step = Callable[[Tensor], None]


class RuntimeLike(Protocol):
    """Name what the engine reads of a run's settings."""

    device: torch.device
    accel: bool | frozenset[str]
    exclusive: bool


class Accelerated:
    """Run the steps of one training with the parts that are switched on."""

    optimizer_class: type = LightSGD

    def __init__(self, device: torch.device, parts: frozenset[str], exclusive: bool) -> None:
        self.parts = parts
        # Runs that share a GPU fill it already, and side streams would only slow them down.
        beside = exclusive and "side-streams" in parts
        self.side_streams = SideStreams(device) if beside else None

    def forward(self) -> AbstractContextManager[None]:
        """Return the context in which layers send weight gradients to the side streams."""
        return nullcontext() if self.side_streams is None else self.side_streams.receive()

    def finish_backward(self) -> None:
        """Wait for the side streams and hand the gradients to their parameters."""
        if self.side_streams is not None:
            self.side_streams.join()

    def capture(
        self, step: Step, example: Tensor, state: Sequence[Tensor], generator: Generator
    ) -> Step:
        """Return a step that replays a CUDA graph."""
        return capture(step, example, state, generator) if "graphs" in self.parts else step


@contextmanager
def accelerate(modules: Mapping[str, nn.Module], runtime: RuntimeLike) -> Iterator[Accelerated]:
    """Swap fast layers in, give the engine that runs the steps, and swap the layers back."""
    failure = warm_up.finish(runtime.device)
    parts = PARTS if runtime.accel is True else frozenset(runtime.accel or ())
    if failure is not None:
        warnings.warn(f"training goes on without fused layers: {failure}", stacklevel=3)
        parts &= {"graphs"}  # which are PyTorch's own
    # Kernels and streams are made on the current GPU, which may be another.
    is_gpu = runtime.device.type == "cuda"
    on_device = torch.cuda.device(runtime.device) if is_gpu else nullcontext()
    is_fused = "augmentation" in parts
    augment = operations.replaced_by(augmentation.apply_operations) if is_fused else nullcontext()
    with on_device, augment, _swapped_layers(modules.values(), parts):
        yield Accelerated(runtime.device, parts, runtime.exclusive)


@contextmanager
def _swapped_layers(networks: Iterable[nn.Module], parts: frozenset[str]) -> Iterator[None]:
    """Let layers compute by their fast classes meanwhile.

    A fast class adds no parameters and no state, so a layer can change its class in place: names,
    parameters, buffers and hooks stay as they are.
    """
    fast = dict(classes for part, classes in FAST_LAYERS.items() if part in parts)
    swapped = []
    for network in networks:
        for layer in network.modules():
            plain = type(layer)
            if plain in fast:
                layer.__class__ = fast[plain]
                swapped.append((layer, plain))
    try:
        yield
    finally:
        for layer, plain in swapped:
            layer.__class__ = plain
