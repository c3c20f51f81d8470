"""Stage 1: features, by ordinary classification of the base session."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Generator, Tensor

from cecil.data.augment import Transform, test_view, train_view
from cecil.data.images import ImageSet
from cecil.nn.backbones import Backbone
from cecil.nn.prototypes import Classifier
from cecil.stages.loop import Epochs, Runtime, train_epochs


@dataclass(frozen=True)
class PretrainConfig(Epochs):
    """How long and how fast stage 1 learns."""

    milestones: tuple[int, ...] = (60, 70)
    augment: bool = True


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
    """Train the backbone and the classifier on all pictures of a set."""
    backbone.train()

    def loss_of(indices: Tensor, generator: Generator) -> Tensor:
        view = train_view(base, indices, transform, generator) if config.augment else test_view(base, indices, transform)
        return F.cross_entropy(classifier(backbone(view)), base.labels[indices])

    modules = {"backbone": backbone, "classifier": classifier}
    parameters = [*backbone.parameters(), *classifier.parameters()]
    train_epochs(stage, modules, parameters, loss_of, len(base), config, runtime, seed)
