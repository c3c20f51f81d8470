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
clipped gradients. `contrast` and `closeness` are the paper's λ_ssc and λ_inter.
If the loss stays near log(classes) − closeness, all features point in one direction, which a high
rate from the first step can lead to: `--set pretrain.warm_up=5` avoids it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from fewmore.training.closeness import STRONG_VIEWS, ClosenessConfig

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
        "last_batch": "fill",
    },
}
TRANSFORM: dict[str, dict[str, Any]] = {
    "cifar100": {**STRONG_VIEWS, "policy_resampling": "bilinear"},
    "miniimagenet": {
        "resize": 96,
        "policy": "autoaugment-imagenet",
        "policy_probability": 0.5,
        "policy_resampling": "bilinear",
    },
    # Stored so large that the smallest crop, a quarter of the area, has the pixels of its view.
    "cub200": {"scale": (0.25, 1.0), "ratio": (1.0, 1.0), "stored": 448},
}


@dataclass(frozen=True)
class Features(ClosenessConfig):
    """Hold the settings of stage 1 with three views."""

    per_recipe: ClassVar = {"quick": {"views": 2}}
    per_benchmark: ClassVar = PRETRAIN
    transforms: ClassVar = TRANSFORM
    epochs: int = 200
    milestones: tuple[int, ...] = (160, 180)
    views: int = 3  # random views of each image of a batch
