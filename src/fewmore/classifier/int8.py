"""Compute the convolutions of an exported backbone with whole numbers of 8 bits.

Photos say which numbers occur between the layers. What comes after the last convolution, such as
whitening, stays as it is: it costs little, and amplifies errors.
"""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewmore.classifier.embedding import decode_batches
from fewmore.classifier.inputs import LabeledImages
from fewmore.data.transform import Transform
from fewmore.errors import ExportError

MAX_PHOTOS = 400  # more take longer, and change little
BATCH = 16


def draw_squares(photos: LabeledImages, transform: Transform) -> Tensor:
    """Decode some of the photos, spread over the classes: (n, 3, s, s) uint8."""
    step = max(1, -(-len(photos) // MAX_PHOTOS))
    positions = range(0, len(photos), step)
    images = [photos.images[position] for position in positions]
    titles = [photos.titles[position] for position in positions]
    return torch.cat([one.images for one in decode_batches(images, titles, transform, BATCH)])


def quantize(source: Path, target: Path, squares: Tensor) -> None:
    """Write a backbone's ONNX file anew, with int8 convolutions, from squares (n, 3, s, s)."""
    import onnx
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Squares(q.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches = iter(torch.split(squares, 1))

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"images": batch.numpy()}

    prepared = target.with_suffix(".prepared.onnx")
    with _quiet():
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        nodes = onnx.load(prepared).graph.node
        convolutions = [i for i, node in enumerate(nodes) if node.op_type == "Conv"]
        if len(convolutions) < 2:  # a transformer has one, or none
            raise ExportError("int8 is for networks of convolutions, which this one is not")
        q.quantize_static(
            str(prepared),
            str(target),
            Squares(),
            quant_format=q.QuantFormat.QDQ,
            op_types_to_quantize=["Conv", "Add"],
            nodes_to_exclude=[node.name for node in nodes[convolutions[-1] + 1 :]],
            per_channel=True,
            reduce_range=True,  # 7 bits of weights: some processors' sums have room for no more
            activation_type=q.QuantType.QUInt8,
            weight_type=q.QuantType.QInt8,
            # The extremes of a photo, averaged over photos: one odd photo does not decide.
            extra_options={"CalibMovingAverage": True},
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the quantizer, which reports its steps and recommends what is done already."""
    log = logging.getLogger()
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        log.setLevel(level)
