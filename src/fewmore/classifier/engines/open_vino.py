"""Run a backbone by OpenVINO, on a CPU."""

import os
import sys
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor


def _import_silent() -> Any:
    """Return openvino, imported without the package by which it reports that to its makers."""
    reporter = "openvino_telemetry"
    if reporter in sys.modules:
        import openvino

        return openvino
    sys.modules[reporter] = None  # type: ignore[assignment]
    try:
        import openvino
    finally:
        del sys.modules[reporter]
    return openvino


class OpenVinoEngine:
    """Run an ONNX graph, each call on one core; each thread has a request of its own.

    The first call of a process must be alone, as it is when an engine is built and compared with
    PyTorch: first calls of two threads at once were seen to wait for each other for ever.
    """

    is_concurrent = True

    def __init__(self, graph: bytes) -> None:
        openvino = _import_silent()
        self.name = f"openvino {openvino.__version__}"
        cores = os.cpu_count() or 1
        core = openvino.Core()
        self.model = core.compile_model(
            core.read_model(graph),
            "CPU",
            {
                "NUM_STREAMS": cores,
                "INFERENCE_NUM_THREADS": cores,
                "INFERENCE_PRECISION_HINT": "f32",  # or some processors compute in bfloat16
            },
        )
        self.of_thread = threading.local()

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features of images (n, 3, s, s) uint8: (n, d) float32."""
        if not hasattr(self.of_thread, "request"):
            self.of_thread.request = self.model.create_infer_request()
        outputs = self.of_thread.request.infer([np.ascontiguousarray(images.numpy())])
        return torch.from_numpy(outputs[0].copy())  # the request reuses its memory
