"""Learn with rotation labels and a classifier of random prototypes, and go on training it (S3C).

Kalla, Biswas: S3C: Self-Supervised Stochastic Classifiers for Few-Shot Class-Incremental Learning,
ECCV 2022, https://arxiv.org/abs/2307.02246.

Every image is seen in four rotations, each with a label of its own, so that features tell more
apart than the base classes alone would ask for. A prototype is a Gaussian, of which training draws
a sample at each step: it overfits less to a few images. A new session starts from the means of its
rotated images, and trains the prototypes of all classes, on its own images and on the stored mean
features of the old classes. At test time the mean over the four rotations of the scores counts,
each by the prototypes of its own rotation and without noise.

This is the authors' program. Behind the backbone it has the attention layer of CEC, which each
image enters alone: what is left of it is a linear map with dropout, which is added to the features,
and a layer norm. Dropout goes on in new sessions, whose images are seen as in testing. The stored
means are of unrotated images: nothing holds the old classes' prototypes of other rotations. The
program's momentum is damped, v ← 0.9 v + 0.1 g; here that is a tenth of its rate, which differs in
the first step alone. It tests the epoch of stage 1 that is best on the test images; here it is the
last one. Its command for miniImageNet cannot be parsed where it gives the means a weight, and the 1
that is written there is taken. Other classifiers on these features see them before the map. On
other features there is no map, and base classes start from their means.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Benchmark
from fewmore.data.images import ImageSet
from fewmore.data.transform import TestView
from fewmore.errors import ConfigError
from fewmore.methods.base import MethodConfig, ScoresPerView
from fewmore.nn.prototypes import Classifier, class_means
from fewmore.nn.similarity import SIMILARITIES, TEMPERATURE, cosine
from fewmore.random import derive_seed
from fewmore.training.loop import train_epochs
from fewmore.training.optimizer import EpochsConfig
from fewmore.training.pretrain import Objective, PretrainConfig

ROTATED_VIEWS: tuple[TestView, ...] = (
    "plain",
    "rot90",
    "rot180",
    "rot270",
)  # in the order of their labels
SIGMA_SHIFT = 4.0  # a deviation is softplus(sigma − 4), 0.018 at first
INITIAL_STD = 0.01  # of untrained prototypes
VALUE_DROPOUT = 0.1  # share of images whose values within the map are dropped
MAP = "map."  # prefix of the map's tensors among those that stage 1 keeps

# Settings of the authors' program that differ between benchmarks; others have those of CIFAR100.
PRETRAIN: dict[str, dict[str, Any]] = {
    "miniimagenet": {"epochs": 100, "milestones": (40, 70)},
    "cub200": {
        "epochs": 100,
        "milestones": (30, 40, 60, 80),
        "lr": 0.03,
        "last_batch": "fill",
    },
}


class ResidualMap(nn.Module):
    """Hold the map behind the backbone: the attention of an image to itself alone."""

    def __init__(self, dim: int, generator: Generator) -> None:
        super().__init__()
        std = 1 / math.sqrt(dim)
        self.values = nn.Parameter(torch.empty(dim, dim).normal_(0, std, generator=generator))
        self.output = nn.Parameter(torch.empty(dim, dim).normal_(0, std, generator=generator))
        self.bias = nn.Parameter(torch.empty(dim).uniform_(-std, std, generator=generator))
        self.gain = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim))


def map_features(
    tensors: Mapping[str, Tensor],
    features: Tensor,
    dropout: float = 0.0,
    generator: Generator | None = None,
) -> Tensor:
    """Add a map of features (n, d) to them, and apply a layer norm.

    With a generator, a `dropout` share of what is added is dropped, and for some images all but the
    bias of the map.
    """
    with torch.autocast(features.device.type, enabled=False):
        added = features @ tensors["values"].T
        if generator is not None:
            added = added * _kept(added[:, :1], VALUE_DROPOUT, generator)
        added = F.linear(added, tensors["output"], tensors["bias"])
        if generator is not None:
            added = added * _kept(added, dropout, generator)
        return F.layer_norm(features + added, features.shape[1:], tensors["gain"], tensors["shift"])


def _kept(like: Tensor, dropout: float, generator: Generator) -> Tensor:
    """Draw a mask of dropout: 0, or 1 / (1 − dropout)."""
    uniform = torch.rand(like.shape, device=like.device, generator=generator)
    return (uniform >= dropout).to(like.dtype) / (1 - dropout)


def sample_prototypes(mean: Tensor, sigma: Tensor, generator: Generator) -> Tensor:
    """Draw each prototype from its Gaussian; sigma is what its deviation is computed from."""
    noise = torch.randn(mean.shape, device=mean.device, generator=generator)
    return mean + F.softplus(sigma - SIGMA_SHIFT) * noise


class Deviations(nn.Module):
    """Hold what the deviations of the prototypes are computed from."""

    def __init__(self, sigma: Tensor) -> None:
        super().__init__()
        self.sigma = nn.Parameter(sigma)


class S3CObjective(Objective):
    """Classify mapped features by prototypes that are drawn anew at each step."""

    config: "Features"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "stochastic"))
        prototypes = self.classifier.prototypes
        with torch.no_grad():
            prototypes.copy_(INITIAL_STD * torch.randn(prototypes.shape, generator=generator))
        self.deviations = Deviations(torch.zeros(prototypes.shape))
        self.map = ResidualMap(self.backbone.dim, generator)
        self.modules = {"deviations": self.deviations}
        if self.config.residual:
            self.modules["map"] = self.map

    def logits(self, features: Tensor, generator: Generator) -> Tensor:
        if self.config.residual:
            tensors = dict(self.map.named_parameters())
            features = map_features(tensors, features, self.config.dropout, generator)
        with torch.autocast(features.device.type, enabled=False):
            rows = sample_prototypes(self.classifier.prototypes, self.deviations.sigma, generator)
            scores = SIMILARITIES[self.classifier.similarity](features, rows)
            return scores * (self.config.scale / TEMPERATURE)

    def kept(self) -> dict[str, Tensor]:
        kept = {"rows": self.classifier.prototypes, "sigma": self.deviations.sigma}
        tensors = self.map.named_parameters() if self.config.residual else ()
        return {**kept, **{MAP + name: tensor for name, tensor in tensors}}


@dataclass(frozen=True)
class Features(PretrainConfig):
    """Hold the settings of stage 1 with rotation labels and random prototypes."""

    objective_type = S3CObjective
    # An epoch has four times the images; after three, the training loss of glyphs is still high.
    per_recipe: ClassVar = {"quick": {"epochs": 4}}
    per_benchmark: ClassVar = PRETRAIN
    epochs: int = 200
    milestones: tuple[int, ...] = (120, 160)
    rotations: int = 4  # 2 or 4: each image also rotated, every rotation with labels of its own
    residual: bool = True  # a map that is added to the features, and a layer norm
    dropout: float = 0.5  # share of dropped numbers of what is added

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"pretrain: dropout must lie in [0, 1), not {self.dropout}")

    @classmethod
    def transform_for(cls, benchmark: Benchmark) -> Transform:
        return replace(benchmark.transform, test_views=ROTATED_VIEWS, view_features="separate")

    @property
    def unread(self) -> Mapping[str, str]:
        """Return the settings that the others leave without effect, each with the reason."""
        return {**super().unread, **({} if self.residual else {"dropout": "residual=false"})}


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold how the prototypes of all classes are trained in a new session."""

    per_benchmark: ClassVar = {
        "miniimagenet": {"mean_weight": 1.0},
        "cub200": {"session": {"lr": 0.0003}},
    }
    # Rates are a tenth of the program's, whose steps are damped.
    session: EpochsConfig = field(
        default_factory=lambda: EpochsConfig(epochs=100, lr=0.001, nesterov=False, weight_decay=0.0)
    )
    mean_weight: float = 5.0  # of the cross entropy of the old classes' stored means


class Head(nn.Module):
    """Hold the prototypes of all classes and their deviations: of a class, one for each view."""

    def __init__(self, rows: Tensor, sigma: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows)  # (classes, views · d)
        self.sigma = nn.Parameter(sigma)


class S3C(ScoresPerView):
    """Classify by prototypes that every session trains on, on a frozen backbone.

    `network.kept` holds the map, the deviations of the classifier's prototypes, and the mean
    feature of every class.
    """

    config_type = Config
    config: Config

    def fit(self, base: ImageSet) -> None:
        """Train stage 1, and keep its prototypes of the rotations that are test views."""
        network = self.network
        network.fit(base, self.config.head, self.seed)
        means = class_means(self.embed(base), base.labels, len(base.class_names))
        rows, sigma = self._rows_of_views("rows"), self._rows_of_views("sigma")
        network.classifier = Classifier("cosine", means if rows is None else rows)
        network.kept = {
            **{name: tensor for name, tensor in network.kept.items() if name.startswith(MAP)},
            "sigma": torch.zeros_like(means) if sigma is None else sigma,
            "means": self.split_views(means)[0].clone(),
        }
        self.sessions = 1

    def _rows_of_views(self, name: str) -> Tensor | None:
        """Return what stage 1 keeps of each label for the labels of the test views, side by side.

        There is none of views that are not rotations with a label, or whose features are averaged.
        """
        kept, transform = self.network.kept.get(name), self.recipe.transform
        views, count = transform.test_views, self.recipe.pretrain.labels_per_class
        rotations = ROTATED_VIEWS[:: len(ROTATED_VIEWS) // count]
        known = set(views) <= set(rotations) and transform.separate_views == len(views)
        if kept is None or not known:
            return None
        by_label = kept.view(-1, count, kept.shape[1])
        return torch.cat([by_label[:, rotations.index(view)] for view in views], 1)

    def learn(self, session: ImageSet) -> None:
        """Append the means of the new classes, and train the prototypes of all classes."""
        network = self.network
        features = network.embed(session)
        new = class_means(self._mapped(features), session.labels, len(session.class_names))
        head = Head(
            torch.cat([network.classifier.prototypes.detach(), new]),
            torch.cat([network.kept["sigma"], torch.zeros_like(new)]),
        )
        self._train(head, features, session.labels)
        network.classifier = Classifier("cosine", head.rows.detach())
        network.kept = {
            **network.kept,
            "sigma": head.sigma.detach(),
            "means": torch.cat([network.kept["means"], self.split_views(new)[0]]),
        }
        self.sessions += 1

    def _train(self, head: Head, features: Tensor, labels: Tensor) -> None:
        means, dim = self.network.kept["means"], self.network.backbone.dim
        views, known = features.shape[1] // dim, len(means)
        numbers = torch.arange(views, device=features.device)
        row_labels = (labels[:, None] + known) * views + numbers  # (n, views)
        mean_labels = torch.arange(known, device=features.device) * views

        def loss_of(indices: Tensor, generator: Generator) -> Tensor:
            shots = self._mapped(features[indices], generator).view(-1, dim)
            with torch.autocast(shots.device.type, enabled=False):
                rows = sample_prototypes(head.rows, head.sigma, generator).view(-1, dim)
                of_shots = F.cross_entropy(cosine(shots, rows), row_labels[indices].flatten())
                of_means = F.cross_entropy(cosine(means, rows), mean_labels)
                return of_shots + self.config.mean_weight * of_means

        stage, parameters = f"session {self.sessions}", list(head.parameters())
        config = self.config.session
        train_epochs(
            stage, {"head": head}, parameters, loss_of, len(labels), config, self.runtime, self.seed
        )

    def embed(self, images: ImageSet) -> Tensor:
        """Compute mapped features, those of separate test views side by side."""
        return self._mapped(self.network.embed(images))

    def _mapped(self, features: Tensor, generator: Generator | None = None) -> Tensor:
        """Map the features of each view, if stage 1 has learnt a map."""
        kept = self.network.kept
        tensors = {name.removeprefix(MAP): t for name, t in kept.items() if name.startswith(MAP)}
        if not tensors:
            return features
        dropout = getattr(self.recipe.pretrain, "dropout", 0.0)
        parts = features.view(-1, self.network.backbone.dim)
        return map_features(tensors, parts, dropout, generator).view(features.shape)

    def view_scores(self, features: Tensor, view: int) -> Tensor:
        return self.network.scores_of(features, view)
