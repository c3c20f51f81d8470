"""Stage 2: pseudo-incremental learning, Algorithm 1 of the paper.

The adapter must learn to place new classes among old ones, but in the base session no class is new. So classes are made
up: images turned by a large angle lose part of what made their class, and yet look like one another. Each episode plays
a whole incremental session with such classes, and the adapter (and, gently, the encoder) learns from how well it went.
"""

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewmore.data.augment import Transform, rotate, rotate90, test_view, train_view
from fewmore.data.episodes import EpisodeSampler
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError
from fewmore.nn.adapter import Adapter
from fewmore.nn.backbones import Backbone
from fewmore.training.loop import Group, Runtime, SGDConfig, train

ROUND = 50  # episodes between two reports


@dataclass(frozen=True)
class PseudoConfig(SGDConfig):
    """Settings of stage 2. The rate is the adapter's; milestones count rounds of 50 episodes."""

    lr: float = 0.0002
    milestones: tuple[int, ...] = (20, 40, 60, 80)
    decay: float = 0.5
    episodes: int = 5000
    base_way: int = 15
    base_shot: int = 1
    base_query: int = 15
    new_way: int = 15
    new_shot: int = 1
    new_query: int = 15
    angles: tuple[int, ...] = (
        90,
        180,
        270,
    )  # one is drawn for each pseudo-incremental class; () for plain meta-learning
    same_classes: bool = True  # the pseudo-incremental classes are the pseudo-base classes, turned; else other classes
    encoder: str = "all"  # what of the encoder is trained: all, last (its last stage) or none
    encoder_lr: float = 0.002
    augmented_rounds: int = 1  # rounds at the beginning whose images are augmented

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = (
            "episodes",
            "base_way",
            "base_shot",
            "base_query",
            "new_way",
            "new_shot",
            "new_query",
        )
        wrong = [
            f"{name} must be at least 1, not {getattr(self, name)}"
            for name in sizes
            if getattr(self, name) < 1
        ]
        if self.encoder not in ("all", "last", "none"):
            wrong.append(f"encoder must be all, last or none, not '{self.encoder}'")
        if self.encoder_lr < 0:
            wrong.append(f"encoder_lr must not be negative, and is {self.encoder_lr}")
        if self.augmented_rounds < 0:
            wrong.append(f"augmented_rounds must not be negative, and is {self.augmented_rounds}")
        if self.same_classes and self.angles and self.sizes(base=True) != self.sizes(base=False):
            wrong.append(
                "with same_classes, pseudo-base and pseudo-incremental classes need the same ways, shots and queries"
            )
        if any(angle % 360 == 0 for angle in self.angles):
            wrong.append(f"angles must turn an image, and {self.angles} holds one that does not")
        if wrong:
            raise ConfigError("pseudo: " + "; ".join(wrong))

    def sizes(self, base: bool) -> tuple[int, int, int]:
        """Ways, shots and queries of the pseudo-base or of the pseudo-incremental classes."""
        return (
            (self.base_way, self.base_shot, self.base_query)
            if base
            else (self.new_way, self.new_shot, self.new_query)
        )

    @property
    def rounds(self) -> int:
        return max(1, round(self.episodes / ROUND))


def pseudo_incremental(
    backbone: Backbone,
    adapter: Adapter,
    base: ImageSet,
    transform: Transform,
    config: PseudoConfig,
    runtime: Runtime,
    seed: int,
    stage: str = "pseudo-incremental",
) -> None:
    """Train the adapter, and what of the backbone the config says, on episodes from the base session."""
    episodes = _Episodes(base, config)

    def loss_of(row: Tensor, generator: Generator, augmented: bool) -> Tensor:
        base_images, new_images, angles = episodes.unpacked(row)
        # Lines 2 and 4: support and query sets of pseudo-base and pseudo-incremental classes.
        images = torch.cat([base_images.flatten(), new_images.flatten()])
        view = (
            train_view(base, images, transform, generator)
            if augmented
            else test_view(base, images, transform)
        )
        view_base, view_new = view[: base_images.numel()], view[base_images.numel() :]
        # Lines 5 to 8: each pseudo-incremental class is turned by its own angle.
        view_new = _turned(view_new, angles.repeat_interleave(new_images.shape[1]), config.angles)
        features = backbone(torch.cat([view_base, view_new])).float()
        return episodes.loss(adapter, features, base_images, new_images, generator)

    # The statistics of the batch norms stand still; their weights are trained with the rest.
    backbone.eval()
    adapter.train()
    trained = {"all": backbone, "last": backbone.last_stage(), "none": nn.Identity()}[
        config.encoder
    ]
    standing = [p for p in backbone.parameters() if not any(p is q for q in trained.parameters())]
    for parameter in standing:
        parameter.requires_grad_(False)
    groups = [Group(list(adapter.parameters()))]
    if config.encoder != "none":
        groups.append(Group(list(trained.parameters()), config.encoder_lr))
    losses = {
        0: partial(loss_of, augmented=True),
        config.augmented_rounds: partial(loss_of, augmented=False),
    }
    modules: dict[str, nn.Module] = {"adapter": adapter, "backbone": backbone}
    train(stage, modules, groups, losses, episodes.draw, config.rounds, config, runtime, seed)
    for parameter in standing:
        parameter.requires_grad_(True)
    adapter.eval()


def pseudo_incremental_on_features(
    adapter: Adapter,
    views: Tensor,
    base: ImageSet,
    config: PseudoConfig,
    runtime: Runtime,
    seed: int,
    stage: str = "pseudo-incremental",
) -> None:
    """The same with a backbone that stands still: `views` are features of the base images, view k after k quarter turns, (4, n, d)."""
    episodes = _Episodes(base, config)
    turns = tuple(angle // 90 % 4 for angle in config.angles)

    def loss_of(row: Tensor, generator: Generator) -> Tensor:
        base_images, new_images, angles = episodes.unpacked(row)
        turned = _chosen(angles, turns).repeat_interleave(new_images.shape[1])
        features = torch.cat([views[0, base_images.flatten()], views[turned, new_images.flatten()]])
        return episodes.loss(adapter, features, base_images, new_images, generator)

    adapter.train()
    train(
        stage,
        {"adapter": adapter},
        [Group(list(adapter.parameters()))],
        loss_of,
        episodes.draw,
        config.rounds,
        config,
        runtime,
        seed,
    )
    adapter.eval()


class _Episodes:
    """A round of episodes, each packed into one row: images of both groups of classes, and the angles' numbers."""

    def __init__(self, base: ImageSet, config: PseudoConfig) -> None:
        self.config = config
        self.drawer = EpisodeSampler(base)
        self.turned = config.same_classes and bool(config.angles)
        # Without angles a class met twice would be two classes with the same images: the two groups must differ.
        ways = config.base_way if self.turned else config.base_way + config.new_way
        self.drawer.check(
            ways, max(config.base_shot + config.base_query, config.new_shot + config.new_query)
        )
        self.ways = ways
        queries = [config.base_query] * config.base_way + [config.new_query] * config.new_way
        self.labels = torch.arange(len(queries), device=base.device).repeat_interleave(
            torch.tensor(queries, device=base.device)
        )

    def draw(self, generator: Generator) -> Tensor:
        """Lines 2, 4 and 6, for a whole round: (50, …)."""
        c = self.config
        classes = self.drawer.classes(ROUND, self.ways, generator)
        base = self.drawer.of(classes[:, : c.base_way], c.base_shot + c.base_query, generator)
        new = (
            base
            if self.turned
            else self.drawer.of(classes[:, c.base_way :], c.new_shot + c.new_query, generator)
        )
        angles = torch.randint(
            max(1, len(c.angles)), (ROUND, c.new_way), device=base.device, generator=generator
        )
        return torch.cat([base.flatten(1), new.flatten(1), angles], 1)

    def loss(
        self, adapter: Adapter, features: Tensor, base: Tensor, new: Tensor, generator: Generator
    ) -> Tensor:
        """Lines 3 and 9 to 12, from the features of an episode's images, those of pseudo-base classes first."""
        # Lines 3 and 9: the classifier's rows are the means of the support sets.
        of_base, of_new = torch.split(features, [base.numel(), new.numel()])
        base_support, base_query = _parted(of_base, base, self.config.base_shot)
        new_support, new_query = _parted(of_new, new, self.config.new_shot)
        rows = torch.cat([base_support.mean(1), new_support.mean(1)])
        # Lines 10 to 12: adapt all rows, predict all queries, compare.
        queries = torch.cat([base_query.flatten(0, 1), new_query.flatten(0, 1)])
        with torch.autocast(features.device.type, enabled=False):
            scores = adapter(queries, rows, generator)
        return F.cross_entropy(scores, self.labels)

    def unpacked(self, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images of pseudo-base classes (way, shot + query), of pseudo-incremental ones, and the angles' numbers (way,)."""
        c = self.config
        base = c.base_way * (c.base_shot + c.base_query)
        return (
            row[:base].view(c.base_way, -1),
            row[base : -c.new_way].view(c.new_way, -1),
            row[-c.new_way :],
        )


def _turned(view: Tensor, numbers: Tensor, angles: tuple[int, ...]) -> Tensor:
    """Each image turned by the angle of its number; nothing is resampled where all angles are quarter turns."""
    if not angles:
        return view
    if all(angle % 90 == 0 for angle in angles):
        return rotate90(view, _chosen(numbers, tuple(angle // 90 % 4 for angle in angles)))
    return rotate(view, _chosen(numbers, angles))


def _chosen(numbers: Tensor, values: tuple[int, ...]) -> Tensor:
    """The value of each number, without a copy from the host."""
    chosen = torch.full_like(numbers, values[0])
    for number, value in enumerate(values[1:], 1):
        chosen = torch.where(numbers == number, value, chosen)
    return chosen


def _parted(features: Tensor, images: Tensor, shot: int) -> tuple[Tensor, Tensor]:
    """Support (way, shot, d) and query (way, query, d)."""
    support, query = torch.split(
        features.view(*images.shape, -1), [shot, images.shape[1] - shot], 1
    )
    return support, query
