"""Learn features by ordinary classification of the base session: stage 1."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Generator, Tensor

from fewmore.data.augment import Transform, test_view, train_view
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.nn.backbones import Backbone
from fewmore.nn.layers import set_ghost_batch_size
from fewmore.nn.prototypes import Classifier
from fewmore.training.loop import train_epochs
from fewmore.training.optimizer import EpochsConfig
from fewmore.training.runtime import Runtime


@dataclass(frozen=True)
class PretrainConfig(EpochsConfig):
    """Hold the settings of stage 1."""

    milestones: tuple[int, ...] = (60, 70)  # epochs at which the rate falls
    augment: bool = True  # random views of the images; else those of testing
    ghost: int = 0  # batch norm over parts of so many images, as on several GPUs; 0: over all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ghost < 0 or self.ghost == 1:
            raise ConfigError(
                "pretrain: ghost is a number of images, at least 2, or 0 for the whole batch, "
                f"and not {self.ghost}"
            )


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
    """Train the backbone and the classifier on all images of a set."""
    backbone.train()

    def loss_of(indices: Tensor, generator: Generator) -> Tensor:
        view = (
            train_view(base, indices, transform, generator)
            if config.augment
            else test_view(base, indices, transform)
        )
        return F.cross_entropy(classifier(backbone(view)), base.labels[indices])

    modules = {"backbone": backbone, "classifier": classifier}
    parameters = [*backbone.parameters(), *classifier.parameters()]
    set_ghost_batch_size(backbone, config.ghost)
    train_epochs(stage, modules, parameters, loss_of, len(base), config, runtime, seed)
    set_ghost_batch_size(backbone, 0)
