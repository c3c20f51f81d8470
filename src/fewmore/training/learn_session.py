"""Learn a new session: stage 3.

Either the new prototypes are the class means of the few images and nothing is trained, or they
start at random and are trained, alone or with the whole network, by cross-entropy or by a method's
own loss.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewmore.data.augment import Transform, train_view
from fewmore.data.images import ImageSet
from fewmore.nn.backbones import Backbone
from fewmore.nn.prototypes import Classifier, class_means, random_prototypes
from fewmore.random import derive_seed
from fewmore.training.embed import embed
from fewmore.training.loop import train_epochs
from fewmore.training.optimizer import EpochsConfig
from fewmore.training.runtime import Runtime


@dataclass(frozen=True)
class SessionConfig(EpochsConfig):
    """Hold the settings of a new session; where nothing is trained, only `data_init` counts."""

    data_init: bool = True  # whether new prototypes start from class means, or at random
    frozen_norm: bool = False  # whether batch-norm statistics are frozen in training


def class_prototypes(backbone: Backbone, session: ImageSet, transform: Transform) -> Tensor:
    """Compute one prototype for each class: the mean of its images' features."""
    return class_means(
        embed(backbone, session, transform), session.labels, len(session.class_names)
    )


def untrained_prototypes(backbone: Backbone, session: ImageSet, seed: int) -> Tensor:
    """Draw one prototype for each class at random."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "rows", session.class_names))
    return random_prototypes(len(session.class_names), backbone.dim, generator).to(session.device)


def new_prototypes(
    backbone: Backbone, session: ImageSet, transform: Transform, config: SessionConfig, seed: int
) -> Tensor:
    """Return the session's prototypes before any training, as configured."""
    if config.data_init:
        return class_prototypes(backbone, session, transform)
    return untrained_prototypes(backbone, session, seed)


def outputs(backbone: Backbone, classifier: Classifier, view: Tensor) -> tuple[Tensor, Tensor]:
    """Compute features and logits of a batch of views; all behind the backbone is in float32."""
    features = backbone(view).float()
    return features, classifier(features)


def train_network(
    backbone: Backbone,
    classifier: Classifier,
    session: ImageSet,
    transform: Transform,
    config: SessionConfig,
    runtime: Runtime,
    seed: int,
    stage: str,
) -> None:
    """Train everything on the session's images; its classes are the classifier's last."""
    first = len(classifier) - len(session.class_names)
    backbone.train(not config.frozen_norm)

    def loss_of(view: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(classifier(backbone(view)), labels + first)

    modules: dict[str, nn.Module] = {"backbone": backbone, "classifier": classifier}
    train_by_loss(loss_of, modules, session, transform, config, runtime, seed, stage)


def train_prototypes(
    backbone: Backbone,
    known: Classifier,
    new: Classifier,
    session: ImageSet,
    transform: Transform,
    config: SessionConfig,
    runtime: Runtime,
    seed: int,
    stage: str,
) -> None:
    """Train the new prototypes among all classes; backbone and known prototypes are frozen."""
    backbone.eval()

    def loss_of(view: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            features = backbone(view)
            old = known(features)
        return F.cross_entropy(torch.cat([old, new(features)], dim=1), labels + len(known))

    train_by_loss(loss_of, {"new": new}, session, transform, config, runtime, seed, stage)


def train_by_loss(
    loss_of: Callable[[Tensor, Tensor], Tensor],
    modules: dict[str, nn.Module],
    images: ImageSet,
    transform: Transform,
    config: EpochsConfig,
    runtime: Runtime,
    seed: int,
    stage: str,
) -> None:
    """Train modules, in the mode they are in, by a loss of a batch's views and labels."""

    def batch_loss(indices: Tensor, generator: Generator) -> Tensor:
        return loss_of(train_view(images, indices, transform, generator), images.labels[indices])

    parameters = [p for module in modules.values() for p in module.parameters()]
    train_epochs(stage, modules, parameters, batch_loss, len(images), config, runtime, seed)
