"""TOPIC: the topology-preserving knowledge incrementer.

Tao, Hong, Chang, Dong, Wei, Gong: Few-Shot Class-Incremental Learning, CVPR 2020, https://arxiv.org/abs/2004.10956.

A neural gas lays nodes over the feature space of the base classes by competitive Hebbian learning, each with a centroid, variances and
the image nearest to it, and an edge where two nodes are the nearest two to an image. A new session trains the network on its
images; the anchor loss meanwhile keeps the nodes' images at their nodes, stiffly where a node is narrow. The gas grows
a node for each new class, and the min-max loss draws a class's images to it and away from neighbours of other classes.

The authors' program was never published. Here the gas is trained in its batch form (Cottrell, Hammer, Hasenfuß, Villmann: Batch
and Median Neural Gas, Neural Networks 2006), all images at once; beyond one deviation the anchor loss grows linearly rather than
as the square, or a node that has gone astray would tear everything after it; and the answer is the fine-tuned classifier's. The
paper's cross-entropy is over the new images alone; with `rehearse` the nodes' images, kept anyway, are in it too.

N: nodes   n: images   C: new classes   d: features
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fewmore.data.augment import test_view, train_view
from fewmore.data.benchmarks import Benchmark
from fewmore.data.images import ImageSet, concatenate
from fewmore.errors import ConfigError, NotFittedError
from fewmore.methods.base import Method, MethodConfig, Recipe
from fewmore.methods.network import Network
from fewmore.nn.prototypes import class_means
from fewmore.random import derive_seed
from fewmore.training.checkpoint import State
from fewmore.training.learn_session import SessionConfig, new_prototypes, outputs
from fewmore.training.loop import train
from fewmore.training.optimizer import ParameterGroup
from fewmore.training.runtime import Runtime

PART = 4096  # images whose distances to all nodes are held at once
NARROWEST = 0.1  # the least variance of a node, as a share of the features' mean variance
SHARPEST = 0.1  # the gas's last neighbourhood range

# The paper's rate is for other weights; this one was chosen on base classes alone
# (results/bench-tuning-gpu.json).
SESSION = SessionConfig(data_init=False, epochs=100, lr=0.001)


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold the neural gas, the weights of the losses, and how a session is learnt.

    Losses here are means, so the paper's weights, which are for sums, do not carry over.
    """

    nodes: int = 400  # the paper's supplement, for all its datasets
    rounds: int = 20  # of the batch form of the neural gas
    anchor: float = 0.5
    min_max: float = 0.005
    rehearse: bool = (
        True  # include the nodes' images in the cross-entropy; the paper does not say so
    )
    session: SessionConfig = SESSION

    def __post_init__(self) -> None:
        if min(self.nodes, self.rounds) < 1 or min(self.anchor, self.min_max) < 0:
            raise ConfigError(
                "nodes and rounds must be at least 1 and anchor and min_max must not be negative, "
                f"not {self}"
            )

    @property
    def head(self) -> str:
        return "linear"

    @classmethod
    def for_recipe(cls, recipe: str, benchmark: Benchmark) -> "Config":
        if recipe == "quick":
            return cls(nodes=100, session=replace(SESSION, epochs=16, batch=64, frozen_norm=True))
        return cls()


@dataclass(frozen=True)
class Gas:
    """The nodes; the class of a node is its image's."""

    centroids: Tensor  # (N, d)
    variances: Tensor  # (N, d)
    edges: Tensor  # (N, N) bool, symmetric
    images: ImageSet  # one a node

    def __len__(self) -> int:
        return len(self.centroids)

    def grown(self, session: ImageSet, features: Tensor) -> "Gas":
        """With a node for each class of a session, of an average node's variances, and edges to the nodes its images are near to."""
        classes = len(session.class_names)
        centroids = class_means(features, session.labels, classes)
        nearest_C = (
            torch.cdist(centroids, features)
            .masked_fill(session.labels != _column(classes, session.labels), torch.inf)
            .argmin(1)
        )
        together = torch.cat([self.centroids, centroids])
        own_n = len(self) + session.labels
        # The images' own nodes win; the second nearest are found among all others.
        second_n = torch.cdist(features, together).scatter(1, own_n[:, None], torch.inf).argmin(1)
        edges = F.pad(self.edges, (0, classes, 0, classes))
        edges[own_n, second_n] = edges[second_n, own_n] = True
        variances = torch.cat([self.variances, self.variances.mean(0).expand(classes, -1)])
        return Gas(
            together,
            variances,
            edges,
            concatenate([self.images, session.select(nearest_C).compact()]),
        )

    def moved(self, centroids: Tensor) -> "Gas":
        """With the last nodes' centroids replaced."""
        return Gas(
            torch.cat([self.centroids[: -len(centroids)], centroids]),
            self.variances,
            self.edges,
            self.images,
        )

    def state(self) -> State:
        tensors = {
            name: getattr(self, name).clone() for name in ("centroids", "variances", "edges")
        }
        return {**tensors, "images": self.images.state()}

    @classmethod
    def from_state(cls, state: State, device: torch.device) -> "Gas":
        centroids, variances, edges = (
            state[name].clone().to(device) for name in ("centroids", "variances", "edges")
        )
        return cls(centroids, variances, edges, ImageSet.from_state(state["images"]).to(device))


class TOPIC(Method):
    """The network is trained on while a neural gas holds the features of old classes in their places."""

    config_type = Config
    config: Config
    keeps = "one image a node"

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        super().__init__(recipe, runtime, seed)
        self.network = Network(recipe, runtime)
        self._gas: Gas | None = None

    def fit(self, base: ImageSet) -> None:
        self.network.fit(base, self.config.head, self.seed)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "gas"))
        self._gas = neural_gas(
            base,
            self.network.embed(base),
            self.config.nodes,
            self.config.rounds,
            generator,
        )
        self.sessions = 1

    def learn(self, session: ImageSet) -> None:
        network, recipe, config = self.network, self.recipe, self.config
        known = len(network.classifier)
        backbone, gas = network.backbone, self.gas.grown(session, network.embed(session))
        classifier = network.classifier = network.classifier.grown(
            new_prototypes(backbone, session, recipe.transform, config.session, self.seed)
        )
        old, classes, everything = (
            len(self.gas),
            len(session.class_names),
            torch.arange(len(session), device=session.device),
        )
        homes_Cd = gas.centroids[old:]
        rivals_CN = gas.edges[old:] & (
            gas.images.labels != known + _column(classes, session.labels)
        )
        share_Cn = (session.labels == _column(classes, session.labels)) / session.class_counts()[
            :, None
        ]

        def loss_of(row: Tensor, generator: Generator) -> Tensor:
            nodes = row[len(session) :]
            view = train_view(session, everything, recipe.transform, generator)
            anchors = test_view(gas.images, nodes, recipe.transform)
            features, scores = outputs(backbone, classifier, torch.cat([view, anchors]))
            new = features[: len(session)]
            with torch.autocast(view.device.type, enabled=False):
                drift = (features[len(session) :] - gas.centroids[nodes]) / gas.variances[
                    nodes
                ].sqrt()
                pull = _distance(new, homes_Cd[session.labels]).mean()
                away_CN = _distance((share_Cn @ new)[:, None], gas.centroids)
                push = (away_CN * rivals_CN).sum() / rivals_CN.sum().clamp(min=1)
                adapted = config.anchor * F.huber_loss(
                    drift, torch.zeros_like(drift)
                ) + config.min_max * (pull - push)
                labels = torch.cat([session.labels + known, gas.images.labels[nodes]])
                asked = len(labels) if config.rehearse else len(session)
                return F.cross_entropy(scores[:asked], labels[:asked]) + adapted

        def draw(generator: Generator) -> Tensor:
            """One step: all of the session, as it is so small, and a batch of old nodes."""
            nodes = torch.randperm(old, device=session.device, generator=generator)[
                : config.session.batch
            ]
            return torch.cat([everything, nodes])[None]

        backbone.train(not config.session.frozen_norm)
        modules = {"backbone": backbone, "classifier": classifier}
        groups = [ParameterGroup([*backbone.parameters(), *classifier.parameters()])]
        train(
            f"session {self.sessions}",
            modules,
            groups,
            loss_of,
            draw,
            config.session.epochs,
            config.session,
            self.runtime,
            self.seed,
        )
        self._gas = gas.moved(class_means(network.embed(session), session.labels, classes))
        self.sessions += 1

    def scores(self, images: ImageSet) -> Tensor:
        return self.network.scores_of(self.network.embed(images))

    @property
    def gas(self) -> Gas:
        if self._gas is None:
            raise NotFittedError("nothing is learnt yet: call fit with the base session first")
        return self._gas

    def images_kept(self) -> int:
        return 0 if self._gas is None else len(self._gas)

    def state(self) -> State:
        return {"sessions": self.sessions, "network": self.network.state(), "gas": self.gas.state()}

    def restore(self, state: State) -> None:
        self.sessions = state["sessions"]
        self.network.restore(state["network"])
        self._gas = Gas.from_state(state["gas"], self.runtime.device)


def neural_gas(
    images: ImageSet, features: Tensor, nodes: int, rounds: int, generator: Generator
) -> Gas:
    """Nodes that follow the density of the features, and the edges between them.

    Every image draws every node, the nearest most, by exp(−rank / range); a node goes to the mean of what draws it. The range
    shrinks from half of the nodes to next to nothing, round by round.
    """
    nodes = min(nodes, len(features))
    centroids = features[
        torch.randperm(len(features), generator=generator)[:nodes].to(features.device)
    ]
    for round_ in range(rounds):
        widest = max(nodes / 2, SHARPEST)
        reach = widest * (SHARPEST / widest) ** (round_ / max(1, rounds - 1))
        sums, weights = torch.zeros_like(centroids), torch.zeros_like(centroids[:, 0])
        for part in torch.split(features, PART):
            rank = torch.cdist(part, centroids).argsort(1).argsort(1)
            draws = torch.exp(-rank / reach)
            sums, weights = sums + draws.T @ part, weights + draws.sum(0)
        drawn = weights[:, None] > math.exp(
            -1 / SHARPEST
        )  # a node that nothing is near to stays where it is
        centroids = torch.where(drawn, sums / weights[:, None].clamp(min=1e-30), centroids)
    return _described(images, features, centroids)


def _described(images: ImageSet, features: Tensor, centroids: Tensor) -> Gas:
    """The nodes' variances, edges and images."""
    nodes = len(centroids)
    edges = torch.zeros(nodes, nodes, dtype=torch.bool, device=features.device)
    distance, image = (
        torch.full_like(centroids[:, 0], torch.inf),
        torch.zeros(nodes, dtype=torch.int64, device=features.device),
    )
    first = []
    for number, part in enumerate(torch.split(features, PART)):
        distances = torch.cdist(part, centroids)
        winners = distances.topk(min(2, nodes), 1, largest=False).indices
        edges[winners[:, 0], winners[:, -1]] = edges[winners[:, -1], winners[:, 0]] = True
        first.append(winners[:, 0])
        nearest = distances.min(0)
        image = torch.where(nearest.values < distance, nearest.indices + number * PART, image)
        distance = torch.minimum(nearest.values, distance)
    won = torch.cat(first)
    squares = (features - centroids[won]).square()
    counts = torch.bincount(won, minlength=nodes)[:, None]
    own = class_means(
        squares, won, nodes
    ).nan_to_num()  # a node that has won no image has no variance of its own
    narrowest = NARROWEST * features.var(0, correction=0).mean()
    # The average node's counts as one image more: a node may have won only a few.
    variances = torch.maximum((counts * own + squares.mean(0)) / (counts + 1), narrowest).clamp(
        min=1e-6
    )
    return Gas(centroids, variances, edges.fill_diagonal_(False), images.select(image).compact())


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Euclidean, with a gradient where both meet."""
    return ((one - other).square().sum(-1) + 1e-12).sqrt()


def _column(classes: int, like: Tensor) -> Tensor:
    return torch.arange(classes, device=like.device)[:, None]
