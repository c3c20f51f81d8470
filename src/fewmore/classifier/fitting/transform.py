"""Choose the image size and normalization for a backbone."""

from dataclasses import replace

from fewmore.classifier.model_file.format import MAX_IMAGE_SIZE
from fewmore.data.augment import Transform
from fewmore.data.benchmarks import IMAGENET_MEAN, IMAGENET_STD
from fewmore.errors import ConfigError
from fewmore.nn.backbones import BACKBONES, Backbone, plain_name

SMALLEST = 16  # side of an image
RESIZED = {84: 92, 224: 256}  # the short side of an image, by the side of its crop


def transform_for(backbone: str, pretrained: bool) -> Transform:
    """Return the transform at the size that a backbone was made for."""
    info = BACKBONES.get(plain_name(backbone))
    side = 224 if info is None or (pretrained and info.side == 84) else info.side
    if side == 32:
        return Transform(side, IMAGENET_MEAN, IMAGENET_STD, "pad")
    return Transform(side, IMAGENET_MEAN, IMAGENET_STD, "resized", resize=RESIZED[side])


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
