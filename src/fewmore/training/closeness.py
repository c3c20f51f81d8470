"""Draw classes together while views of an image are contrasted: the terms of CLOSER's stage 1.

Oh, Baik, Lee: CLOSER: Towards Better Representation Learning for Few-Shot Class-Incremental
Learning, ECCV 2024, https://arxiv.org/abs/2410.05627, where the weights are λ_ssc and λ_inter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fewmore.errors import ConfigError
from fewmore.training.contrast import inter_class_cosine, view_contrast
from fewmore.training.pretrain import Batch, Objective, PretrainConfig

# Changes of the transform of small images: crops of two kinds, and a policy for half of them.
STRONG_VIEWS: dict[str, Any] = {
    "crop": "mixed",
    "scale": (0.25, 1.0),
    "ratio": (1.0, 1.0),
    "policy": "autoaugment-cifar10",
    "policy_probability": 0.5,
}


class ClosenessObjective(Objective):
    """Add the contrast of views, and subtract the cosine between classes."""

    config: "ClosenessConfig"

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
class ClosenessConfig(PretrainConfig):
    """Hold the settings of stage 1 with contrasted views and classes that are drawn together."""

    objective_type = ClosenessObjective
    scale: float = 32.0  # factor of the cosines in stage 1; of a cosine head alone
    contrast: float = 0.1  # weight of the contrast between views of an image and all others
    contrast_scale: float = 32.0  # factor of its cosines: one over its temperature
    closeness: float = 1.0  # weight of the mean cosine between classes, which training raises

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.contrast_scale <= 0:
            raise ConfigError(
                f"pretrain: contrast_scale must be a positive number, not {self.contrast_scale}"
            )

    @property
    def unread(self) -> Mapping[str, str]:
        """Return the settings that the others leave without effect, each with the reason."""
        alone = {"contrast": "views=1", "contrast_scale": "views=1"} if self.views == 1 else {}
        return {**super().unread, **alone}
