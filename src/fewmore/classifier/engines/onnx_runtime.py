"""Run a backbone by ONNX Runtime, on a CPU."""

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor


def import_silent() -> Any:
    """Return onnxruntime, which reports nothing to its makers, and keeps no number of the device.

    Since 1.31 it does both from its import on.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


class OnnxRuntimeEngine:
    """Run an ONNX graph, each call on one core.

    On several cores, several calls at once are faster than one call on all of them: nothing waits.
    """

    is_concurrent = True

    def __init__(self, graph: bytes) -> None:
        onnxruntime = import_silent()
        self.name = f"onnxruntime {onnxruntime.__version__}"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        self.session = onnxruntime.InferenceSession(
            graph, options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features of images (n, 3, s, s) uint8: (n, d) float32."""
        (features,) = self.session.run(None, {"images": np.ascontiguousarray(images.numpy())})
        return torch.from_numpy(features)
