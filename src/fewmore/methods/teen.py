"""Move the means of new classes towards similar base classes, without any training (TEEN).

Wang, Zhou, Zhang, Zhan, Ye: Few-Shot Class-Incremental Learning via Training-Free Prototype
Calibration, NeurIPS 2023, https://arxiv.org/abs/2312.05229.

The mean of a few images is a poor prototype, and images of new classes are mostly taken for base
classes. But features that know base classes alone still say which of them a new class resembles. So
the normalized mean of a new class is blended with a mean of the base prototypes, weighted by a
softmax of their cosines. Features are learnt by plain cross entropy, long and with strong
augmentation, and frozen.

Settings are those of the authors' program, which tests the epoch that is best on the test images;
here it is the last one. The weight of the base classes is 0.1 on CIFAR100 and 0.5 elsewhere. The
program's operations of AutoAugment always rotate to the left, shear by cubic interpolation and
shift by rounded pixels; here they are those of torchvision.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.methods.base import MethodConfig, Recipe
from fewmore.methods.class_means import ClassMeans
from fewmore.training.checkpoint import State
from fewmore.training.pretrain import PretrainConfig
from fewmore.training.runtime import Runtime

# Settings of the authors' program that differ between benchmarks; others have those of CIFAR100.
PRETRAIN: dict[str, dict[str, Any]] = {
    "miniimagenet": {"epochs": 1000, "batch": 128, "scale": 32.0},
    "cub200": {
        "epochs": 400,
        "batch": 128,
        "lr": 0.004,
        "schedule": "milestones",
        "milestones": (50, 100, 150, 200, 250, 300),
        "decay": 0.25,
        "scale": 32.0,
        "last_batch": "fill",
    },
}
TRANSFORM: dict[str, dict[str, Any]] = {
    "cifar100": {
        "policy": "autoaugment-cifar10",
        "cutout": 16,
        "cutout_color": "black",
    },
    "miniimagenet": {"policy": "autoaugment-imagenet"},
}


@dataclass(frozen=True)
class Features(PretrainConfig):
    """Hold the settings of stage 1: long training along a cosine, with strong augmentation."""

    per_benchmark: ClassVar = PRETRAIN
    transforms: ClassVar = TRANSFORM
    epochs: int = 600
    batch: int = 256
    schedule: Literal["milestones", "cosine"] = "cosine"
    milestones: tuple[int, ...] = ()


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the settings of the calibration."""

    per_benchmark: ClassVar = {"cifar100": {"alpha": 0.1}}
    alpha: float = 0.5  # weight of the base classes in the prototype of a new class
    temperature: float = 16.0  # of the softmax over base classes, as a factor of cosines

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha must lie in [0, 1], not {self.alpha}")


class TEEN(ClassMeans):
    """Classify by class means, of which those of new classes are calibrated by base classes."""

    config_type = Config
    config: Config

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.base_classes = 0

    def fit(self, base: ImageSet) -> None:
        """Train the backbone (stage 1), and take the base classes' means."""
        super().fit(base)
        self.base_classes = len(base.class_names)

    def new_prototypes(self, means: Tensor) -> Tensor:
        """Return the calibrated means, those of each test view by itself."""
        base = self.network.classifier.prototypes.detach()[: self.base_classes]
        views = zip(self.split_views(means), self.split_views(base), strict=True)
        return torch.cat([self._calibrate(of_view, of_base) for of_view, of_base in views], 1)

    def _calibrate(self, means: Tensor, base: Tensor) -> Tensor:
        alpha = self.config.alpha
        means, base = F.normalize(means, dim=1), F.normalize(base, dim=1)
        weights = (self.config.temperature * means @ base.T).softmax(1)
        return (1 - alpha) * means + alpha * F.normalize(weights @ base, dim=1)

    def state(self) -> State:
        return {**super().state(), "base_classes": self.base_classes}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.base_classes = state["base_classes"]
