"""Turn a backbone into an ONNX graph whose convolutions compute with whole numbers of 8 bits.

Which numbers occur between the layers is found out by synthetic images, so that the graph depends
on the backbone alone. They are random, with the frequencies and the colors of photos: amplitudes
fall with the frequency, and brightness varies more than hue.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewmore.classifier.engines.graph import cached_graph, onnx_graph
from fewmore.classifier.engines.pytorch import TorchEngine

IMAGES = 64
# Shares of red, green and blue in each of three random maps, of which the first is brightness.
COLORS = ((0.55, 0.08, 0.03), (0.55, 0.0, -0.05), (0.55, -0.09, 0.05))
FALL = (0.8, 1.4)  # powers of the frequency that amplitudes are divided by
CONTRAST = (50.0, 110.0)  # standard deviation of a map, in pixel values
BRIGHTNESS = (80.0, 170.0)  # mean, in pixel values


def int8_graph(engine: TorchEngine) -> bytes:
    """Return the ONNX graph from images (n, 3, s, s) uint8 to features (n, d), in int8."""
    return cached_graph(engine, "int8", lambda: _quantize(engine))


def _quantize(engine: TorchEngine) -> bytes:
    from fewmore.classifier.int8 import quantize

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "float.onnx"
        target = Path(folder) / "int8.onnx"
        source.write_bytes(onnx_graph(engine))
        quantize(source, target, synthetic_images(engine.transform.size))
        return target.read_bytes()


def synthetic_images(size: int) -> Tensor:
    """Return random images with the frequencies and the colors of photos: (n, 3, s, s) uint8."""
    rng = np.random.default_rng(0)
    axis = np.fft.fftfreq(size)
    frequency = np.hypot(axis[:, None], axis[None])
    frequency[0, 0] = 1 / size
    images = np.empty((IMAGES, 3, size, size), np.uint8)
    for image in images:
        noise = np.fft.fft2(rng.normal(size=(3, size, size)))
        maps = np.real(np.fft.ifft2(noise / frequency ** rng.uniform(*FALL)))
        maps -= maps.mean((1, 2), keepdims=True)
        maps /= maps.std((1, 2), keepdims=True)
        colors = np.tensordot(np.array(COLORS), maps, 1)
        image[:] = (colors * rng.uniform(*CONTRAST) + rng.uniform(*BRIGHTNESS)).clip(0, 255)
    return torch.from_numpy(images)
