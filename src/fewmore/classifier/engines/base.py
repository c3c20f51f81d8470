"""Choose what computes the features of images, and build it.

All engines but int8 give PyTorch's features to rounding: one that does not is refused when it is
built. "auto" takes the first of FAST that is installed on a CPU, and PyTorch on any other device.

n: images   s: side of an image, in pixels   d: features
"""

import importlib.util
import logging
import os
from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fewmore.classifier.engines.pytorch import TorchEngine
from fewmore.data.transform import Transform
from fewmore.errors import ConfigError, ExportError, UnknownName, first_line
from fewmore.nn.backbones import Backbone

AUTO = "auto"
TORCH = "torch"
FAST = ("onnxruntime", "openvino")  # the fastest first; also the names of the modules
INT8 = "onnxruntime-int8"
EXTRA = {"onnxruntime": "fast", INT8: "fast", "openvino": "openvino"}  # to install an engine
NAMES = (AUTO, TORCH, *EXTRA)
TOLERANCE = 1e-4  # between an engine's features and PyTorch's; relative to the largest above 1


# Engines of this process, which classifiers with the same backbone share as long as one uses them.
_IN_USE: WeakValueDictionary[tuple[str, str], "Engine"] = WeakValueDictionary()


class Engine(Protocol):
    """Map images (n, 3, s, s) uint8 to features (n, d) float32."""

    name: str  # with the version, because it decides the last digits of features
    is_concurrent: bool  # whether each call computes on one core, and several may be made at once

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features of images, on the device of the backbone."""
        ...


def check_name(name: str, device: torch.device) -> str:
    """Return an engine's name; refuse what cannot be used.

    "auto" stands for $FEWMORE_ENGINE, if that is set, and for PyTorch where nothing else can be.
    """
    if name == AUTO:
        name = os.environ.get("FEWMORE_ENGINE") or AUTO
    if name not in NAMES:
        raise UnknownName("engine", name, NAMES)
    if name in EXTRA and device.type != "cpu":
        raise ConfigError(
            f"the engine {name} computes on the CPU, and the device is {device}: "
            f"use the device cpu, or the engine {TORCH}"
        )
    if name in EXTRA and not _is_installed(name):
        raise ConfigError(
            f"the engine {name} takes packages that are not installed: "
            f"pip install 'fewmore[{EXTRA[name]}]'"
        )
    if name == AUTO and not (device.type == "cpu" and any(map(_is_installed, FAST))):
        return TORCH
    return name


def build(name: str, backbone: Backbone, transform: Transform) -> Engine:
    """Build an engine, whose name was checked, for a frozen backbone.

    Where "auto" finds that an engine cannot run the backbone, PyTorch does.
    """
    torch_engine = TorchEngine(backbone, transform)
    if name == TORCH:
        return torch_engine
    candidates = [fast for fast in FAST if _is_installed(fast)] if name == AUTO else [name]
    for candidate in candidates:
        try:
            return _build_fast(candidate, torch_engine)
        except ExportError as error:
            if name != AUTO:
                raise
            logging.getLogger(__name__).warning("%s; slower engines are used", error)
    return torch_engine


def _build_fast(name: str, torch_engine: TorchEngine) -> Engine:
    """Return an engine that runs a graph: one that is in use, or a new one."""
    from fewmore.classifier.engines.graph import graph_key

    key = name, graph_key(torch_engine)
    engine = _IN_USE.get(key)
    if engine is None:
        engine = _IN_USE[key] = _build_new(name, torch_engine)
    return engine


def _build_new(name: str, torch_engine: TorchEngine) -> Engine:
    """Build an engine that runs a graph, and compare its features with PyTorch's."""
    from fewmore.classifier.engines.graph import onnx_graph
    from fewmore.classifier.engines.int8 import int8_graph

    graph = (int8_graph if name == INT8 else onnx_graph)(torch_engine)
    size = torch_engine.transform.size
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (3, 3, size, size), dtype=torch.uint8, generator=generator)
    try:
        engine = _engine_class(name)(graph)
        theirs = engine(images)
    except Exception as error:  # the errors of these packages have no common base class
        reason = first_line(error)
        raise ExportError(f"{name} cannot run the backbone ({reason})") from error
    if name == INT8:
        engine.name += " int8"
        return engine
    with torch.no_grad():
        ours = torch_engine(images)
    difference = float((theirs - ours).abs().max()) / max(1.0, float(ours.abs().max()))
    if not difference <= TOLERANCE:
        raise ExportError(
            f"features of {engine.name} are {difference:.1e} apart from PyTorch's, and "
            f"{TOLERANCE:.0e} is allowed"
        )
    return engine


def _engine_class(name: str) -> Callable[[bytes], Engine]:
    if name in ("onnxruntime", INT8):
        from fewmore.classifier.engines.onnx_runtime import OnnxRuntimeEngine

        return OnnxRuntimeEngine
    from fewmore.classifier.engines.open_vino import OpenVinoEngine

    return OpenVinoEngine


def _is_installed(name: str) -> bool:
    """Return whether an engine is there, and what writes its graph."""
    modules = (name.removesuffix("-int8"), "onnx")
    return all(importlib.util.find_spec(module) is not None for module in modules)
