"""Draw classes together over a queue of momentum features, with rotations as classes (MoTiC).

He, Huang, Lu, Zhao: MoTiC: Momentum Tightness and Contrast for Few-Shot Class-Incremental Learning,
2025, https://arxiv.org/abs/2509.19664.

The mean of a few images is a poor prototype, and it is less so where classes lie close to each
other. As in CLOSER, stage 1 sees each image in three strong views, contrasts them and draws classes
together, but it compares with tens of thousands of earlier images instead of one batch: with a
queue of features that a slowly following copy of the network computed. Rotated images are classes
of their own (0° and 180°; on miniImageNet all four rotations). Features are then frozen, and a
class is the mean of its images' features; a test image is rotated too, each rotation is compared
with means of images that were rotated alike, and the scores are averaged.

This is the authors' program, which tests the last epoch. Two views are contrasted with the third,
which the copy sees; the classified features themselves are compared, without a projection. The two
views pass through the network once more for it, beside the pass of all three that is classified
(`own_passes`). Different rotations of a class are drawn together as different classes are, from the
second epoch on. The network that is tested is the trained one, not its copy. Empty places of the
queue count as other classes; in the program they are of class 0. The program contrasts before it
classifies, which batch norm's running statistics see in that order.
`contrast` and `closeness` are the program's ssc_lamb and inter_lamb.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fewmore.data.augment import Transform
from fewmore.data.benchmarks import Benchmark
from fewmore.errors import ConfigError
from fewmore.random import derive_seed
from fewmore.training.closeness import STRONG_VIEWS
from fewmore.training.contrast import info_nce, inter_class_cosine_with
from fewmore.training.loop import steps_of_epoch
from fewmore.training.momentum import MomentumEncoder, Queue, momentum_problems
from fewmore.training.pretrain import Batch, Objective, PretrainConfig

# Settings of the authors' program that differ between benchmarks; others have those of CIFAR100.
PRETRAIN: dict[str, dict[str, Any]] = {
    "miniimagenet": {"rotations": 4, "queue": 8192, "temperature": 0.03, "closeness": 1.5},
    "cub200": {
        "epochs": 70,
        "warm_up": 3,
        "batch": 64,
        "lr": 0.005,
        "head_lr": 0.1,
        "queue": 8192,
        "temperature": 0.07,
        "contrast": 0.01,
    },
}
TWO_VIEWS: dict[str, Any] = {"test_views": ("plain", "rot180"), "view_features": "separate"}
TRANSFORM: dict[str, dict[str, Any]] = {
    "cifar100": {**TWO_VIEWS, **STRONG_VIEWS, "policy_resampling": "bilinear"},
    "miniimagenet": {
        "test_views": ("plain", "rot90", "rot180", "rot270"),
        "view_features": "separate",
        "resize": 96,
        "policy": "autoaugment-imagenet",
        "policy_probability": 0.5,
        "policy_resampling": "bilinear",
    },
    # Stored so large that the smallest crop, a quarter of the area, has the pixels of its view.
    "cub200": {**TWO_VIEWS, "scale": (0.25, 1.0), "ratio": (1.0, 1.0), "stored": 448},
}


class StepCount(nn.Module):
    """Count the steps of training, in a buffer that captured steps change and checkpoints hold."""

    steps: Tensor  # ()

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


class MoticObjective(Objective):
    """Add the contrast with momentum features, and subtract the cosine to other classes' ones."""

    config: "Features"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        config = self.config
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "queue"))
        self.encoder = MomentumEncoder(self.backbone, config.encoder_momentum)
        self.queue = Queue(config.queue, self.backbone.dim, generator)
        self.count = StepCount()
        self.modules = {"encoder": self.encoder, "queue": self.queue, "count": self.count}
        self.steps_per_epoch = steps_of_epoch(len(self.base), config)

    def auxiliary(self, batch: Batch) -> Tensor:
        config = self.config
        views = range(config.views)
        seen = [self._of_view(batch.view, view) for view in views]
        labels = self._of_view(batch.labels, 0)
        if config.own_passes:
            queries = [self.backbone(view).float() for view in seen[:-1]]
        else:
            queries = [self._of_view(batch.features, view) for view in views[:-1]]
        self.encoder.update()
        keys = self.encoder(seen[-1]).float()
        earlier, _ = self.queue.read()
        self.queue.add(keys, labels)
        others, other_labels = self.queue.read()
        scale = 1 / config.temperature
        contrast = [info_nce(query, keys, earlier, scale) for query in queries]
        cosine = [inter_class_cosine_with(q, labels, others, other_labels) for q in queries]
        begun = self.count.steps >= config.closeness_from * self.steps_per_epoch
        self.count.steps.add_(1)
        losses = config.contrast * torch.stack(contrast)
        return (losses - config.closeness * begun * torch.stack(cosine)).mean()

    def _of_view(self, rows: Tensor, view: int) -> Tensor:
        """Return what belongs to one of the views, of all rotations."""
        blocks = rows.chunk(self.config.labels_per_class * self.config.views)
        return torch.cat(blocks[view :: self.config.views])


@dataclass(frozen=True)
class Features(PretrainConfig):
    """Hold the settings of stage 1 with a momentum encoder, a queue and rotation labels."""

    objective_type = MoticObjective
    per_benchmark: ClassVar = PRETRAIN
    # A short training has few steps: the copy follows faster, and classes are drawn together less.
    per_recipe: ClassVar = {
        "quick": {
            "views": 2,
            "queue": 1024,
            "encoder_momentum": 0.99,
            "temperature": 0.07,
            "closeness": 1.0,
            "own_passes": False,
        }
    }
    epochs: int = 200
    schedule: Literal["milestones", "cosine"] = "cosine"
    milestones: tuple[int, ...] = ()
    warm_up: int = 10
    scale: float = 32.0  # factor of the cosines in stage 1; of a cosine head alone
    views: int = 3  # random views of each image of a batch; the last one is the key's
    rotations: int = 2  # 2 or 4: each image also rotated, every rotation with labels of its own
    queue: int = 65536  # features of earlier steps to compare with
    encoder_momentum: float = 0.999  # share of its weights that the slow copy keeps in a step
    contrast: float = 0.1  # weight of the contrast between an image's key and the queue
    temperature: float = 0.01  # of the contrast: its cosines are divided by it
    closeness: float = 2.5  # weight of the mean cosine to other classes, which training raises
    closeness_from: int = 1  # epochs without it, while the queue fills
    own_passes: bool = True  # contrasted views pass through the network apart from classified ones

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = []
        if self.views < 2:
            wrong.append(f"views must be at least 2, a query's and a key's, not {self.views}")
        wrong += momentum_problems(self.queue, self.encoder_momentum, self.temperature)
        if self.closeness_from < 0:
            wrong.append(f"closeness_from must not be negative, and is {self.closeness_from}")
        if wrong:
            raise ConfigError("pretrain: " + "; ".join(wrong))

    @classmethod
    def transform_for(cls, benchmark: Benchmark) -> Transform:
        return replace(benchmark.transform, **TRANSFORM.get(benchmark.name, TWO_VIEWS))
