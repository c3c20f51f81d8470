"""Method: what the protocol asks of every method, and what it is given.

A method sees the base session once (`fit`), then each new session once (`learn`), and scores images over all classes
seen so far, in the order they came. Whatever it wants to keep of old sessions it must keep itself, and declare.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from torch import Tensor

from fewmore.data.augment import Transform
from fewmore.data.images import ImageSet
from fewmore.methods.settings import (
    DeepEMDConfig,
    DistillationConfig,
    ExemplarConfig,
    LucirConfig,
    TopicConfig,
)
from fewmore.nn.adapter import AdapterConfig
from fewmore.training.checkpoint import State
from fewmore.training.learn_session import SessionConfig
from fewmore.training.loop import EpochsConfig, Runtime
from fewmore.training.pretrain import PretrainConfig
from fewmore.training.pseudo_incremental import PseudoConfig


@dataclass(frozen=True)
class Recipe:
    """All settings of an experiment that a method may read."""

    name: str
    backbone: str
    transform: Transform
    weights: str | None = (
        None  # where the backbone starts: None at random, "imagenet", or a file's path
    )
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    session: SessionConfig = field(default_factory=SessionConfig)
    pseudo: PseudoConfig = field(default_factory=PseudoConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    exemplars: ExemplarConfig = field(default_factory=ExemplarConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    balanced: EpochsConfig = field(default_factory=EpochsConfig)  # EEIL's second part of a session
    lucir: LucirConfig = field(default_factory=LucirConfig)
    topic: TopicConfig = field(default_factory=TopicConfig)
    deepemd: DeepEMDConfig = field(default_factory=DeepEMDConfig)


class Method(ABC):
    """A way to learn classes session by session. Final classes implement it; the constructor only stores."""

    keeps: str | None = None  # what it keeps of old images, in words; None: nothing

    def __init__(self, recipe: Recipe, runtime: Runtime, seed: int) -> None:
        self.recipe = recipe
        self.runtime = runtime
        self.seed = seed
        self.sessions = 0  # how many sessions were learnt, the base included

    @abstractmethod
    def fit(self, base: ImageSet) -> None:
        """Learn the base session."""

    @abstractmethod
    def learn(self, session: ImageSet) -> None:
        """Learn a new session from its own images; its classes are numbered from 0 in it, and come after the known ones."""

    @abstractmethod
    def scores(self, images: ImageSet) -> Tensor:
        """Scores over all classes seen so far: (images, classes)."""

    @abstractmethod
    def state(self) -> State:
        """All that was learnt: nested dicts of tensors and JSON values."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Go back to a state; everything else is as the constructor left it."""

    def images_kept(self) -> int:
        """How many old images it holds now."""
        return 0


class FrozenBackbone(Method):
    """A method whose features never change after `fit`: images are embedded once, however often they are scored."""

    @abstractmethod
    def embed(self, images: ImageSet) -> Tensor:
        """Features, (images, d)."""

    @abstractmethod
    def scores_of(self, features: Tensor) -> Tensor:
        """Scores over all classes seen so far, from features."""

    def also_scores_of(self, features: Tensor) -> dict[str, Tensor]:
        """Other scores of the same images that are worth reporting beside, by name."""
        return {}

    def scores(self, images: ImageSet) -> Tensor:
        return self.scores_of(self.embed(images))
