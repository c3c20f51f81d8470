"""Classify by the nearest class mean, with a network meta-trained for it on episodes (ProtoNet).

Snell, Swersky, Zemel: Prototypical Networks for Few-shot Learning, NeurIPS 2017,
https://arxiv.org/abs/1703.05175. Here the episodes follow stage 1.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from fewmore.data.augment import train_view
from fewmore.data.episodes import EpisodeSampler
from fewmore.methods import decoupled
from fewmore.nn.prototypes import Classifier
from fewmore.nn.similarity import negative_l2
from fewmore.training.learn_session import class_prototypes
from fewmore.training.loop import train
from fewmore.training.optimizer import OptimizerConfig, ParameterGroup


@dataclass(frozen=True)
class Config(decoupled.Config):
    """Hold the sizes of an episode and how many there are."""

    way: int = 20  # classes of an episode, or all base classes where there are fewer
    shot: int = 5  # images of each that make its prototype
    query: int = 5  # images of each that are classified
    rounds: int = 20  # of 10 episodes each
    meta_lr: float = 0.001  # learning rate on the episodes


class ProtoNet(decoupled.Decoupled):
    """ProtoNet: class means of features that were trained to be compared with class means."""

    config_type = Config
    name = "protonet"

    def fit(self, base):
        super().fit(base)  # stage 1
        backbone, transform, config = self.network.backbone, self.recipe.transform, self.config
        sampler, way = EpisodeSampler(base), min(config.way, len(base.class_names))
        sampler.check(way, config.shot + config.query)
        labels = torch.arange(way, device=base.device).repeat_interleave(config.query)

        def sample(generator):
            classes = sampler.sample_classes(10, way, generator)
            return sampler.sample_images(classes, config.shot + config.query, generator)

        def loss_of(row, generator):
            features = backbone(train_view(base, row.flatten(), transform, generator)).float()
            features = features.view(*row.shape, -1)
            means, queries = features[:, : config.shot].mean(1), features[:, config.shot :]
            return F.cross_entropy(negative_l2(queries.flatten(0, 1), means), labels)

        groups, sgd = [ParameterGroup([*backbone.parameters()])], OptimizerConfig(lr=config.meta_lr)
        modules, runtime = {"backbone": backbone.train()}, self.runtime
        train("meta", modules, groups, loss_of, sample, config.rounds, sgd, runtime, self.seed)
        self.network.classifier = Classifier("l2", class_prototypes(backbone, base, transform))
