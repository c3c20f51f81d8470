"""Learn features whose classes lie close to each other, and classify by class means (CLOSER).

Oh, Baik, Lee: CLOSER: Towards Better Representation Learning for Few-Shot Class-Incremental
Learning, ECCV 2024, https://arxiv.org/abs/2410.05627.

Features that spread the base classes far apart leave little room for what new classes need to be
told apart by. So stage 1 sees each image in three strong views, and two terms join the cross
entropy. A contrast of the views of an image keeps what single images differ in, and the mean cosine
between images of different classes is subtracted, which draws classes together. Features are then
frozen, and a class is the mean of its images' features.

This is the authors' program: both terms are taken on the normalized features that are classified,
over all pairs of views in a batch, and the last epoch is tested. It has neither a warm-up nor
clipped gradients. Their operations of AutoAugment fill with black and interpolate; here they fill
with gray and take the nearest pixel. `contrast` and `closeness` are the paper's λ_ssc and λ_inter.
If the loss stays near log(classes) − closeness, all features point in one direction, which a high
rate from the first step can lead to: `--set pretrain.warm_up=5` avoids it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Benchmark
from fewmore.errors import ConfigError
from fewmore.training.contrast import inter_class_cosine, view_contrast
from fewmore.training.pretrain import Batch, Objective, PretrainConfig

# Settings of the authors' program that differ between benchmarks; others have those of CIFAR100.
PRETRAIN: dict[str, dict[str, Any]] = {
    "miniimagenet": {"closeness": 0.5},
    "cub200": {
        "epochs": 50,
        "milestones": (40, 45),
        "batch": 256,
        "lr": 0.005,
        "head_lr": 0.1,
        "contrast": 0.01,
        "closeness": 1.5,
    },
}
TRANSFORM: dict[str, dict[str, Any]] = {
    "cifar100": {
        "crop": "mixed",
        "scale": (0.25, 1.0),
        "ratio": (1.0, 1.0),
        "policy": "autoaugment-cifar10",
        "policy_probability": 0.5,
    },
    "miniimagenet": {
        "resize": 96,
        "policy": "autoaugment-imagenet",
        "policy_probability": 0.5,
    },
    # Of larger files, the smallest crop has as many pixels as its view.
    "cub200": {"scale": (0.25, 1.0), "ratio": (1.0, 1.0), "stored": 448},
}


class CloserObjective(Objective):
    """Add the contrast of views, and subtract the cosine between classes."""

    config: "Features"

    def auxiliary(self, batch: Batch) -> Tensor:
        config = self.config
        loss = -config.closeness * inter_class_cosine(batch.features, batch.labels)
        if config.views == 1:
            return loss
        # A rotated image counts as another image: blocks of views come first, then rotations.
        blocks = (config.labels_per_class, config.views, -1, batch.features.shape[1])
        features = batch.features.view(blocks).transpose(0, 1).flatten(0, 2)
        return loss + config.contrast * view_contrast(features, config.views, config.contrast_scale)


@dataclass(frozen=True)
class Features(PretrainConfig):
    """Hold the settings of stage 1 with contrasted views and classes that are drawn together."""

    objective_type = CloserObjective
    per_recipe: ClassVar = {"quick": {"views": 2}}
    epochs: int = 200
    milestones: tuple[int, ...] = (160, 180)
    scale: float = 32.0  # factor of the cosines in stage 1; of a cosine head alone
    views: int = 3  # random views of each image of a batch
    contrast: float = 0.1  # weight of the contrast between views of an image and all others
    contrast_scale: float = 32.0  # factor of its cosines: one over its temperature
    closeness: float = 1.0  # weight of the mean cosine between classes, which training raises

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.contrast_scale <= 0:
            raise ConfigError(
                f"pretrain: contrast_scale must be a positive number, not {self.contrast_scale}"
            )

    @classmethod
    def for_benchmark(cls, benchmark: Benchmark) -> "Features":
        return cls(**PRETRAIN.get(benchmark.name, {}))

    @classmethod
    def transform_for(cls, benchmark: Benchmark) -> Transform:
        return replace(benchmark.transform, **TRANSFORM.get(benchmark.name, {}))

    @property
    def unread(self) -> Mapping[str, str]:
        """Return the settings that the others leave without effect, each with the reason."""
        alone = {"contrast": "views=1", "contrast_scale": "views=1"} if self.views == 1 else {}
        return {**super().unread, **alone}
