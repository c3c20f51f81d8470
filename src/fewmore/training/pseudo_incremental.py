"""Train the adapter by pseudo-incremental learning: stage 2, Algorithm 1 of the paper.

The adapter must learn to place new classes among old ones, but in the base session no class is new.
So new classes are synthesized: images rotated by a large angle lose part of what made their class,
and yet look like one another. Each episode is a whole incremental session with such classes, and
the adapter (and, at a small rate, the encoder) learns from its loss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
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
from fewmore.training.distributed import world_size
from fewmore.training.embed import BATCH
from fewmore.training.loop import train
from fewmore.training.optimizer import OptimizerConfig, ParameterGroup
from fewmore.training.runtime import Runtime

Part = Callable[[Tensor], Tensor]  # some of a backbone's stages

STAGE = "pseudo-incremental"  # its name in reports and checkpoints
ROUND = 50  # episodes between two reports
# Memory of the inputs that are computed once for all episodes: bytes, and the share of a GPU's.
MOST_BYTES = 2**30
MOST_OF_GPU = 1 / 16


@dataclass(frozen=True)
class PseudoConfig(OptimizerConfig):
    """Hold the settings of stage 2: `lr` is the adapter's, milestones are rounds of 50 episodes."""

    lr: float = 0.0002  # the adapter's learning rate
    milestones: tuple[int, ...] = (20, 40, 60, 80)  # rounds of 50 episodes
    decay: float = 0.5
    episodes: int = 5000  # training steps, one episode each
    base_way: int = 15  # pseudo-base classes of an episode
    base_shot: int = 1  # images of each that make its prototype
    base_query: int = 15  # images of each that are classified
    new_way: int = 15  # pseudo-incremental classes of an episode
    new_shot: int = 1  # images of each that make its prototype
    new_query: int = 15  # images of each that are classified
    # One angle is sampled for each pseudo-incremental class; () is plain meta-learning.
    angles: tuple[int, ...] = (90, 180, 270)
    # Whether the pseudo-incremental classes are the rotated pseudo-base classes, or other classes.
    same_classes: bool = True
    encoder: str = "all"  # what of the encoder is trained: all, last (its last stage) or none
    encoder_lr: float = 0.0002  # the encoder's learning rate
    augmented_rounds: int = 1  # rounds at the beginning whose images are augmented

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {
            "episodes": self.episodes,
            "base_way": self.base_way,
            "base_shot": self.base_shot,
            "base_query": self.base_query,
            "new_way": self.new_way,
            "new_shot": self.new_shot,
            "new_query": self.new_query,
        }
        wrong = [f"{name} must be at least 1, not {n}" for name, n in sizes.items() if n < 1]
        if self.encoder not in ("all", "last", "none"):
            wrong.append(f"encoder must be all, last or none, not '{self.encoder}'")
        if self.encoder_lr < 0:
            wrong.append(f"encoder_lr must not be negative, and is {self.encoder_lr}")
        if self.augmented_rounds < 0:
            wrong.append(f"augmented_rounds must not be negative, and is {self.augmented_rounds}")
        if self.rotated and self.sizes(base=True) != self.sizes(base=False):
            wrong.append(
                "with same_classes, pseudo-base and pseudo-incremental classes need the same "
                "ways, shots and queries"
            )
        if any(angle % 360 == 0 for angle in self.angles):
            wrong.append(f"angles must rotate an image, and {self.angles} holds one that does not")
        if wrong:
            raise ConfigError("pseudo: " + "; ".join(wrong))
        self.check_rounds(self.rounds)

    def sizes(self, base: bool) -> tuple[int, int, int]:
        """Return ways, shots and queries of the pseudo-base or the pseudo-incremental classes."""
        if base:
            return self.base_way, self.base_shot, self.base_query
        return self.new_way, self.new_shot, self.new_query

    @property
    def episode_images(self) -> int:
        """Return the number of images of an episode, both supports and queries."""
        kinds = (self.sizes(base=True), self.sizes(base=False))
        return sum(way * (shot + query) for way, shot, query in kinds)

    @property
    def rotated(self) -> bool:
        """Return whether the pseudo-incremental classes are the pseudo-base classes, rotated."""
        return self.same_classes and bool(self.angles)

    def fitted(self, counts: Sequence[int]) -> "PseudoConfig":
        """Return these settings, with fewer ways and queries where the base session is too small.

        Args:
            counts: the number of images of each base class.
        """
        classes, images = len(counts), min(counts)
        if classes < 2 and not self.rotated:
            raise ConfigError(
                "an episode takes different classes for pseudo.base_way and pseudo.new_way, "
                f"and there is {classes} base class: add base classes"
            )
        shot = max(self.base_shot, self.new_shot)
        if images <= shot:
            raise ConfigError(
                f"{shot} shots and one query take {shot + 1} images of each class, and the "
                f"smallest base class has {images}: "
                + ("add images" if images < 2 else "lower pseudo.base_shot and pseudo.new_shot")
            )
        base_way, new_way = self.base_way, self.new_way
        if self.rotated:
            base_way = new_way = min(base_way, classes)
        else:
            half = classes // 2
            base_way = min(self.base_way, max(half, classes - self.new_way))
            new_way = min(self.new_way, max(half, classes - self.base_way))
        return replace(
            self,
            base_way=base_way,
            new_way=new_way,
            base_query=min(self.base_query, images - self.base_shot),
            new_query=min(self.new_query, images - self.new_shot),
        )

    @property
    def rounds(self) -> int:
        """Return the number of rounds."""
        return max(1, round(self.episodes / ROUND))


def check_episodes(base: ImageSet, config: PseudoConfig) -> None:
    """Refuse episodes that the base session is too small for; to be called before stage 1."""
    counts = base.class_counts().tolist()
    fitted = config.fitted(counts)
    settings = [
        f"pseudo.{field.name}={getattr(fitted, field.name)}"
        for field in fields(config)
        if getattr(fitted, field.name) != getattr(config, field.name)
    ]
    if settings:
        raise ConfigError(
            f"a base session of {len(counts)} classes with {min(counts)} images or more is too "
            f"small for these episodes: set {', '.join(settings)}"
        )


def pseudo_incremental(
    backbone: Backbone,
    adapter: Adapter,
    base: ImageSet,
    transform: Transform,
    config: PseudoConfig,
    runtime: Runtime,
    seed: int,
) -> None:
    """Train the adapter, and the configured part of the backbone, on episodes of base classes."""
    episodes = _Episodes(base, config)
    # Batch-norm statistics are frozen; the affine weights are trained with the rest.
    backbone.eval()
    adapter.train()
    frozen_part, trained_part = _split_backbone(backbone, config.encoder)
    known = _known_inputs(frozen_part, base, transform, config, runtime)

    def loss_of(row: Tensor, generator: Generator, augmented: bool) -> Tensor:
        base_positions, new_positions, angles = episodes.unpack(row)
        # Lines 2 and 4: support and query sets of pseudo-base and pseudo-incremental classes.
        positions = torch.cat([base_positions.flatten(), new_positions.flatten()])
        angle_of_image = angles.repeat_interleave(new_positions.shape[1])
        if known is not None and not augmented:
            rows = _known_rows(positions, angle_of_image, len(base), config)
            features = trained_part(known[rows])
        else:
            if augmented:
                view = train_view(base, positions, transform, generator)
            else:
                view = test_view(base, positions, transform)
            # Lines 5 to 8: each pseudo-incremental class is rotated by its own angle.
            view_base, view_new = torch.split(view, [base_positions.numel(), new_positions.numel()])
            view_new = _rotate(view_new, angle_of_image, config.angles)
            features = backbone(torch.cat([view_base, view_new]))
        return episodes.loss(adapter, features.float(), base_positions, new_positions, generator)

    parts = {"all": backbone, "last": backbone.last_stage(), "none": nn.Identity()}
    trained = parts[config.encoder]
    frozen = [p for p in backbone.parameters() if not any(p is q for q in trained.parameters())]
    for parameter in frozen:
        parameter.requires_grad_(False)
    groups = [ParameterGroup(list(adapter.parameters()))]
    if config.encoder != "none":
        groups.append(ParameterGroup(list(trained.parameters()), config.encoder_lr))
    losses = {
        0: partial(loss_of, augmented=True),
        config.augmented_rounds: partial(loss_of, augmented=False),
    }
    modules: dict[str, nn.Module] = {"adapter": adapter, "backbone": backbone}
    train(STAGE, modules, groups, losses, episodes.sample, config.rounds, config, runtime, seed)
    for parameter in frozen:
        parameter.requires_grad_(True)
    adapter.eval()


def _split_backbone(backbone: Backbone, encoder: str) -> tuple[Part, Part]:
    """Return the part of the backbone that is frozen, and the part behind it that is trained."""
    if encoder == "all":
        return nn.Identity(), backbone
    if encoder == "last":
        return backbone.before_last, backbone.from_last
    return backbone, nn.Identity()


@torch.no_grad()
def _known_inputs(
    frozen_part: Part, base: ImageSet, transform: Transform, config: PseudoConfig, runtime: Runtime
) -> Tensor | None:
    """Compute the inputs of the trained part once: of all images in all rotations.

    Without augmentation an image is the same in every episode, and rotations are few. Upright
    images come first, then those in each of the angles: ((1 + angles) · n, …). None where episodes
    take fewer images than that, or where it takes too much memory.
    """
    known: Tensor | None = None
    images = (1 + len(config.angles)) * len(base)
    episodes = ROUND * max(0, config.rounds - config.augmented_rounds)
    # With several processes, the whole backbone is what splits a batch.
    if episodes * config.episode_images < images or world_size() > 1:
        return None
    for first in range(0, images, BATCH):
        rows = torch.arange(first, min(first + BATCH, images), device=base.device)
        rotations = rows // len(base)
        with runtime.autocast():
            view = test_view(base, rows % len(base), transform)
            if config.angles:
                rotated = _rotate(view, (rotations - 1).clamp(min=0), config.angles)
                view = torch.where(rotations.view(-1, 1, 1, 1) > 0, rotated, view)
            # What autocast would round views to in every episode, they are rounded to once.
            inputs = frozen_part(view.to(runtime.compute_dtype))
        if known is None:
            if images * inputs[0].numel() * inputs.element_size() > _most_bytes(base.device):
                return None
            known = inputs.new_empty((images, *inputs.shape[1:]))
            if inputs.is_cuda and inputs.dim() == 4:
                known = known.to(memory_format=torch.channels_last)
        known[rows] = inputs
    return known


def _most_bytes(device: torch.device) -> int:
    """Return how much memory of a device the known inputs may take."""
    if device.type != "cuda":
        return MOST_BYTES
    return int(MOST_OF_GPU * torch.cuda.get_device_properties(device).total_memory)


def _known_rows(positions: Tensor, angles: Tensor, images: int, config: PseudoConfig) -> Tensor:
    """Return the rows of `_known_inputs` that an episode is made of, rotated images last."""
    if not config.angles:
        return positions
    upright = angles.new_zeros(len(positions) - len(angles))
    return torch.cat([upright, 1 + angles]) * images + positions


class _Episodes:
    """Sample rounds of episodes, each packed into one row: image positions and angle numbers."""

    def __init__(self, base: ImageSet, config: PseudoConfig) -> None:
        self.config = config
        self.sampler = EpisodeSampler(base)
        self.rotated = config.rotated
        # Without rotation a class sampled twice would be two classes with the same images.
        ways = config.base_way if self.rotated else config.base_way + config.new_way
        images = max(config.base_shot + config.base_query, config.new_shot + config.new_query)
        self.sampler.check(ways, images)
        self.ways = ways
        queries = [config.base_query] * config.base_way + [config.new_query] * config.new_way
        repeats = torch.tensor(queries, device=base.device)
        self.labels = torch.arange(len(queries), device=base.device).repeat_interleave(repeats)

    def sample(self, generator: Generator) -> Tensor:
        """Sample a round of episodes, lines 2, 4 and 6: (50, …)."""
        c = self.config
        classes = self.sampler.sample_classes(ROUND, self.ways, generator)
        base_classes = classes[:, : c.base_way]
        base = self.sampler.sample_images(base_classes, c.base_shot + c.base_query, generator)
        new = base
        if not self.rotated:
            new_classes = classes[:, c.base_way :]
            new = self.sampler.sample_images(new_classes, c.new_shot + c.new_query, generator)
        shape = (ROUND, c.new_way)
        angles = torch.randint(
            max(1, len(c.angles)), shape, device=base.device, generator=generator
        )
        return torch.cat([base.flatten(1), new.flatten(1), angles], 1)

    def unpack(self, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return positions of both groups of classes, (way, shot + query), and angle numbers."""
        c = self.config
        base = c.base_way * (c.base_shot + c.base_query)
        return (
            row[:base].view(c.base_way, -1),
            row[base : -c.new_way].view(c.new_way, -1),
            row[-c.new_way :],
        )

    def loss(
        self, adapter: Adapter, features: Tensor, base: Tensor, new: Tensor, generator: Generator
    ) -> Tensor:
        """Compute an episode's loss, lines 3 and 9 to 12; pseudo-base features come first."""
        # Lines 3 and 9: the prototypes are the means of the support sets.
        base_features, new_features = torch.split(features, [base.numel(), new.numel()])
        base_support, base_query = _split(base_features, base, self.config.base_shot)
        new_support, new_query = _split(new_features, new, self.config.new_shot)
        prototypes = torch.cat([base_support.mean(1), new_support.mean(1)])
        # Lines 10 to 12: adapt all prototypes, classify all queries, compute the loss.
        queries = torch.cat([base_query.flatten(0, 1), new_query.flatten(0, 1)])
        with torch.autocast(features.device.type, enabled=False):
            logits = adapter(queries, prototypes, generator)
        return F.cross_entropy(logits, self.labels)


def _rotate(view: Tensor, numbers: Tensor, angles: tuple[int, ...]) -> Tensor:
    """Rotate each image by the angle of its number; multiples of 90° need no resampling."""
    if not angles:
        return view
    if all(angle % 90 == 0 for angle in angles):
        return rotate90(view, _lookup(numbers, tuple(angle // 90 % 4 for angle in angles)))
    return rotate(view, _lookup(numbers, angles))


def _lookup(numbers: Tensor, values: tuple[int, ...]) -> Tensor:
    """Return the value of each number, without a copy from the host."""
    found = torch.full_like(numbers, values[0])
    for number, value in enumerate(values[1:], 1):
        found = torch.where(numbers == number, value, found)
    return found


def _split(features: Tensor, positions: Tensor, shot: int) -> tuple[Tensor, Tensor]:
    """Split features into support (way, shot, d) and query (way, query, d)."""
    by_class = features.view(*positions.shape, -1)
    support, query = torch.split(by_class, [shot, positions.shape[1] - shot], 1)
    return support, query
