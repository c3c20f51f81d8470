"""Anchor features with a neural gas while the network learns on (TOPIC).

Tao, Hong, Chang, Dong, Wei, Gong: Few-Shot Class-Incremental Learning, CVPR 2020,
https://arxiv.org/abs/2004.10956.

A neural gas covers the features of the base classes with nodes, by competitive Hebbian learning.
Each node has a centroid, variances and the image nearest to it, and an edge joins the two nodes
that are nearest to an image. A new session trains the network on its images, while the anchor loss
keeps each node's image at its node, the more strictly the smaller the node's variances are. The gas
grows by one node for each new class, and the min-max loss pulls the class's images to that node and
pushes them away from neighbouring nodes of other classes.

The authors' program was never published. Here the gas is trained in its batch form (Cottrell,
Hammer, Hasenfuß, Villmann: Batch and Median Neural Gas, Neural Networks 2006). Beyond one standard
deviation, the anchor loss grows linearly instead of quadratically, or one stray node would dominate
training. Predictions are those of the fine-tuned classifier. The paper's cross-entropy is over the
new images alone; with `rehearse`, it includes the nodes' images, which are kept anyway.

N: nodes   n: images   C: new classes   d: features
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fewmore.data.augment import test_view, train_view
from fewmore.data.images import ImageSet, concatenate
from fewmore.errors import ConfigError, fitted
from fewmore.methods.base import MethodConfig, Recipe, TrainedNetwork
from fewmore.nn.prototypes import class_means
from fewmore.random import derive_seed
from fewmore.training.checkpoint import State
from fewmore.training.embed import embed
from fewmore.training.learn_session import SessionConfig, new_prototypes, outputs
from fewmore.training.loop import train
from fewmore.training.optimizer import ParameterGroup
from fewmore.training.runtime import Runtime

CHUNK = 4096  # images whose distances to all nodes are in memory at a time
MIN_VARIANCE = 0.1  # of a node, as a share of the features' mean variance
FINAL_RANGE = 0.1  # neighbourhood range of the gas in its last round

# Chosen on the validation split of the base classes (docs/tuning.md).
RATE, FROZEN_NORM, ANCHOR, MIN_MAX, REHEARSE = 0.0003, False, 12.5, 0.005, True
SESSION = SessionConfig(data_init=False, epochs=100, lr=RATE, frozen_norm=FROZEN_NORM)


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the settings of the neural gas, of the losses and of a session.

    Losses here are means; the paper's weights are for sums and do not carry over.
    """

    nodes: int = 400  # of the neural gas; 400 for all data sets of the paper's supplement
    rounds: int = 20  # of training the gas
    anchor: float = ANCHOR  # weight of the anchor loss
    min_max: float = MIN_MAX  # weight of the min-max loss
    rehearse: bool = REHEARSE  # include the nodes' images in the cross-entropy; the paper does not
    session: SessionConfig = SESSION

    head = "linear"
    per_recipe: ClassVar = {
        "quick": {
            "nodes": 100,
            "anchor": 0.5,
            "min_max": 0.005,
            "rehearse": True,
            "session": {"epochs": 16, "batch": 64, "lr": 0.001, "frozen_norm": True},
        }
    }

    def __post_init__(self) -> None:
        if min(self.nodes, self.rounds) < 1 or min(self.anchor, self.min_max) < 0:
            raise ConfigError(
                "nodes and rounds must be at least 1 and anchor and min_max must not be negative, "
                f"not {self}"
            )


@dataclass(frozen=True)
class Gas:
    """Hold the nodes of a neural gas; the class of a node is that of its image."""

    centroids: Tensor  # (N, d)
    variances: Tensor  # (N, d)
    edges: Tensor  # (N, N) bool, symmetric
    images: ImageSet  # one for each node

    def __len__(self) -> int:
        return len(self.centroids)

    def grown(self, session: ImageSet, features: Tensor) -> "Gas":
        """Add a node for each class of a session.

        A new node has the average variances of the old ones, and edges to the nodes that are
        nearest to the images of its class.
        """
        classes = len(session.class_names)
        new = class_means(features, session.labels, classes)
        other_Cn = session.labels != _column(classes, session.labels)
        nearest_C = torch.cdist(new, features).masked_fill(other_Cn, torch.inf).argmin(1)
        centroids = torch.cat([self.centroids, new])
        # The first winner of an image is the node of its class; the second is the nearest other.
        first_n = len(self) + session.labels
        distances = torch.cdist(features, centroids)
        second_n = distances.scatter(1, first_n[:, None], torch.inf).argmin(1)
        edges = F.pad(self.edges, (0, classes, 0, classes))
        edges[first_n, second_n] = True
        edges[second_n, first_n] = True
        variances = torch.cat([self.variances, self.variances.mean(0).expand(classes, -1)])
        images = concatenate([self.images, session.select(nearest_C).compact()])
        return Gas(centroids, variances, edges, images)

    def moved(self, centroids: Tensor) -> "Gas":
        """Replace the centroids of the last nodes."""
        return replace(self, centroids=torch.cat([self.centroids[: -len(centroids)], centroids]))

    def state(self) -> State:
        """Return the nodes as a state."""
        return {
            "centroids": self.centroids.clone(),
            "variances": self.variances.clone(),
            "edges": self.edges.clone(),
            "images": self.images.state(),
        }

    @classmethod
    def from_state(cls, state: State, device: torch.device) -> "Gas":
        """Rebuild the nodes from a state."""
        centroids, variances, edges = (
            state[name].clone().to(device) for name in ("centroids", "variances", "edges")
        )
        # The key was `pictures` before the first release.
        images = ImageSet.from_state(state["images" if "images" in state else "pictures"])
        return cls(centroids, variances, edges, images.to(device))


class TOPIC(TrainedNetwork):
    """Train the network on while a neural gas anchors the features of old classes."""

    config_type = Config
    config: Config
    keeps = "one image a node"

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self._gas: Gas | None = None

    def fit(self, base: ImageSet) -> None:
        """Train the network (stage 1), and the neural gas on its features."""
        self.network.fit(base, self.config.head, self.seed)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "gas"))
        features = self._node_features(base)
        self._gas = neural_gas(base, features, self.config.nodes, self.config.rounds, generator)
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        """Grow the gas, and train the network on the session while old nodes are anchored."""
        network = self.network
        config = self.config.session
        old_nodes = len(self.gas)
        gas = self.gas.grown(session, self._node_features(session))
        transform = self.recipe.transform
        prototypes = new_prototypes(network.backbone, session, transform, config, self.seed)
        network.classifier = network.classifier.grown(prototypes)
        everything = torch.arange(len(session), device=session.device)

        def sample_step(generator: Generator) -> Tensor:
            """Take the whole session, as it is small, and a batch of old nodes."""
            nodes = torch.randperm(old_nodes, device=session.device, generator=generator)
            return torch.cat([everything, nodes[: config.batch]])[None]

        network.backbone.train(not config.frozen_norm)
        modules = {"backbone": network.backbone, "classifier": network.classifier}
        parameters = [p for module in modules.values() for p in module.parameters()]
        train(
            f"session {self.sessions}",
            modules,
            [ParameterGroup(parameters)],
            self._loss(session, gas),
            sample_step,
            config.epochs,
            config,
            self.runtime,
            self.seed,
        )
        features = self._node_features(session)
        means = class_means(features, session.labels, len(session.class_names))
        self._gas = gas.moved(means)
        self.sessions += 1

    def _node_features(self, images: ImageSet) -> Tensor:
        """Compute features in the plain view, in which nodes are anchored."""
        return embed(self.network.backbone, images, self.recipe.transform.plain)

    def _loss(self, session: ImageSet, gas: Gas) -> Callable[[Tensor, Generator], Tensor]:
        """Return the loss of a step, whose input is all images of the session and some nodes."""
        backbone = self.network.backbone
        classifier = self.network.classifier
        transform = self.recipe.transform
        config = self.config
        size = len(session)
        classes = len(session.class_names)
        known = len(classifier) - classes
        everything = torch.arange(size, device=session.device)
        column = _column(classes, session.labels)
        targets_Cd = gas.centroids[-classes:]
        rivals_CN = gas.edges[-classes:] & (gas.images.labels != known + column)
        share_Cn = (session.labels == column) / session.class_counts()[:, None]

        def loss_of(row: Tensor, generator: Generator) -> Tensor:
            nodes = row[size:]
            view = train_view(session, everything, transform, generator)
            anchors = test_view(gas.images, nodes, transform)
            features, logits = outputs(backbone, classifier, torch.cat([view, anchors]))
            new = features[:size]
            with torch.autocast(view.device.type, enabled=False):
                drift = (features[size:] - gas.centroids[nodes]) / gas.variances[nodes].sqrt()
                anchor = F.huber_loss(drift, torch.zeros_like(drift))
                pull = _distance(new, targets_Cd[session.labels]).mean()
                distance_CN = _distance((share_Cn @ new)[:, None], gas.centroids)
                push = (distance_CN * rivals_CN).sum() / rivals_CN.sum().clamp(min=1)
                regularizer = config.anchor * anchor + config.min_max * (pull - push)
                labels = torch.cat([session.labels + known, gas.images.labels[nodes]])
                count = len(labels) if config.rehearse else size
                return F.cross_entropy(logits[:count], labels[:count]) + regularizer

        return loss_of

    @property
    def gas(self) -> Gas:
        """Return the neural gas."""
        return fitted(self._gas)

    def images_kept(self) -> int:
        return 0 if self._gas is None else len(self._gas)

    def state(self) -> State:
        return {**super().state(), "gas": self.gas.state()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._gas = Gas.from_state(state["gas"], self.runtime.device)


def neural_gas(
    images: ImageSet, features: Tensor, nodes: int, rounds: int, generator: Generator
) -> Gas:
    """Train nodes that follow the density of the features, and join neighbours by edges.

    Every image attracts every node with the weight exp(−rank / range), where the nearest node has
    rank 0, and a node moves to the weighted mean. The range shrinks round by round, from half the
    number of nodes to almost nothing.
    """
    nodes = min(nodes, len(features))
    start = torch.randperm(len(features), generator=generator)[:nodes]
    centroids = features[start.to(features.device)]
    first_range = max(nodes / 2, FINAL_RANGE)
    for round_ in range(rounds):
        range_ = first_range * (FINAL_RANGE / first_range) ** (round_ / max(1, rounds - 1))
        sums = torch.zeros_like(centroids)
        weights = torch.zeros_like(centroids[:, 0])
        for chunk in torch.split(features, CHUNK):
            rank = torch.cdist(chunk, centroids).argsort(1).argsort(1)
            attraction = torch.exp(-rank / range_)
            sums = sums + attraction.T @ chunk
            weights = weights + attraction.sum(0)
        # A node that no image is near to stays where it is.
        attracted = weights[:, None] > math.exp(-1 / FINAL_RANGE)
        centroids = torch.where(attracted, sums / weights[:, None].clamp(min=1e-30), centroids)
    return _describe(images, features, centroids)


def _describe(images: ImageSet, features: Tensor, centroids: Tensor) -> Gas:
    """Compute the variances, edges and images of trained nodes."""
    nodes = len(centroids)
    edges = torch.zeros(nodes, nodes, dtype=torch.bool, device=features.device)
    distance = torch.full_like(centroids[:, 0], torch.inf)
    image = torch.zeros(nodes, dtype=torch.int64, device=features.device)
    first = []
    for number, chunk in enumerate(torch.split(features, CHUNK)):
        distances = torch.cdist(chunk, centroids)
        winners = distances.topk(min(2, nodes), 1, largest=False).indices
        edges[winners[:, 0], winners[:, -1]] = True
        edges[winners[:, -1], winners[:, 0]] = True
        first.append(winners[:, 0])
        nearest = distances.min(0)
        image = torch.where(nearest.values < distance, nearest.indices + number * CHUNK, image)
        distance = torch.minimum(nearest.values, distance)
    winner = torch.cat(first)
    squares = (features - centroids[winner]).square()
    counts = torch.bincount(winner, minlength=nodes)[:, None]
    # A node that is nearest to no image has no variance of its own.
    variances = class_means(squares, winner, nodes).nan_to_num()
    # The mean over all images counts as one image more, as a node may be nearest to only a few.
    variances = (counts * variances + squares.mean(0)) / (counts + 1)
    least = MIN_VARIANCE * features.var(0, correction=0).mean()
    variances = torch.maximum(variances, least).clamp(min=1e-6)
    return Gas(centroids, variances, edges.fill_diagonal_(False), images.select(image).compact())


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Compute Euclidean distances, with a finite gradient where both are equal."""
    return ((one - other).square().sum(-1) + 1e-12).sqrt()


def _column(classes: int, like: Tensor) -> Tensor:
    return torch.arange(classes, device=like.device)[:, None]
