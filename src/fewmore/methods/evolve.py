"""Learn features by views, rotations and close classes, and calibrate new classes (fewmore's own).

The best of what others found, put together: CLOSER's strong views, contrast and closeness (Oh et
al., ECCV 2024), rotations as classes of their own (Kalla, Biswas: S3C, ECCV 2022), and TEEN's
calibration of new prototypes by similar base classes (Wang et al., NeurIPS 2023). Features are
frozen after the base session. A test image is seen upright and rotated by 180°; each view is
compared with prototypes of images that were rotated alike, and the scores are averaged.

The parts were chosen on the validation split of the base classes (docs/log.md).
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Benchmark
from fewmore.training.closeness import STRONG_VIEWS, ClosenessConfig

# Settings that differ between benchmarks; others have those of CIFAR100.
PRETRAIN: dict[str, dict[str, Any]] = {
    "miniimagenet": {"closeness": 0.5},
    # Features of ImageNet are worth keeping: the backbone has a small rate, the head a large one.
    "cub200": {
        "epochs": 50,
        "milestones": (40, 45),
        "lr": 0.005,
        "head_lr": 0.1,
        "contrast": 0.01,
        "closeness": 1.5,
    },
}
TRANSFORM: dict[str, dict[str, Any]] = {
    "cifar100": STRONG_VIEWS,
    "miniimagenet": {"policy": "autoaugment-imagenet", "policy_probability": 0.5},
    "cub200": {"scale": (0.25, 1.0), "ratio": (1.0, 1.0)},
}


@dataclass(frozen=True)
class Features(ClosenessConfig):
    """Hold the settings of stage 1 with two views and two rotations of every image."""

    per_recipe: ClassVar = {"quick": {"warm_up": 2}}
    per_benchmark: ClassVar = PRETRAIN
    epochs: int = 200
    milestones: tuple[int, ...] = (160, 180)
    views: int = 2  # random views of each image of a batch
    rotations: int = 2  # 2 or 4: each image also rotated, every rotation with labels of its own

    @classmethod
    def transform_for(cls, benchmark: Benchmark) -> Transform:
        return replace(
            benchmark.transform,
            test_views=("plain", "rot180"),
            view_features="separate",
            **TRANSFORM.get(benchmark.name, {}),
        )
