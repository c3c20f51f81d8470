"""Contrast classes and their imagined variants in global and local crops (SAVC).

Song, Zhao, Shi, Peng, Yuan, Tian: Learning with Fantasy: Semantic-Aware Virtual Contrastive
Constraint for Few-Shot Class-Incremental Learning, CVPR 2023, https://arxiv.org/abs/2304.00426.

Classes that lie apart leave room for new ones. So stage 1 makes classes up: a rotated image is of
another class (0° and 180°; on miniImageNet four rotations in three orders of the colors, twelve in
all). They are learnt by cross entropy on a mild view, and by a supervised contrast of crops with a
queue of labelled features that a slowly following copy of the network computed. A global crop of
the image and four local ones are queries, another global one is the key. Features are then frozen,
and a class is the mean of its images' features; a test image is transformed in the same ways, each
of its variants is compared with means of images that were transformed alike, and the scores are
averaged.

Settings are those of the authors' program, which tests the epoch that is best on the test images;
here it is the last one. Its optional fine-tuning on new sessions, off by default, is left out. The
program gives the rotated local crops labels and keys by their place in the batch, which mixes them
up: with two variants, both variants of crops 1 and 2 count as unrotated, and those of crops 3 and 4
as rotated. `official` does the same, recipe `paper` gives each its own (`local_labels`). Local
crops overlap the key's as there, but every sampled box fits into its image. On CUB200 the
crop that is classified is taken of larger files than there. `contrast` and `local_contrast` are the
program's alpha and beta.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from fewmore.data.augment import (
    Transform,
    image_shapes,
    sample_crop_boxes,
    sample_crop_boxes_on,
    train_view,
)
from fewmore.data.benchmarks import Benchmark
from fewmore.data.transform import ASPECT_RATIO
from fewmore.errors import ConfigError
from fewmore.nn.backbones import Backbone
from fewmore.random import derive_seed
from fewmore.training.contrast import each_positive_contrast
from fewmore.training.momentum import MomentumEncoder, Queue, momentum_problems
from fewmore.training.pretrain import Batch, Objective, PretrainConfig
from fewmore.training.views import COLOR_ORDERS, color_copies, rotation_copies

SMALL_CROPS: dict[str, Any] = {"global_scale": (0.2, 1.0), "local_scale": (0.05, 0.14)}
# Settings of the authors' program that differ between benchmarks; others have those of CIFAR100.
PRETRAIN: dict[str, dict[str, Any]] = {
    "miniimagenet": {
        **SMALL_CROPS,
        "epochs": 120,
        "schedule": "milestones",
        "milestones": (40, 70, 100),
        "colors": 3,
        "rotations": 4,
        "local_size": 50,
        "projection": 128,
        "encoder_momentum": 0.999,
    },
    "cub200": {
        **SMALL_CROPS,
        "epochs": 120,
        "schedule": "milestones",
        "milestones": (60, 80, 100),
        "lr": 0.002,
        "local_size": 96,
        "projection": 128,
        "encoder_momentum": 0.999,
        "last_batch": "fill",
    },
}
TRANSFORM: dict[str, dict[str, Any]] = {
    "miniimagenet": {
        "test_views": (
            *("plain", "gbr", "brg"),
            *("rot90", "rot90-gbr", "rot90-brg"),
            *("rot180", "rot180-gbr", "rot180-brg"),
            *("rot270", "rot270-gbr", "rot270-brg"),
        )
    },
    # Stored so large that local crops, a twentieth of the area, have the pixels of their views.
    "cub200": {"test_views": ("plain", "rot180"), "stored": 448},
}
# The transform of the crops that are contrasted, global and local alike.
CROPS: dict[str, Any] = {
    "crop": "resized",
    "ratio": ASPECT_RATIO,
    "flip": True,
    "resize": None,
    "stored": None,
    "policy": "none",
    "jitter": (0.4, 0.4, 0.4, 0.1),
    "grayscale": 0.2,
    "cutout": 0,
}
JITTERED = 0.8  # share of the crops whose colors are jittered


class Projected(nn.Module):
    """Map images to projections of their features, which are contrasted."""

    def __init__(self, backbone: Backbone, projection: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = projection

    def forward(self, view: Tensor) -> Tensor:
        features = self.backbone(view).float()
        with torch.autocast(view.device.type, enabled=False):
            projected: Tensor = self.projection(features)
        return projected


def make_projection(dim: int, outputs: int, generator: Generator) -> nn.Sequential:
    """Make a network of two layers, with PyTorch's range of random weights."""
    with torch.device("meta"):  # else layers draw weights from the global generator
        last = nn.Linear(dim, outputs, bias=False)
        layers = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), last)
    projection: nn.Sequential = layers.to_empty(device="cpu")
    bound = dim**-0.5
    for parameter in projection.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return projection


class SavcObjective(Objective):
    """Add the contrast of global and of local crops with momentum features, by labels."""

    config: "Features"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        config = self.config
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "contrast"))
        projection = make_projection(self.backbone.dim, config.projection, generator)
        self.projected = Projected(self.backbone, projection)
        self.encoder = MomentumEncoder(self.projected, config.encoder_momentum)
        self.queue = Queue(config.queue, config.projection, generator)
        self.modules = {"projection": projection, "encoder": self.encoder, "queue": self.queue}
        self.global_crops = replace(self.transform, **CROPS, scale=config.global_scale)
        self.local_crops = replace(
            self.transform, **CROPS, scale=config.local_scale, size=config.local_size
        )

    def views(self, indices: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        view, labels = super().views(indices, generator)
        return color_copies(view, labels, self.config.colors)

    def auxiliary(self, batch: Batch) -> Tensor:
        config, scale = self.config, 1 / self.config.temperature
        crops = self.crops(batch.indices, batch.generator)
        classes = self.base.labels[batch.indices]
        (view, labels), (key_view, _), (local_view, _) = (
            self.variants(crop, classes) for crop in crops
        )
        queries, local_queries = self.projected(view), self.projected(local_view)
        self.encoder.update()
        keys = self.encoder(key_view)
        others = self.queue.read()
        rows = self.rows_of_local_crops(len(classes), labels.device)
        loss = config.contrast * each_positive_contrast(queries, keys, labels, *others, scale)
        local = each_positive_contrast(local_queries, keys[rows], labels[rows], *others, scale)
        self.queue.add(keys, labels)
        return loss + config.local_contrast * local

    def variants(self, view: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return images in all their variants, and labels of these."""
        rotated, labels = rotation_copies(view, labels, self.config.rotations)
        return color_copies(rotated, labels, self.config.colors)

    def crops(self, indices: Tensor, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return a query's crop of each image, a key's, and the local ones, all images at a time.

        The local ones have so many times the rows.
        """
        twice, often = indices.repeat(2), indices.repeat(self.config.local_crops)
        heights, widths = image_shapes(self.base, twice)
        boxes = sample_crop_boxes(heights, widths, self.config.global_scale, generator)
        large = train_view(self.base, twice, self.global_crops, generator, boxes, JITTERED)
        of_keys = boxes[:, len(indices) :].repeat(1, self.config.local_crops)
        heights, widths = image_shapes(self.base, often)
        scale = self.config.local_scale
        boxes = sample_crop_boxes_on(of_keys, heights, widths, scale, generator)
        small = train_view(self.base, often, self.local_crops, generator, boxes, JITTERED)
        queries, keys = large.chunk(2)
        return queries, keys, small

    def rows_of_local_crops(self, images: int, device: torch.device) -> Tensor:
        """Return where the key, and the label, of each local crop is among those of the images."""
        crops, variants = self.config.local_crops, self.config.labels_per_class
        # Blocks with a row for each image: by order of the colors, then rotation, then crop.
        block = torch.arange(variants * crops, device=device)
        variant, crop = block // crops, block % crops
        if self.config.local_labels == "program":
            colors, rotations = self.config.colors, self.config.rotations
            place = variant % rotations * colors + variant // rotations  # by rotation, then colors
            place = (crop * variants + place) // crops
            variant = place % colors * rotations + place // colors
        return (variant[:, None] * images + torch.arange(images, device=device)).flatten()


@dataclass(frozen=True)
class Features(PretrainConfig):
    """Hold the settings of stage 1 with imagined classes and contrasted crops."""

    objective_type = SavcObjective
    per_recipe: ClassVar = {
        "paper": {"local_labels": "own"},
        "quick": {"epochs": 3, "queue": 1024, "encoder_momentum": 0.99, "local_crops": 2},
    }
    epochs: int = 600
    schedule: Literal["milestones", "cosine"] = "cosine"
    milestones: tuple[int, ...] = ()
    rotations: int = 2  # 2 or 4: each image also rotated, every rotation with labels of its own
    colors: int = 1  # 3: each image also with its colors moved, each with labels of its own
    queue: int = 8192  # features of earlier steps to compare with
    projection: int = 32  # features that are contrasted: outputs of a network of two layers
    encoder_momentum: float = 0.995  # share of its weights that the slow copy keeps in a step
    temperature: float = 0.07  # of the contrast: its cosines are divided by it
    contrast: float = 0.2  # weight of the contrast of global crops
    local_contrast: float = 0.8  # weight of the contrast of local crops
    global_scale: tuple[float, float] = (0.9, 1.0)  # areas of global crops, of the image's
    local_scale: tuple[float, float] = (0.2, 0.7)  # areas of local crops, of the image's
    local_size: int = 18  # side of the view of a local crop, in pixels
    local_crops: int = 4  # local crops of each image
    # Of local crops: by their place in the batch as in the program, or of their own variant.
    local_labels: Literal["program", "own"] = "program"

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = []
        if self.colors not in COLOR_ORDERS:
            wrong.append(f"colors must be 1 or 3, not {self.colors}")
        wrong += momentum_problems(self.queue, self.encoder_momentum, self.temperature)
        for name in ("projection", "local_size", "local_crops"):
            if getattr(self, name) < 1:
                wrong.append(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("global_scale", "local_scale"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= 1:
                wrong.append(f"{name} must be two shares of the area, not {getattr(self, name)}")
        if self.local_labels not in ("program", "own"):
            wrong.append(f"local_labels must be program or own, not '{self.local_labels}'")
        if wrong:
            raise ConfigError("pretrain: " + "; ".join(wrong))

    @classmethod
    def for_benchmark(cls, benchmark: Benchmark) -> "Features":
        local_size = {"local_size": benchmark.transform.size * 9 // 16}
        return cls(**PRETRAIN.get(benchmark.name, local_size))

    @classmethod
    def transform_for(cls, benchmark: Benchmark) -> Transform:
        changes = {"test_views": ("plain", "rot180"), **TRANSFORM.get(benchmark.name, {})}
        return replace(benchmark.transform, view_features="separate", **changes)

    @property
    def labels_per_class(self) -> int:
        """Return how many labels of the head a class has; the first is that of the class itself."""
        return self.rotations * self.colors
