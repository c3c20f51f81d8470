"""Choose the image size and normalization for a backbone."""

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import IMAGENET_MEAN, IMAGENET_STD


def transform_for(backbone: str, pretrained: bool) -> Transform:
    """Return the transform at the size that a backbone was made for."""
    if backbone in ("resnet8", "resnet20"):
        return Transform(32, IMAGENET_MEAN, IMAGENET_STD, "pad")
    if backbone == "resnet18" and not pretrained:
        return Transform(84, IMAGENET_MEAN, IMAGENET_STD, "resized", resize=92)
    return Transform(224, IMAGENET_MEAN, IMAGENET_STD, "resized", resize=256)
