"""Describe how stored images become inputs of a network; augment.py makes these views.

Importable without PyTorch, as the table of benchmarks is.
"""

from dataclasses import dataclass
from typing import Literal

from fewmore.errors import ConfigError


@dataclass(frozen=True)
class Transform:
    """Describe how a stored image becomes an input of the network, in training and in testing.

    Attributes:
        size: side of the view, in pixels.
        mean: mean of each channel, where white is 1.
        std: standard deviation of each channel, where white is 1.
        crop: "pad" moves the image by up to `pad` pixels and keeps its scale; "resized" samples
            the area and the aspect ratio of a box and resizes it.
        pad: largest shift of a pad-crop, in pixels.
        scale: smallest and largest area of a resized crop, as a fraction of the image.
        flip: mirror half of the training views horizontally.
        resize: in testing, resize the short side to this length and take the center; None takes
            the image as it is.
    """

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    crop: Literal["pad", "resized"] = "pad"
    pad: int = 4
    scale: tuple[float, float] = (0.08, 1.0)
    flip: bool = True
    resize: int | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.size < 1:
            problems.append(f"size must be at least 1, not {self.size}")
        if self.crop not in ("pad", "resized"):
            problems.append(f"crop must be 'pad' or 'resized', not '{self.crop}'")
        if self.pad < 0:
            problems.append(f"pad must not be negative, and is {self.pad}")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            problems.append(
                f"scale must be two shares of the area, 0 < low <= high <= 1, not {self.scale}"
            )
        if self.resize is not None and self.resize < self.size:
            problems.append(f"resize ({self.resize}) must not be smaller than size ({self.size})")
        if min(self.std) <= 0:
            problems.append(f"std must be positive, not {self.std}")
        if problems:
            raise ConfigError("transform: " + "; ".join(problems))
