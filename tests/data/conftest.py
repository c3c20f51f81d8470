"""Images as cameras write them."""

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(params=range(1, 9))
def photographed(
    request: pytest.FixtureRequest,
) -> Callable[[np.ndarray], tuple[Image.Image, Image.Exif]]:
    """photographed(upright) is what a camera writes of it, held in each of the eight ways, and the EXIF block that says which."""

    def photographed(upright: np.ndarray) -> tuple[Image.Image, Image.Exif]:
        stored = {
            1: upright,
            2: upright[:, ::-1],
            3: upright[::-1, ::-1],
            4: upright[::-1],
            5: upright.transpose(1, 0, 2),
            6: np.rot90(upright, 1),
            7: upright[::-1, ::-1].transpose(1, 0, 2),
            8: np.rot90(upright, -1),
        }[request.param]
        exif = Image.Exif()
        exif[0x0112] = request.param
        return Image.fromarray(np.ascontiguousarray(stored)), exif

    return photographed
