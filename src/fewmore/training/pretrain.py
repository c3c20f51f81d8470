"""Learn features by ordinary classification of the base session: stage 1."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Generator, Tensor

from fewmore.data.augment import Transform, test_view
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.nn.backbones import Backbone
from fewmore.nn.layers import set_ghost_batch_size
from fewmore.nn.prototypes import Classifier
from fewmore.nn.similarity import TEMPERATURE
from fewmore.training.loop import Loss, shuffled_batches, train
from fewmore.training.mixing import MIXERS
from fewmore.training.optimizer import EpochsConfig, ParameterGroup
from fewmore.training.runtime import Runtime
from fewmore.training.views import ROTATIONS, rotation_copies, several_views


@dataclass(frozen=True)
class PretrainConfig(EpochsConfig):
    """Hold the settings of stage 1."""

    milestones: tuple[int, ...] = (60, 70)  # epochs at which the rate falls
    augment: bool = True  # random views of the images; else those of testing
    ghost: int = 0  # batch norm over parts of so many images, as on several GPUs; 0: over all
    head_lr: float | None = None  # learning rate of the classifier; none: lr
    scale: float = TEMPERATURE  # factor of the cosines in stage 1; of a cosine head alone
    label_smoothing: float = 0.0  # share of the label that goes to all classes alike
    mix: Literal["none", "mixup", "cutmix"] = "none"  # images of a batch are mixed in pairs
    mix_alpha: float = 1.0  # shares of mixed images are sampled from Beta(mix_alpha, mix_alpha)
    views: int = 1  # random views of each image of a batch
    rotations: int = 1  # 2 or 4: each image also rotated, every rotation with labels of its own

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = []
        if self.ghost < 0 or self.ghost == 1:
            wrong.append(
                "ghost is a number of images, at least 2, or 0 for the whole batch, "
                f"and not {self.ghost}"
            )
        if self.head_lr is not None and not (math.isfinite(self.head_lr) and self.head_lr >= 0):
            wrong.append(f"head_lr must be a number of at least 0, or none, not {self.head_lr}")
        if not (math.isfinite(self.scale) and self.scale > 0):
            wrong.append(f"scale must be a positive number, not {self.scale}")
        if not 0 <= self.label_smoothing < 1:
            wrong.append(f"label_smoothing must lie in [0, 1), not {self.label_smoothing}")
        if self.mix not in ("none", *MIXERS):
            wrong.append(f"mix must be none, {' or '.join(MIXERS)}, not '{self.mix}'")
        if not (math.isfinite(self.mix_alpha) and self.mix_alpha > 0):
            wrong.append(f"mix_alpha must be a positive number, not {self.mix_alpha}")
        if self.mix != "none" and self.batch < 2:
            wrong.append(f"{self.mix} takes a batch of at least 2 images, not {self.batch}")
        if self.views < 1:
            wrong.append(f"views must be at least 1, not {self.views}")
        if self.views > 1 and not self.augment:
            wrong.append(f"{self.views} views are the same without augment: set augment=true")
        if self.rotations not in ROTATIONS:
            wrong.append(f"rotations must be 1, 2 or 4, not {self.rotations}")
        if wrong:
            raise ConfigError("pretrain: " + "; ".join(wrong))

    @property
    def unread(self) -> Mapping[str, str]:
        """Return the settings that the others leave without effect, each with the reason."""
        alone = {"mix_alpha": "mix=none"} if self.mix == "none" else {}
        return {**super().unread, **alone}


def pretrain(
    backbone: Backbone,
    classifier: Classifier,
    base: ImageSet,
    transform: Transform,
    config: PretrainConfig,
    runtime: Runtime,
    seed: int,
    stage: str = "pretrain",
) -> None:
    """Train the backbone and the classifier on all images of a set.

    The classifier has a prototype for each class, or with rotations for each rotation of each
    class: those of the first class come first.
    """
    if classifier.similarity != "cosine" and config.scale != TEMPERATURE:
        raise ConfigError(
            f"pretrain: scale is for a cosine head, and this one is {classifier.similarity}: "
            "leave it out, or set it for single methods, such as --set cec.pretrain.scale=32"
        )
    backbone.train()
    set_ghost_batch_size(backbone, config.ghost)
    train(
        stage,
        {"backbone": backbone, "classifier": classifier},
        [
            ParameterGroup(list(backbone.parameters())),
            ParameterGroup(list(classifier.parameters()), config.head_lr),
        ],
        _loss(backbone, classifier, base, transform, config),
        lambda generator: shuffled_batches(len(base), config.batch, generator),
        config.epochs,
        config,
        runtime,
        seed,
    )
    set_ghost_batch_size(backbone, 0)


def _loss(
    backbone: Backbone,
    classifier: Classifier,
    base: ImageSet,
    transform: Transform,
    config: PretrainConfig,
) -> Loss:
    """Return the loss of a step, whose input is the positions of a batch of images."""
    smoothing = config.label_smoothing

    def logits_of(view: Tensor) -> Tensor:
        logits: Tensor = classifier(backbone(view))
        return logits if config.scale == TEMPERATURE else logits * (config.scale / TEMPERATURE)

    def loss_of(indices: Tensor, generator: Generator) -> Tensor:
        if config.augment:
            view, labels = several_views(base, indices, transform, generator, config.views)
        else:
            view, labels = test_view(base, indices, transform), base.labels[indices]
        view, labels = rotation_copies(view, labels, config.rotations)
        if config.mix == "none":
            return F.cross_entropy(logits_of(view), labels, label_smoothing=smoothing)
        mixed = MIXERS[config.mix](view, labels, config.mix_alpha, generator)
        return mixed.cross_entropy(logits_of(mixed.view), smoothing)

    return loss_of
