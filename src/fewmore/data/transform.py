"""Describe how stored images become inputs of a network; augment.py makes these views.

Importable without PyTorch, as the table of benchmarks is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from fewmore.errors import ConfigError

Crop = Literal["pad", "resized", "mixed"]
Policy = Literal["none", "autoaugment-cifar10", "autoaugment-imagenet", "randaugment"]
TestView = Literal[
    "plain",
    "flip",
    "rot90",
    "rot180",
    "rot270",
    "rot90-flip",
    "rot180-flip",
    "rot270-flip",
    "large",
    "flip-large",
    "rot180-large",
    "rot180-flip-large",
    "gbr",
    "rot90-gbr",
    "rot180-gbr",
    "rot270-gbr",
    "brg",
    "rot90-brg",
    "rot180-brg",
    "rot270-brg",
]
ViewFeatures = Literal["mean", "separate"]
Resampling = Literal["nearest", "bilinear"]
CutoutColor = Literal["mean", "black"]
ASPECT_RATIO = (3 / 4, 4 / 3)  # width to height of a random resized crop
MAX_MAGNITUDE = 30  # of RandAugment
LARGE = 1.25  # side of a large test view to that of a plain one, unless set


@dataclass(frozen=True)
class Transform:
    """Describe how a stored image becomes an input of the network, in training and in testing.

    Attributes:
        size: side of the view, in pixels.
        mean: mean of each channel, where white is 1.
        std: standard deviation of each channel, where white is 1.
        crop: "pad" moves the image by up to `pad` pixels and keeps its scale; "resized" samples
            the area and the aspect ratio of a box and resizes it; "mixed" tosses a coin for each
            image between the two.
        pad: largest shift of a pad-crop, in pixels.
        scale: smallest and largest area of a resized crop, as a fraction of the image.
        ratio: smallest and largest ratio of width to height of a resized crop.
        flip: mirror half of the training views horizontally.
        resize: in testing, resize the short side to this length and take the center; None takes
            the image as it is.
        stored: short side that images of files are stored with, for training views to be cropped
            out of; None is `resize`. Smaller files stay as they are.
        policy: random operations after the crop: the 25 sub-policies that AutoAugment found on
            CIFAR10 or on ImageNet, or RandAugment.
        policy_probability: share of the training views that the policy is applied to.
        policy_resampling: "nearest" takes the nearest pixels where an operation moves them, and
            gray beyond the edges; "bilinear" interpolates, and takes black.
        randaugment_ops: operations that RandAugment applies to a view, one after the other.
        randaugment_magnitude: strength of RandAugment's operations, 0 to 30.
        jitter: largest changes of brightness, contrast, saturation and hue; 0.4 is a factor
            between 0.6 and 1.4, and a hue of 0.1 a tenth of the color circle in both directions.
        grayscale: share of the training views that lose their color.
        cutout: side of a square that is cut out of each training view, in pixels; 0 for none.
        cutout_color: color of that square, the mean color or black.
        test_views: views of an image that testing uses all of, such as plain,flip; gbr and brg take
            green for red and so on; large ones have more pixels; rot90-gbr and rot90-flip are
            rotated first.
        large: side of a large test view to that of a plain one. Things look larger in random crops
            than in whole images, so enlarged test images are more like what was trained on.
        view_features: "mean" averages the features of the test views; "separate" compares each
            view with prototypes of that view, and averages the scores.
    """

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    crop: Crop = "pad"
    pad: int = 4
    scale: tuple[float, float] = (0.08, 1.0)
    flip: bool = True
    resize: int | None = None
    stored: int | None = None
    policy: Policy = "none"
    policy_probability: float = 1.0
    policy_resampling: Resampling = "nearest"
    randaugment_ops: int = 2
    randaugment_magnitude: int = 9
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    grayscale: float = 0.0
    cutout: int = 0
    cutout_color: CutoutColor = "mean"
    test_views: tuple[TestView, ...] = ("plain",)
    large: float = LARGE
    view_features: ViewFeatures = "mean"
    ratio: tuple[float, float] = ASPECT_RATIO

    def __post_init__(self) -> None:
        problems = [*self._problems_of_the_crop(), *self._problems_of_the_augmentations()]
        if problems:
            raise ConfigError("transform: " + "; ".join(problems))

    @property
    def plain(self) -> "Transform":
        """Return the same transform with the plain test view alone."""
        return replace(self, test_views=("plain",), large=LARGE, view_features="mean")

    @property
    def enlarged(self) -> "Transform":
        """Return the same transform with the sizes of large test views."""
        resize = None if self.resize is None else round(self.large * self.resize)
        stored = None if self.stored is None else max(self.stored, resize or 0)
        return replace(self, size=round(self.large * self.size), resize=resize, stored=stored)

    @property
    def has_large_views(self) -> bool:
        """Return whether one of the test views is large."""
        return any(is_large(view) for view in self.test_views)

    @property
    def separate_views(self) -> int:
        """Return how many test views have features, prototypes and scores of their own."""
        return len(self.test_views) if self.view_features == "separate" else 1

    @property
    def unread(self) -> Mapping[str, str]:
        """Return the settings that the others leave without effect, each with the reason."""
        names = [] if self.policy == "randaugment" else ["randaugment_ops", "randaugment_magnitude"]
        if self.policy == "none":
            names += ["policy_probability", "policy_resampling"]
        unread = dict.fromkeys(names, f"policy={self.policy}")
        if not self.cutout:
            unread["cutout_color"] = "cutout=0"
        if self.crop == "pad":
            unread |= {"stored": "crop=pad", "ratio": "crop=pad"}
        elif self.resize is None:
            unread["stored"] = "resize=none"
        if len(self.test_views) == 1:
            unread["view_features"] = "a single test view"
        if not self.has_large_views:
            unread["large"] = "no large test view"
        return unread

    def _problems_of_the_crop(self) -> Iterator[str]:
        """Say what is wrong with sizes, crop and normalization."""
        if self.size < 1:
            yield f"size must be at least 1, not {self.size}"
        if self.crop not in get_args(Crop):
            yield f"crop must be {_either(Crop)}, not '{self.crop}'"
        if self.pad < 0:
            yield f"pad must not be negative, and is {self.pad}"
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            yield f"scale must be two shares of the area, 0 < low <= high <= 1, not {self.scale}"
        if not 0 < self.ratio[0] <= self.ratio[1]:
            yield f"ratio must be two ratios of width to height, 0 < low <= high, not {self.ratio}"
        if self.resize is not None and self.resize < self.size:
            yield f"resize ({self.resize}) must not be smaller than size ({self.size})"
        shortest = self.resize or self.size
        if self.stored is not None and self.stored < shortest:
            yield f"stored ({self.stored}) must not be smaller than test images ({shortest})"
        if min(self.std) <= 0:
            yield f"std must be positive, not {self.std}"

    def _problems_of_the_augmentations(self) -> Iterator[str]:
        """Say what is wrong with policy, jitter, cutout and test views."""
        if self.policy not in get_args(Policy):
            yield f"policy must be {_either(Policy)}, not '{self.policy}'"
        for name in ("policy_probability", "grayscale"):
            if not 0 <= getattr(self, name) <= 1:
                yield f"{name} must be from 0 to 1, not {getattr(self, name)}"
        if self.randaugment_ops < 1:
            yield f"randaugment_ops must be at least 1, not {self.randaugment_ops}"
        if not 0 <= self.randaugment_magnitude <= MAX_MAGNITUDE:
            yield (
                f"randaugment_magnitude must be from 0 to {MAX_MAGNITUDE}, "
                f"not {self.randaugment_magnitude}"
            )
        if min(self.jitter) < 0 or self.jitter[3] > 0.5:
            yield (
                "jitter must be brightness, contrast, saturation and hue, none negative and the "
                f"hue at most 0.5, not {self.jitter}"
            )
        if self.policy_resampling not in get_args(Resampling):
            yield f"policy_resampling must be {_either(Resampling)}, not '{self.policy_resampling}'"
        if self.cutout < 0:
            yield f"cutout must not be negative, and is {self.cutout}"
        if self.cutout_color not in get_args(CutoutColor):
            yield f"cutout_color must be {_either(CutoutColor)}, not '{self.cutout_color}'"
        views, known = self.test_views, get_args(TestView)
        if not views or len(set(views)) < len(views) or not set(views) <= set(known):
            yield f"test_views must be different ones of {', '.join(known)}, not {views}"
        if self.large < 1:
            yield f"large must be at least 1, not {self.large}"
        if self.view_features not in get_args(ViewFeatures):
            yield f"view_features must be {_either(ViewFeatures)}, not '{self.view_features}'"


def is_large(view: str) -> bool:
    """Return whether a test view is a large one."""
    return view.split("-")[-1] == "large"


def _either(names: object) -> str:
    """List the values of a Literal: 'a', 'b' or 'c'."""
    *others, last = (f"'{name}'" for name in get_args(names))
    return f"{', '.join(others)} or {last}"
