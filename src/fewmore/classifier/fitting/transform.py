"""Choose the image size and normalization for a backbone."""

from dataclasses import replace

from fewmore.classifier.model_file.format import MAX_IMAGE_SIZE
from fewmore.data.augment import Transform
from fewmore.data.benchmarks import IMAGENET_MEAN, IMAGENET_STD
from fewmore.errors import ConfigError
from fewmore.nn.backbones import Backbone, plain_name

SMALLEST = 16  # side of an image


def transform_for(backbone: str, pretrained: bool) -> Transform:
    """Return the transform at the size that a backbone was made for."""
    backbone = plain_name(backbone)
    if backbone in ("resnet8", "resnet20"):
        return Transform(32, IMAGENET_MEAN, IMAGENET_STD, "pad")
    if backbone == "resnet18" and not pretrained:
        return Transform(84, IMAGENET_MEAN, IMAGENET_STD, "resized", resize=92)
    return Transform(224, IMAGENET_MEAN, IMAGENET_STD, "resized", resize=256)


def pretrained_transform(name: str, backbone: Backbone, size: int | None = None) -> Transform:
    """Return the transform that a backbone's weights were made for, or the same at another size."""
    transform = _own_transform(name, backbone)
    if size is None:
        return transform
    if size < SMALLEST:
        raise ConfigError(f"an image size of {size} is too small: give {SMALLEST} pixels or more")
    largest = MAX_IMAGE_SIZE * transform.size // (transform.resize or transform.size)
    if size > largest:
        raise ConfigError(f"an image size of {size} is too large: give {largest} pixels or less")
    backbone.check_size(size)
    resize = None if transform.resize is None else round(transform.resize * size / transform.size)
    return replace(transform, size=size, resize=resize)


def _own_transform(name: str, backbone: Backbone) -> Transform:
    """Return the transform that a backbone's pretrained weights were made for."""
    transform = transform_for(name, pretrained=True)
    if not (config := backbone.config):
        return transform
    size = config.get("input_size", (3, transform.size))[-1]
    share = config.get("crop_pct") or transform.size / (transform.resize or transform.size)
    return replace(
        transform,
        size=size,
        resize=round(size / share),
        mean=config.get("mean", transform.mean),
        std=config.get("std", transform.std),
    )
