"""Learn features by classification of the base session: stage 1.

A feature recipe is a `PretrainConfig`: its settings, what of them differs between benchmarks, and
the class of its objective, which computes the loss of a batch. CEC's is the plain one here; others
derive both classes in a file of their own (methods/closer.py is an example).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewmore.data.augment import Transform, test_view
from fewmore.data.benchmarks import Benchmark
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.nn.backbones import Backbone
from fewmore.nn.layers import set_ghost_batch_size
from fewmore.nn.prototypes import Classifier
from fewmore.nn.similarity import TEMPERATURE
from fewmore.training.loop import Loss, require_single, shuffled_batches, train
from fewmore.training.mixing import MIXERS
from fewmore.training.optimizer import EpochsConfig, ParameterGroup
from fewmore.training.runtime import Runtime
from fewmore.training.views import ROTATIONS, rotation_copies, several_views


@dataclass(frozen=True)
class Batch:
    """Hold what an objective's auxiliary loss may use of a step.

    Copies of an image follow each other as blocks: first all images in their first view and
    unrotated, then in the next view; after all views, the same rotated.
    """

    view: Tensor  # (n, 3, s, s), mixed where images are mixed
    labels: Tensor  # (n,), of the rotations too
    features: Tensor  # (n, d), float32
    indices: Tensor  # the positions of the batch's images; n is a multiple of their number
    generator: Generator


class Objective:
    """Compute the loss of stage 1: cross entropy, and whatever a subclass adds or replaces.

    A step on a GPU is captured: docs/training.md says what a loss must not do. What it changes
    beside the network is in buffers of `modules`, changed in place.
    """

    def __init__(
        self,
        config: "PretrainConfig",
        backbone: Backbone,
        classifier: Classifier,
        base: ImageSet,
        transform: Transform,
        seed: int,
    ) -> None:
        self.config: Any = config  # a subclass annotates it with its own
        self.backbone = backbone
        self.classifier = classifier
        self.base = base
        self.transform = transform
        self.seed = seed
        # Trained beside backbone and classifier, and kept in checkpoints as they are.
        self.modules: dict[str, nn.Module] = {}

    def groups(self) -> list[ParameterGroup]:
        """Return the parameters of `modules`; unless overridden, they train at the head's rate."""
        own = [p for module in self.modules.values() for p in module.parameters()]
        trained = [parameter for parameter in own if parameter.requires_grad]
        return [ParameterGroup(trained, self.config.head_lr)] if trained else []

    def losses(self) -> Mapping[int, Loss]:
        """Return the loss, by the epoch from which it counts: where it changes on the way."""
        return {0: self.loss}

    def loss(self, indices: Tensor, generator: Generator) -> Tensor:
        """Return the loss of a batch, given by the positions of its images."""
        config, smoothing = self.config, self.config.label_smoothing
        view, labels = self.views(indices, generator)
        if config.mix == "none":
            features = self.embed(view)
            logits = self.logits(features, generator)
            loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        else:
            mixed = MIXERS[config.mix](view, labels, config.mix_alpha, generator)
            view = mixed.view
            features = self.embed(view)
            loss = mixed.cross_entropy(self.logits(features, generator), smoothing)
        more = self.auxiliary(Batch(view, labels, features, indices, generator))
        if more is None:
            return loss
        total = loss + more
        require_single(total, f"the loss with {type(self).__name__}.auxiliary")
        return total

    def views(self, indices: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return the views that a batch is seen in, and their labels."""
        config = self.config
        if config.augment:
            view, labels = several_views(
                self.base, indices, self.transform, generator, config.views
            )
        else:
            view, labels = test_view(self.base, indices, self.transform), self.base.labels[indices]
        return rotation_copies(view, labels, config.rotations)

    def embed(self, view: Tensor) -> Tensor:
        """Return the features of views, in float32."""
        features: Tensor = self.backbone(view).float()
        return features

    def logits(self, features: Tensor, generator: Generator) -> Tensor:
        """Return the logits of features over all labels."""
        logits: Tensor = self.classifier(features)
        scale = self.config.scale
        return logits if scale == TEMPERATURE else logits * (scale / TEMPERATURE)

    def auxiliary(self, batch: Batch) -> Tensor | None:
        """Return what is added to the cross entropy, or None."""
        return None

    def kept(self) -> dict[str, Tensor]:
        """Return tensors that a method needs after stage 1, by name; `Network.kept` has them."""
        return {}


@dataclass(frozen=True)
class PretrainConfig(EpochsConfig):
    """Hold the settings of stage 1."""

    objective_type: ClassVar[type[Objective]] = Objective  # what computes the loss
    # Where a recipe differs from `official`, by the recipe's name.
    per_recipe: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    # Where a benchmark differs from the defaults, by its name; and from its own transform.
    per_benchmark: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "miniimagenet": {"milestones": (40, 70)},
        # 3,000 images are 23 batches and a half, which the authors' program does not leave out.
        "cub200": {"milestones": (30, 40, 60, 80), "last_batch": "fill"},
    }
    transforms: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

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

    @classmethod
    def for_benchmark(cls, benchmark: Benchmark) -> "PretrainConfig":
        """Return the settings of recipe `official` for a benchmark."""
        return cls(**cls.per_benchmark.get(benchmark.name, {}))

    @classmethod
    def transform_for(cls, benchmark: Benchmark) -> Transform:
        """Return the transform of recipe `official` for a benchmark."""
        return replace(benchmark.transform, **cls.transforms.get(benchmark.name, {}))

    def for_recipe(self, recipe: str, **changes: Any) -> "PretrainConfig":
        """Return the settings of another recipe: `changes`, but for what this class says of it."""
        return replace(self, **{**changes, **self.per_recipe.get(recipe, {})})

    @property
    def labels_per_class(self) -> int:
        """Return how many labels of the head a class has; the first is that of the class itself."""
        return self.rotations

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
) -> dict[str, Tensor]:
    """Train the backbone and the classifier on all images of a set.

    The classifier has a prototype for each label, `labels_per_class` for each class: those of the
    first class come first. Returns what the objective keeps beside them.
    """
    if classifier.similarity != "cosine" and config.scale != TEMPERATURE:
        raise ConfigError(
            f"pretrain: scale is for a cosine head, and this one is {classifier.similarity}: "
            f"--set pretrain.scale={TEMPERATURE:g} for this method; for single other methods set "
            "it by their name, such as --set cec.pretrain.scale=32"
        )
    backbone.train()
    set_ghost_batch_size(backbone, config.ghost)
    objective = config.objective_type(config, backbone, classifier, base, transform, seed)
    for module in objective.modules.values():
        module.to(runtime.device)
    train(
        stage,
        {"backbone": backbone, "classifier": classifier, **objective.modules},
        [
            ParameterGroup(list(backbone.parameters())),
            ParameterGroup(list(classifier.parameters()), config.head_lr),
            *objective.groups(),
        ],
        objective.losses(),
        partial(shuffled_batches, len(base), config.batch, fill=config.last_batch == "fill"),
        config.epochs,
        config,
        runtime,
        seed,
    )
    set_ghost_batch_size(backbone, 0)
    return {name: tensor.detach().clone() for name, tensor in objective.kept().items()}
