"""Reserve room for later classes by virtual prototypes, and classify by class means (FACT).

Zhou, Wang, Ye, Ma, Pu, Zhan: Forward Compatible Few-Shot Class-Incremental Learning, CVPR 2022,
https://arxiv.org/abs/2203.06953.

Stage 1 holds a virtual prototype for each class that will come. An image belongs to its class, and
with that class masked, to a virtual prototype, so that classes stay compact. Two images of
different classes, mixed inside the network, stand for a class to come: they belong to the nearest
virtual prototype, and with that one masked, to the nearest base class. Features are then frozen,
and a class is the mean of its images' features.

From the first new session on, a tenth of the score is how much alike an image and a class are in
their likeness to the virtual prototypes.

This is the authors' program, and so it has to know how many classes will come. Its three terms have
weights of 0.001 or 0.01. The first one is taken with virtual prototypes that stay as they were
drawn, and each of them is open to three base classes, which are drawn too; the terms of mixed
images train virtual prototypes of their own, which testing uses. In the likeness of classes to
virtual prototypes, the program scales each feature over all classes instead of each prototype over
all features, and so does this. Where the terms begin late, weight decay has taken the virtual
prototypes to nearly nothing by then. Batch norm sees what one of four GPUs did (`ghost`). The
program computes the first stages of the network three times for the same images; here that is once,
so that mixed images count for more in the statistics of the last stages. Images are mixed behind
the second stage of a ResNet, as there, and at the input of other networks, with the one before in
the shuffled batch. Operations of AutoAugment differ from the program's as TEEN's do. The program
tests the epoch that is best on the test images; here it is the last one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewmore.data.benchmarks import Benchmark
from fewmore.errors import ConfigError
from fewmore.methods.base import MethodConfig
from fewmore.methods.class_means import ClassMeans
from fewmore.nn.similarity import SIMILARITIES, TEMPERATURE
from fewmore.random import derive_seed
from fewmore.training.loop import Loss
from fewmore.training.mixing import partners, sample_beta
from fewmore.training.pretrain import Batch, Objective, PretrainConfig

OPEN_TO = 3  # base classes that a fixed virtual prototype is open to
MASKED = -1e9  # the logit of a masked label
# Settings of the authors' program that differ between benchmarks; others have those of CIFAR100.
PRETRAIN: dict[str, dict[str, Any]] = {
    "miniimagenet": {
        "epochs": 1000,
        "batch": 128,
        "ghost": 32,
        "reserve": 0.01,
        "reserve_from": 150,
    },
    "cub200": {
        "epochs": 400,
        "lr": 0.005,
        "schedule": "milestones",
        "milestones": (50, 100, 150, 200, 250, 300),
        "decay": 0.25,
        "reserve": 0.01,
        "inner_alpha": 2.0,
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
    "cub200": {"policy": "autoaugment-imagenet"},
}


def reserving_loss(logits: Tensor, labels: Tensor, open_to: Tensor) -> Tensor:
    """Compute the cross entropy to a virtual prototype, with the image's class masked.

    It is the one with the largest logit of those that are open to the class. The others count as 0
    there, as in the authors' program.

    Args:
        logits: (n, labels + virtual).
        labels: (n,).
        open_to: (labels, virtual), 1 where a virtual prototype is open to a class.
    """
    base = len(open_to)
    target = (logits[:, base:] * open_to[labels]).argmax(1) + base
    return F.cross_entropy(_masked(logits, labels), target)


def forecasting_loss(logits: Tensor, base: int, different: Tensor) -> Tensor:
    """Compute the cross entropies of mixed images to a virtual prototype and to a base class.

    Args:
        logits: (n, base + virtual).
        base: labels of the base classes.
        different: (n,), whether the mixed images are of different classes; others do not count.
    """
    nearest = logits[:, base:].argmax(1) + base
    known = logits[:, :base].argmax(1)
    losses = F.cross_entropy(logits, nearest, reduction="none")
    losses = losses + F.cross_entropy(_masked(logits, nearest), known, reduction="none")
    weights = different.float()
    return (losses * weights).sum() / weights.sum().clamp(min=1)


def _masked(logits: Tensor, labels: Tensor) -> Tensor:
    """Mask one label of each image."""
    numbers = torch.arange(logits.shape[1], device=logits.device)
    return logits.masked_fill(labels[:, None] == numbers, MASKED)


class VirtualPrototypes(nn.Module):
    """Hold the virtual prototypes, as they train and as they were drawn."""

    fixed: Tensor  # (virtual, d)
    open_to: Tensor  # (labels, virtual)

    def __init__(self, rows: Tensor, labels: int, generator: Generator) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows.clone())
        self.register_buffer("fixed", rows.clone())
        open_to = torch.zeros(labels, len(rows))
        for column in range(len(rows)):
            open_to[torch.randperm(labels, generator=generator)[:OPEN_TO], column] = 1
        self.register_buffer("open_to", open_to)


class FACTObjective(Objective):
    """Add the terms of the virtual prototypes."""

    config: "Features"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "virtual"))
        labels, dim = self.classifier.prototypes.shape
        rows = torch.empty(labels + self.config.virtual, dim)
        nn.init.orthogonal_(rows, generator=generator)
        with torch.no_grad():
            self.classifier.prototypes.copy_(rows[:labels])
        self.virtual = VirtualPrototypes(rows[labels:], labels, generator)
        self.modules = {"virtual": self.virtual}
        self.reserving = True
        self.maps: Tensor | None = None  # of the batch, half-way through the network

    def losses(self) -> Mapping[int, Loss]:
        """Leave the terms out until the epoch from which they count."""
        first = self.config.reserve_from
        plain, whole = partial(self._loss, False), partial(self._loss, True)
        return {0: plain, first: whole} if first else {0: whole}

    def _loss(self, reserving: bool, indices: Tensor, generator: Generator) -> Tensor:
        self.reserving = reserving
        return self.loss(indices, generator)

    def embed(self, view: Tensor) -> Tensor:
        self.maps = self.backbone.early(view)
        return self.backbone.late(self.maps).float()

    def auxiliary(self, batch: Batch) -> Tensor:
        maps, self.maps = self.maps, None
        virtual, labels = self.virtual, batch.labels
        if maps is None or not self.reserving:
            return 0.0 * virtual.rows.sum()  # a gradient, so that weight decay applies
        logits = self._all_logits(batch.features, virtual.fixed, batch.generator)
        loss = reserving_loss(logits, labels, virtual.open_to)
        share = sample_beta(1, self.config.inner_alpha, batch.generator).to(maps.dtype)
        mixed = maps.lerp(partners(maps), 1 - share)
        mixed = mixed.contiguous(memory_format=torch.channels_last)
        features = self.backbone.late(mixed).float()
        logits = self._all_logits(features, virtual.rows, batch.generator)
        different = labels != partners(labels)
        loss = loss + forecasting_loss(logits, len(virtual.open_to), different)
        return self.config.reserve * loss

    def _all_logits(self, features: Tensor, virtual: Tensor, generator: Generator) -> Tensor:
        """Return the logits of the classifier and of virtual prototypes."""
        with torch.autocast(features.device.type, enabled=False):
            scores = SIMILARITIES[self.classifier.similarity](features, virtual)
        scaled = scores * (self.config.scale / TEMPERATURE)
        return torch.cat([self.logits(features, generator), scaled], 1)

    def kept(self) -> dict[str, Tensor]:
        return {"virtual": self.virtual.rows}


@dataclass(frozen=True)
class Features(PretrainConfig):
    """Hold the settings of stage 1 with virtual prototypes: long, with strong augmentation."""

    objective_type = FACTObjective
    per_recipe: ClassVar = {"quick": {"reserve_from": 0}}
    transforms: ClassVar = TRANSFORM
    epochs: int = 600
    batch: int = 256
    schedule: Literal["milestones", "cosine"] = "cosine"
    milestones: tuple[int, ...] = ()
    ghost: int = 64  # batch norm over parts of so many images, as on several GPUs; 0: over all
    virtual: int = 40  # virtual prototypes; in the recipes as many as classes will come
    reserve: float = 0.001  # weight of the terms of the virtual prototypes
    reserve_from: int = 0  # epochs before these terms count
    inner_alpha: float = 0.5  # shares of images mixed inside the network: Beta(alpha, alpha)

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = []
        if self.virtual < 1:
            wrong.append(f"virtual must be at least 1, not {self.virtual}")
        if self.reserve_from < 0:
            wrong.append(f"reserve_from must not be negative, and is {self.reserve_from}")
        if not self.inner_alpha > 0:
            wrong.append(f"inner_alpha must be a positive number, not {self.inner_alpha}")
        if wrong:
            raise ConfigError("pretrain: " + "; ".join(wrong))

    @classmethod
    def for_benchmark(cls, benchmark: Benchmark) -> "Features":
        coming = max(1, benchmark.classes - benchmark.base)
        return cls(virtual=coming, **PRETRAIN.get(benchmark.name, {}))


@dataclass(frozen=True)
class Config(MethodConfig):
    """Hold how virtual prototypes take part in scores."""

    virtual_share: float = 0.1  # of the likeness by virtual prototypes in the score
    nearest: int = 40  # virtual prototypes nearest to an image that count

    def __post_init__(self) -> None:
        if not 0 <= self.virtual_share <= 1:
            raise ConfigError(f"virtual_share must lie in [0, 1], not {self.virtual_share}")
        if self.nearest < 1:
            raise ConfigError(f"nearest must be at least 1, not {self.nearest}")


class FACT(ClassMeans):
    """Classify by class means, and by what images and classes have of virtual prototypes."""

    config_type = Config
    config: Config

    def view_scores(self, features: Tensor, view: int) -> Tensor:
        """Return cosines; from the first new session on, probabilities of two kinds, blended.

        Features that were learnt without virtual prototypes are scored by cosines alone.
        """
        cosines = super().view_scores(features, view)
        virtual = self.network.kept.get("virtual")
        if virtual is None or self.sessions == 1:
            return cosines
        virtual = F.normalize(virtual, dim=1)
        prototypes = self.split_views(self.network.classifier.prototypes.detach())[view]
        of_classes = virtual @ F.normalize(prototypes, dim=0).T  # (virtual, classes)
        of_images = F.normalize(features, dim=1) @ virtual.T
        largest, places = of_images.topk(min(self.config.nearest, len(virtual)), 1)
        nearest = torch.zeros_like(of_images).scatter(1, places, largest)
        share = self.config.virtual_share
        return share * (nearest @ of_classes).softmax(1) + (1 - share) * cosines.softmax(1)
